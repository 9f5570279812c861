"""Small ONNX models of equal meaning, and the list of the operators whose forms are compared.

A *kernel* of the catalogue is an operator of certain sizes with its *forms*: models that compute the same function of
the same inputs by other operators. The first form is the usual one, as exporters write it.

    @slow("ORT#27154", "Einsum nchw,c→nchw, {} × {}²", tiny=(4, 5), sizes=[(64, 56)])
    def scaled(channels, size):
        scale = drawn(channels)
        return Kernel({"x": drawn(1, channels, size, size)}, {
            USUAL: lambda f, x: f("Einsum", x, scale, equation="nchw,c->nchw"),
            "Mul": lambda f, x: f("Mul", x, scale[:, None, None]),
        })
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

USUAL = "usual"  # the name of the form that exporters write
OPSET, CONTRIB = 18, "com.microsoft"
RANDOM = np.random.default_rng(0)
START = RANDOM.bit_generator.state  # every kernel draws from here on


class Form:
    """A model under construction. A call adds a node and returns the name of its output.

    Inputs of a node are tensor names, None for an absent input, arrays, lists of int64 values, and float32 numbers.
    """

    def __init__(self, inputs: Mapping[str, np.ndarray]):
        self.graph = onnx.GraphProto(name="form")
        for name, array in inputs.items():
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            self.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))

    def __call__(self, op: str, *inputs, outputs: int = 1, **attributes):
        """Add a node and return the name of its output, or a list of names if it has several.

        Args:
            op: operator; a name that begins with CONTRIB and a dot belongs to the domain of ONNX Runtime.
            inputs: see the class.
            outputs: number of outputs.
            attributes: attributes of the node.
        """
        domain, _, op_type = op.rpartition(".")
        names = [f"t{len(self.graph.node)}_{k}" for k in range(outputs)]
        read = [self._name(one) for one in inputs]
        self.graph.node.append(helper.make_node(op_type, read, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def _name(self, value) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        dtype = np.float32 if isinstance(value, float) else np.int64 if isinstance(value, list) else None
        name = f"c{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def model(self, output: str, kind: onnx.TypeProto | None = None) -> onnx.ModelProto:
        """Return the finished model.

        Args:
            output: name of its only output.
            kind: type of the output; None if onnx can infer it.
        """
        self.graph.output.append(onnx.ValueInfoProto(name=output, type=kind))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(self.graph, opset_imports=opsets, ir_version=8)
        return model if kind else onnx.shape_inference.infer_shapes(model)


class Kernel(NamedTuple):
    """The forms of an operator of certain sizes.

    Attributes:
        inputs: name of each input → array.
        forms: name of each form → function (Form, *names of the inputs) → name of the output. USUAL is the first.
        flops: floating-point operations of the usual form's products; 0 for an operator that memory bounds.
    """

    inputs: Mapping[str, np.ndarray]
    forms: Mapping[str, Callable[..., str]]
    flops: float = 0

    def models(self) -> dict[str, onnx.ModelProto]:
        """Return name of each form → model."""
        result, kind = {}, None
        for name, write in self.forms.items():
            form = Form(self.inputs)
            result[name] = form.model(write(form, *self.inputs), kind)
            kind = result[USUAL].graph.output[0].type
        return result


class Entry(NamedTuple):
    """A row of the catalogue.

    Attributes:
        report: the public report, or "" if there is none.
        label: text of the operator and its sizes.
        build: function of the sizes that returns the kernel.
        sizes: arguments of `build`.
    """

    report: str
    label: str
    build: Callable[..., Kernel]
    sizes: tuple[int, ...]


CATALOGUE: dict[str, Entry] = {}  # name of a part of the record → entry
TINY: dict[str, tuple[Callable[..., Kernel], tuple[int, ...]]] = {}  # name of a builder → builder, sizes for the tests


def slow(report: str, label: str, sizes: Sequence[Sequence[int]], tiny: Sequence[int] | None = None) -> Callable:
    """Return a decorator that adds a function of sizes to the catalogue; equal sizes give equal weights and inputs.

    Args:
        report: see `Entry`.
        label: format string of the sizes.
        sizes: the sizes that the page shows.
        tiny: sizes for the tests; None if another decorator of the same function states them.
    """

    def add(build: Callable[..., Kernel]) -> Callable[..., Kernel]:
        @wraps(build)
        def seeded(*sizes: int) -> Kernel:
            RANDOM.bit_generator.state = START
            return build(*sizes)

        if tiny is not None:
            TINY[build.__name__] = seeded, tuple(tiny)
        for one in sizes:
            name = "-".join(map(str, (build.__name__, *one)))
            CATALOGUE[name] = Entry(report, label.format(*one), seeded, tuple(one))
        return seeded

    return add


# -- values ------------------------------------------------------------------------------------------


def drawn(*shape: int) -> np.ndarray:
    """Return a random normal float32 array."""
    return RANDOM.standard_normal(shape, np.float32)


def weight(*shape: int) -> np.ndarray:
    """Return a random float32 weight [outputs, …] whose products keep the variance of their inputs."""
    return drawn(*shape) / np.float32(prod(shape[1:]) ** 0.5)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)
