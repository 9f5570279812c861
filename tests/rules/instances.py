"""Rules as models: the left side of a rule as a real ONNX model for given tensors and attributes.

A case is one line of data: the rule and the values of its names.
    case("conv-mul", x="1x4x5x5", w="=6x4x3x3", k="=6x1x1", a=dict(strides=[2, 2]))

A tensor is a text that contains its sizes; a scalar has none. A prefix `=` makes a constant and `+` a positive
constant. The suffix `:int64` gives another data type, and `/0` zeros in every second row along axis 0. A list or an int
is an int64 constant with that content, a list of floats a float32 constant, a float a constant scalar. A list of
tensors gives the values of `*xs`, and `@x` is the same tensor as x. A size may be a letter, which is a symbol of the
model. `Known([…])` is computed from sizes. Every name that is not a tensor is an attribute; `**a` is a dict.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from rlflow.graph import contrib
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import session
from rlflow.graph.onnx_writer import to_model
from rlflow.graph.opsets import for_inference, moved_attributes
from rlflow.graph.shapes import attribute_proto
from rlflow.rules.apply import apply
from rlflow.rules.locations import explain
from rlflow.rules.patterns import Absent, Bind, Literal, Op, Output, Star, Var
from rlflow.rules.rule import RuleSet

TOLERANCE = 1e-9
SINGLE = 1e-5  # The tolerance in float32.


class Known(NamedTuple):
    """A value that is known without being constant: a list of integers, flags and names of symbols, or one number."""

    content: list | float | int


@dataclass(frozen=True)
class Case:
    """Values for the names of a rule's left side, and the answer that the rule must give."""

    rule: str
    values: dict = field(hash=False)
    reason: str | None = None  # None means that the rule fires; a text is the reason of the refusal.
    opset: int = 20
    extra: dict = field(default_factory=dict, hash=False)  # Operator → attributes that the rule does not name.
    watched: bool = False  # If true, the inner tensors are outputs of the graph, too.
    dtype: str = "float64"

    def __str__(self) -> str:
        shown = " ".join(f"{name}={value}" for name, value in self.values.items())
        kind = "" if self.dtype == "float64" else f" {self.dtype}"
        return f"{self.rule} {shown} opset{self.opset}{kind}{' watched' if self.watched else ''}"


def case(rule: str, reason: str | None = None, /, opset=20, dtype="float64", extra=None, **values) -> Case:
    return Case(rule, values, reason, opset, extra or {}, dtype=dtype)


def check(case: Case, rules: RuleSet) -> None:
    """Raise AssertionError unless the rule answers as the case says, with equal outputs where it fires."""
    model = instantiate(case, rules)
    graph = load_graph(model)
    matches, refusals = explain(graph, rules, case.rule)
    if case.reason is not None:
        assert not matches, f"{case.rule} fires"
        assert any(r.reason.startswith(case.reason) for r in refusals), f"{refusals}, not '{case.reason}'"
        return
    assert matches, f"{case.rule} does not fire: {[r.reason for r in refusals]}"
    tolerance = SINGLE if case.dtype == "float32" else TOLERANCE
    for match in matches:
        assert_same(model, to_model(apply(graph, rules[match.xfer_id], match)), len(case.values), tolerance)


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto, seed: int = 0, tolerance: float = TOLERANCE) -> None:
    """Raise AssertionError unless both models have one interface and give equal outputs on random inputs."""
    onnx.checker.check_model(after, full_check=True)
    assert list(before.graph.input) == list(after.graph.input)
    assert list(before.graph.output) == list(after.graph.output)
    feeds = random_feeds(before, seed)
    wanted, result = (run(model, feeds) for model in (before, after))
    for value, a, b in zip(before.graph.output, wanted, result, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), value.name
        if a.dtype.kind in "OUSbiu":
            np.testing.assert_array_equal(a, b, err_msg=value.name)
        else:
            scale = max(1.0, np.abs(a[np.isfinite(a)]).max(initial=0))
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * scale, err_msg=value.name)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs by ONNX's reference implementation; ONNX Runtime computes its own operators."""
    opset = next((o.version for o in model.opset_import if not o.domain), 0)
    return ReferenceEvaluator(model, new_ops=[MaxPool, *RUNTIME_OPS, *[BatchNormalization] * (9 <= opset < 14)]).run(
        None, feeds
    )


class OfRuntime(OpRun):
    """An operator of com.microsoft, computed by ONNX Runtime's kernel."""

    op_domain = contrib.DOMAIN

    def _run(self, *arrays, **_):
        node = self.onnx_node
        feeds = {f"x{slot}": array for slot, array in enumerate(arrays) if array is not None}
        names = [f"x{slot}" if f"x{slot}" in feeds else "" for slot in range(len(arrays))]
        single = helper.make_node(node.op_type, names, node.output, domain=node.domain)
        single.attribute.extend(node.attribute)
        given = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ]
        graph = helper.make_graph([single], "one", given, [onnx.ValueInfoProto(name=name) for name in node.output])
        opsets = [helper.make_opsetid(contrib.DOMAIN, contrib.VERSION)]
        running = session(helper.make_model(graph, opset_imports=opsets, ir_version=8), 1)
        return tuple(running.run(None, {name: np.ascontiguousarray(array) for name, array in feeds.items()}))


RUNTIME_OPS = [type(name, (OfRuntime,), {}) for name in contrib.OPERATORS]


class BatchNormalization(OpRun):
    """BatchNormalization-9 with one output, which the reference implementation confuses with training."""

    op_domain = ""

    def _run(self, x, scale, offset, mean, variance, epsilon, momentum, training_mode=0):
        scale, offset, mean, variance = (a.reshape(-1, *[1] * (x.ndim - 2)) for a in (scale, offset, mean, variance))
        return (scale * (x - mean) / np.sqrt(variance + epsilon) + offset,)


class MaxPool(OpRun):
    """MaxPool, because the reference implementation misreads uneven pads."""

    op_domain = ""

    def _run(
        self,
        x,
        auto_pad=None,
        ceil_mode=None,
        dilations=None,
        kernel_shape=None,
        pads=None,
        storage_order=None,
        strides=None,
    ):
        n = x.ndim - 2
        strides, dilations, pads = strides or [1] * n, dilations or [1] * n, list(pads or [0] * 2 * n)
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        for axis, (size, step, apart) in enumerate(zip(kernel_shape, strides, dilations, strict=True)):
            length, reach = x.shape[axis + 2], (size - 1) * apart + 1
            before, after = pads[axis], pads[axis + n]
            count = (length + before + after - reach) / step + 1
            count = int(np.ceil(count) if ceil_mode else np.floor(count))
            if ceil_mode and (count - 1) * step >= length + before:
                count -= 1  # ONNX: no window begins in the padding after the end.
            if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
                count = -(-length // step)
                missing = max(0, (count - 1) * step + reach - length)
                before = missing // 2 if auto_pad == "SAME_UPPER" else missing - missing // 2
            end = max(0, (count - 1) * step + reach - length - before)
            widths = [(before, end) if k == axis + 2 else (0, 0) for k in range(x.ndim)]
            x = np.moveaxis(np.pad(x, widths, constant_values=lowest), axis + 2, -1)
            x = np.stack([x[..., k * step : k * step + reach : apart].max(axis=-1) for k in range(count)], axis=-1)
            x = np.moveaxis(x, -1, axis + 2)
        return (x,)


def random_feeds(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Return random arrays for the inputs that have no default."""
    random = np.random.default_rng(seed)
    given = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        if value.name not in given:
            sizes = [dim.dim_value if dim.HasField("dim_value") else 2 for dim in kind.shape.dim]
            feeds[value.name] = random_array(random, sizes, helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return feeds


def random_array(random, sizes, dtype, positive: bool = False) -> np.ndarray:
    if np.dtype(dtype).kind == "b":
        return np.asarray(random.random(sizes) < 0.5)
    if np.dtype(dtype).kind in "iu":
        return random.integers(1 if positive or np.dtype(dtype).kind == "u" else -9, 10, sizes).astype(dtype)
    return np.asarray(random.uniform(0.5, 1.5, sizes) if positive else random.standard_normal(sizes)).astype(dtype)


# -- left sides ------------------------------------------------------------------------------------


def instantiate(case: Case, rules: RuleSet) -> onnx.ModelProto:
    """Return the rule's left side as a model with types inferred by ONNX."""
    rule = rules[rules.index(case.rule)]
    return _Instance(case, rule).model()


class _Instance:
    def __init__(self, case: Case, rule):
        self.case, self.rule = case, rule
        self.random = np.random.default_rng(1)
        self.nodes: dict[int, onnx.NodeProto] = {}
        self.inputs, self.weights, self.made, self.arithmetic = [], [], {}, []

    def model(self) -> onnx.ModelProto:
        case = self.case
        outputs = [name for _, output in self.rule.source for name in self.output(output)]
        if case.watched:
            outputs += [name for node in self.nodes.values() for name in node.output if name not in outputs]
        declared = [onnx.ValueInfoProto(name=name) for name in outputs]
        domains = {"": case.opset} | {node.domain: contrib.VERSION for node in self.nodes.values() if node.domain}
        imports = [helper.make_opsetid(*pair) for pair in domains.items()]
        nodes = [*self.arithmetic, *self.nodes.values()]
        graph = helper.make_graph(list(map(for_inference, nodes)), "case", self.inputs, declared, self.weights)
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        del inferred.graph.node[:]
        inferred.graph.node.extend(nodes)
        del inferred.graph.value_info[:]
        open_ones = [k for k, v in enumerate(inferred.graph.output) if not v.type.tensor_type.HasField("shape")]
        for k in open_ones:  # The checker requires a shape.
            _declare_rank(inferred.graph.output[k], len(self.inputs[0].type.tensor_type.shape.dim))
        if self.arithmetic and open_ones:  # RLFlow infers more than ONNX from computed sizes.
            known = load_graph(inferred)
            for k, shape in ((k, known.types[known.outputs[k]].shape) for k in open_ones):
                if shape is not None:
                    _declare_rank(inferred.graph.output[k], len(shape))
        return inferred

    def output(self, pattern: Output) -> list[str]:
        names = self.node(pattern.op).output
        return list(names) if pattern.slot is None else [names[pattern.slot]]

    def node(self, op: Op) -> onnx.NodeProto:
        if op.key not in self.nodes:
            inputs = [name for pattern in op.inputs for name in self.operand(pattern, op)]
            attributes = dict(self.case.values.get(op.rest, {})) | self.case.extra.get(op.op, {})
            for name, bound in op.attributes:
                value = self.case.values[bound.name] if isinstance(bound, Bind) else bound.compute({})
                attributes |= {} if value is None else {name: value}
            split = self.made.get(inputs[1]) if op.op == "Split" else None
            named = [o.slot or 0 for _, o in self.rule.source if o.op.key == op.key]
            n_outputs = max(2, 1 + max(named, default=0)) if op.op == "Split" else 1
            n_outputs = split.size if split is not None and split.size else n_outputs
            outputs = [f"n{len(self.nodes)}_{slot}" for slot in range(n_outputs)]
            for name, slot, _ in moved_attributes(op.op, op.domain, self.case.opset):
                if slot < len(inputs):
                    attributes[name], inputs[slot] = self.made[inputs[slot]].tolist(), ""
            while inputs and not inputs[-1]:
                inputs.pop()
            node = helper.make_node(op.op, inputs, outputs, domain=op.domain)
            node.attribute.extend(
                attribute_proto(op.op, op.domain, self.case.opset, name, tuple(v) if isinstance(v, list) else v)
                for name, v in attributes.items()
            )
            self.nodes[op.key] = node
        return self.nodes[op.key]

    def operand(self, pattern, op: Op) -> list[str]:
        match pattern:
            case Var(name):
                return [self.tensor(name, self.case.values[name])]
            case Star(name):
                values = enumerate(self.case.values[name])  # None stands for an absent input.
                return ["" if text is None else self.tensor(f"{name}{k}", text) for k, text in values]
            case Literal(compute=compute, text=text):
                number = compute({})
                of_list = "float32" if op.op == "Resize" else "int64"  # The scales of a Resize are floats.
                dtype = of_list if isinstance(number, tuple) else self.case.dtype
                return [self.constant(f"number{text}", np.asarray(number, dtype))]
            case Absent():
                return [""]
            case Output():
                return self.output(pattern)
        raise TypeError(pattern)

    def constant(self, name: str, array: np.ndarray) -> str:
        if name not in self.made:
            self.made[name] = array
            self.weights.append(numpy_helper.from_array(array, name))
        return name

    def tensor(self, name: str, value) -> str:
        if isinstance(value, Known):
            return self.made.get(name) or self.known(name, value.content)
        if isinstance(value, list | float | int):
            scales = isinstance(value, list) and any(isinstance(number, float) for number in value)
            kind = np.float32 if scales else self.case.dtype if isinstance(value, float) else np.int64
            return self.constant(name, np.asarray(value, kind))
        if name in self.made:
            return name
        if value[:1] == "@":
            return self.tensor(value[1:], self.case.values[value[1:]])
        text, _, zero_axis = value.partition("/")
        sizes, _, dtype = text.lstrip("=+").partition(":")
        dtype = np.dtype(dtype or self.case.dtype)
        shape = [int(size) if size.isdigit() else size for size in sizes.split("x") if size]
        if value[:1] in ("=", "+"):
            array = random_array(self.random, shape, dtype, positive=value[0] == "+")
            if zero_axis:
                np.moveaxis(array, int(zero_axis), 0)[1::2] = 0
            return self.constant(name, array)
        self.made[name] = np.empty(0)
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape))
        return name

    def known(self, name: str, content) -> str:
        """Return a tensor with this content, computed from sizes of inputs. A number is a constant plus a size minus
        itself."""
        parts = []
        for k, part in enumerate(content if isinstance(content, list) else [content]):
            size = self.size_of(part if isinstance(part, str) else "n")
            if not isinstance(part, str):
                zero = self.computed("Sub", size, size)
                dtype = self.case.dtype if isinstance(part, float) else np.int64
                zero = self.computed("Cast", zero, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
                size = self.computed("Add", zero, self.constant(f"{name}.{k}", np.asarray([part], dtype)))
            parts.append(size)
        result = self.computed("Concat", *parts, axis=0)
        if not isinstance(content, list):
            result = self.computed("Squeeze", result)
        if isinstance(content, list) and content and isinstance(content[0], bool):
            result = self.computed("Cast", result, to=TensorProto.BOOL)
        self.made[name] = result
        return result

    def size_of(self, symbol: str) -> str:
        """Return a list of one size, the size of an extra input of the model."""
        if symbol not in self.made:
            self.made[symbol] = np.empty(0)
            self.inputs.append(helper.make_tensor_value_info(symbol, TensorProto.DOUBLE, [symbol]))
        return self.computed("Shape", symbol)

    def computed(self, op: str, *inputs: str, **attributes) -> str:
        result = f"computed{len(self.arithmetic)}"
        self.arithmetic.append(helper.make_node(op, inputs, [result], **attributes))
        return result


def _declare_rank(value: onnx.ValueInfoProto, rank: int) -> None:
    del value.type.tensor_type.shape.dim[:]
    for _ in range(rank):
        value.type.tensor_type.shape.dim.add()


def watched(case: Case) -> Case:
    """Return the same case in a graph whose inner tensors are outputs as well."""
    replaced = case.rule.startswith("split-split")  # A removed operator gives an inner tensor.
    return replace(case, watched=True, reason="another output of the operator is used" if replaced else None)
