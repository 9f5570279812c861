"""Faults that can be planted in a model, and the measurement of their effect on the outputs.

The function of a kind of fault gets a copy of a model and a random generator, plants one fault in the copy and returns
the place of the fault in words. It returns None if the model has no place for the fault. `Function.change` compares the
outputs of two models in float64 with ONNX's own reference implementation, so it does not depend on the code under test.
"""

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator

from rlflow.graph.drawn_inputs import random_inputs
from rlflow.optimisation.validate import relative_error
from tests.nightly.fuzzing import interface

OPSET = 17  # older models are converted to this opset: the reference implementation follows older operators less well
# The random inputs are used several times, each time multiplied by a factor and then increased by a shift.
SCALES = ((1.0, 0.0), (1.0, 2.0), (1.0, -2.0), (30.0, 0.0), (0.03, 0.0), (0.0, 0.0), (-10.0, 10.0))
Kind = Callable[[onnx.ModelProto, np.random.Generator], str | None]  # see the module docstring


# -- weights ---------------------------------------------------------------------------------------


def one_element(model, rng):
    """Increase one element of a weight by the standard deviation of its elements."""

    def change(array):
        array.reshape(-1)[rng.integers(array.size)] += array.std() or 1.0

    return _edit_weight(model, rng, change)


def scaled(model, rng):
    """Multiply a weight by 1.01."""

    def change(array):
        array *= np.float32(1.01)

    return _edit_weight(model, rng, change)


def transposed(model, rng):
    """Transpose a weight whose last two sizes are equal."""

    def change(array):
        array[...] = array.swapaxes(-1, -2).copy()

    return _edit_weight(model, rng, change, lambda shape: len(shape) > 1 and shape[-1] == shape[-2] > 1)


def swapped_weights(model, rng):
    """Exchange two weights of equal shape."""
    weights = _weights(model, lambda shape: True)
    pairs = [(a, b) for i, a in enumerate(weights) for b in weights[i + 1 :] if a.dims == b.dims]
    if not pairs:
        return None
    a, b = pairs[rng.integers(len(pairs))]
    a.name, b.name = b.name, a.name
    return f"{a.name}, {b.name}"


def to_bfloat16(model, rng):
    """Round a weight to bfloat16 and back."""

    def change(array):
        array[...] = numpy_helper.to_array(
            helper.make_tensor("", TensorProto.BFLOAT16, array.shape, array.reshape(-1))
        ).astype(array.dtype)

    return _edit_weight(model, rng, change)


def to_float16(model, rng):
    """Round every weight to float16 and back."""
    for tensor in _weights(model, lambda shape: True):
        _put(tensor, numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32))
    return "all weights"


def noise(model, rng):
    """Multiply every element of a weight by 1 + noise with the standard deviation 0.001."""

    def change(array):
        array *= (1 + 1e-3 * rng.standard_normal(array.shape)).astype(array.dtype)

    return _edit_weight(model, rng, change)


def scalar(model, rng):
    """Multiply a float32 constant of one element by 1.5, or replace it by 0.5 if it is 0."""
    result = [t for t in _constants(model) if t.data_type == TensorProto.FLOAT and np.prod(t.dims, dtype=int) == 1]
    if not result:
        return None
    tensor = result[rng.integers(len(result))]
    value = numpy_helper.to_array(tensor)
    _put(tensor, np.where(value == 0, np.float32(0.5), value * np.float32(1.5)))
    return tensor.name or "a Constant"


def _edit_weight(model, rng, change, fits=lambda shape: True) -> str | None:
    weights = _weights(model, fits)
    if not weights:
        return None
    tensor = weights[rng.integers(len(weights))]
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    _put(tensor, array)
    return tensor.name


def _weights(model, fits) -> list[onnx.TensorProto]:
    """Return the float32 initialisers with more than one element that a node reads and whose shape passes `fits`."""
    read = {name for node in model.graph.node for name in node.input}
    return [
        t for t in model.graph.initializer
        if t.name in read and t.data_type == TensorProto.FLOAT
        and np.prod(t.dims, dtype=int) > 1 and fits(tuple(t.dims))
    ]  # fmt: skip


def _constants(model) -> list[onnx.TensorProto]:
    return [
        *model.graph.initializer,
        *(a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"),
    ]


def _put(tensor, array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array, np.float32).reshape(tuple(tensor.dims)), tensor.name))


# -- nodes -----------------------------------------------------------------------------------------


def dropped_node(model, rng):
    """Remove a node whose output has the type of its first input, and let its readers read this input instead."""
    types = _types(model)
    given = {value.name for value in model.graph.output}
    nodes = [
        n
        for n in model.graph.node
        if n.input and n.output[0] not in given and types.get(n.input[0]) == types.get(n.output[0]) is not None
    ]
    if not nodes:
        return None
    dropped = nodes[rng.integers(len(nodes))]
    for node in model.graph.node:
        node.input[:] = [dropped.input[0] if name == dropped.output[0] else name for name in node.input]
    where = _where(dropped)
    model.graph.node.remove(dropped)
    return where


def swapped_inputs(model, rng):
    """Exchange the first two operands of a Sub, Div, Pow, MatMul or Concat."""
    nodes = [
        n for n in model.graph.node if n.op_type in ("Sub", "Div", "Pow", "MatMul", "Concat") and len(set(n.input)) > 1
    ]
    if not nodes:
        return None
    node = nodes[rng.integers(len(nodes))]
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return _where(node)


def rewired(model, rng):
    """Replace one input of a node by another earlier tensor of the same type."""
    types, earlier, positions = _types(model), [value.name for value in model.graph.input], []
    for node in model.graph.node:
        positions += [
            (node, slot, other) for slot, name in enumerate(node.input) for other in earlier
            if name in earlier and other != name and types.get(other) == types.get(name) is not None
        ]  # fmt: skip
        earlier += node.output
    if not positions:
        return None
    node, slot, other = positions[rng.integers(len(positions))]
    node.input[slot] = other
    return _where(node)


def _types(model) -> dict[str, bytes]:
    """Return tensor name → serialised type, for all tensors whose type shape inference finds."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {v.name: v.type.SerializeToString() for v in (*graph.input, *graph.value_info, *graph.output)}


def _where(node) -> str:
    return f"{node.op_type} that gives {node.output[0]}"


# -- attributes ------------------------------------------------------------------------------------


def stride(model, rng):
    return _edit_attribute(model, rng, ("strides",), lambda a: _set(a.ints, 0, 3 - min(a.ints[0], 2)))


def pad(model, rng):
    """Increase the padding at the beginning of the first axis by 1 and decrease it at the end, if it is not 0."""

    def change(attribute):
        half = len(attribute.ints) // 2
        attribute.ints[0], attribute.ints[half] = attribute.ints[0] + 1, max(attribute.ints[half] - 1, 0)

    return _edit_attribute(model, rng, ("pads",), change)


def axis(model, rng):
    def change(attribute):
        attribute.i = attribute.i - 1 if attribute.i > 0 else attribute.i + 1 if attribute.i == 0 else attribute.i - 1

    return _edit_attribute(model, rng, ("axis",), change)


def epsilon(model, rng):
    return _edit_attribute(model, rng, ("epsilon",), lambda a: setattr(a, "f", a.f * 1000))


def perm(model, rng):
    return _edit_attribute(model, rng, ("perm",), lambda a: a.ints.reverse())


def other_attribute(model, rng):
    """Change one other attribute: a factor, a window, the number of groups or a flag."""
    names = (
        "alpha", "beta", "bias", "size", "kernel_shape", "dilations", "group", "transB", "keepdims", "approximate",
        "count_include_pad",
    )  # fmt: skip

    def change(attribute):
        if attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f *= 1.1
        elif attribute.type == onnx.AttributeProto.INTS:
            attribute.ints[0] += 1
        elif attribute.type == onnx.AttributeProto.STRING:
            attribute.s = b"none" if attribute.s == b"tanh" else b"tanh"
        else:
            attribute.i = {"size": attribute.i + 2, "group": attribute.i + 1}.get(attribute.name, int(not attribute.i))

    return _edit_attribute(model, rng, names, change)


def _edit_attribute(model, rng, names, change) -> str | None:
    result = [(node, a) for node in model.graph.node for a in node.attribute if a.name in names]
    if not result:
        return None
    node, attribute = result[rng.integers(len(result))]
    change(attribute)
    return f"{attribute.name} of the {_where(node)}"


def _set(numbers, position: int, value: int) -> None:
    numbers[position] = value


# -- interface -------------------------------------------------------------------------------------


def renamed_output(model, rng):
    old, new = _rerouted(model, rng)
    model.graph.node.append(helper.make_node("Identity", [new], [f"{old}_renamed"]))
    next(value for value in model.graph.output if value.name == old).name = f"{old}_renamed"
    return old


def output_type(model, rng):
    old, new = _rerouted(model, rng)
    model.graph.node.append(helper.make_node("Cast", [new], [old], to=TensorProto.DOUBLE))
    next(value for value in model.graph.output if value.name == old).type.tensor_type.elem_type = TensorProto.DOUBLE
    return old


def output_values(model, rng):
    """Negate the values of an output."""
    old, new = _rerouted(model, rng)
    model.graph.node.append(helper.make_node("Neg", [new], [old]))
    return old


def output_shape(model, rng):
    """Add a dimension to an output, in the declaration and in the values."""
    old, new = _rerouted(model, rng)
    value = next(value for value in model.graph.output if value.name == old)
    sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, *sizes], np.int64), "planted_shape"))
    model.graph.node.append(helper.make_node("Reshape", [new, "planted_shape"], [old]))
    value.CopyFrom(helper.make_tensor_value_info(old, value.type.tensor_type.elem_type, [1, *sizes]))
    return old


def declared_shape(model, rng):
    """Increase the declared size of the last axis of an output by one."""
    value = model.graph.output[rng.integers(len(model.graph.output))]
    value.type.tensor_type.shape.dim[-1].dim_value += 1
    return value.name


def order(model, rng):
    """Reverse the order of the outputs, or of the inputs if there is only one output."""
    values = model.graph.output if len(model.graph.output) > 1 else model.graph.input
    reverse = [*values][::-1]
    if len(reverse) < 2 or model.ir_version < 4:
        return None
    del values[:]
    values.extend(reverse)
    return ", ".join(value.name for value in reverse)


def _rerouted(model, rng) -> tuple[str, str]:
    """Rename the tensor of a random output, so that a new node can compute the output; return (old, new name)."""
    old = model.graph.output[rng.integers(len(model.graph.output))].name
    new = f"{old}_before"
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    return old, new


KINDS: tuple[Kind, ...] = (  # all kinds of faults
    one_element, scaled, transposed, swapped_weights, to_bfloat16, to_float16, noise, scalar, dropped_node,
    swapped_inputs,
    rewired, stride, pad, axis, epsilon, perm, other_attribute, renamed_output, output_type, output_values,
    output_shape,
    declared_shape, order,
)  # fmt: skip


def planted(model: onnx.ModelProto, kind: Kind, rng: np.random.Generator) -> tuple[onnx.ModelProto, str] | None:
    """Return (copy of the model with one fault, place of the fault in words).

    Return None if the model has no place for the fault.

    Args:
        model: the model.
        kind: one of KINDS.
        rng: the random generator.
    """
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    where = kind(broken, rng)
    return None if where is None else (broken, where)


# -- what a fault does -----------------------------------------------------------------------------


class Function:
    """The outputs of a model in float64 on random inputs, as computed by ONNX's reference implementation.

    Args:
        model: the model.
        seed: seed of the inputs.
    """

    def __init__(self, model: onnx.ModelProto, seed: int):
        self.model, drawn = model, _in_double(random_inputs(model, seed))
        self.feeds = [
            {name: a * factor + shift if a.dtype.kind == "f" else a for name, a in drawn.items()}
            for factor, shift in SCALES
        ]
        self.values = [*_values(model, self.feeds)]
        # As in `validate`, errors of a result that is small on special inputs are relative to its ordinary size.
        self.floors = [float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in self.values[0]]

    def change(self, broken: onnx.ModelProto, enough: float) -> float:
        """Return the largest relative error of an output of the broken model.

        The error is infinite if the interface or a shape differs, or if the broken model does not run.

        Args:
            broken: the broken model.
            enough: the comparison stops at the first error above this value, and returns this error.
        """
        if interface(broken) != interface(self.model):
            return float("inf")
        largest = 0.0
        try:
            onnx.checker.check_model(broken, full_check=True)
            for wanted, result in zip(self.values, _values(broken, self.feeds), strict=True):
                same = [np.shape(a) == np.shape(b) for a, b in zip(wanted, result, strict=True)]
                errors = map(relative_error, wanted, result, self.floors) if all(same) else [float("inf")]
                largest = max(largest, *errors)
                if largest > enough:
                    break
        except Exception:  # any error of the reference implementation, which has run the original
            return float("inf")
        return largest


def _values(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> Iterator[list[np.ndarray]]:
    running = ReferenceEvaluator(in_float64(model))
    with np.errstate(all="ignore"):
        for feed in feeds:
            yield running.run(None, feed)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model in which float64 replaces float32, converted to OPSET if its opset is older."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    if next(o.version for o in made.opset_import if o.domain in ("", "ai.onnx")) < OPSET:
        made = version_converter.convert_version(made, OPSET)
    for tensor in _constants(made):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for node in made.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return made


def _in_double(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: a.astype(np.float64) if a.dtype == np.float32 else a for name, a in arrays.items()}
