"""A random graph while it is being drawn, which knows types, sizes and bounds and undoes what does not fit.

A motif (benchmarks.random_models.motifs) draws on the sketch through `op`. If a shape, a size or a bound does not fit,
`op` raises `Misfit`, and the sketch undoes the whole motif.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from rlflow.graph import contrib
from rlflow.graph.opsets import MOVED

OPSETS = (*range(9, 24), 17, 18, 20, 20, 21, 21, 23, 23, 23, 23, 23)  # the later ones know more operators
SIZES = (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 6, 8)
LARGEST = 2048  # elements of a tensor
MOST_NODES = 25
BOUND = 256.0  # of the absolute value of any element, so that sums of products stay in float16's range
INPUT_BOUND = 2.0  # of the values that a fuzzer feeds
# The opset from which on the attributes of an operator are inputs.
BECAME_INPUTS = {op: moved.version for op, moved in MOVED.items()} | {"Dropout": 12, "TopK": 10}
# How large a result can be, given how large the operands can be; of any other operator, as large as an operand.
BOUNDS = {"Add": sum, "Sub": sum, "Sum": sum, "Mul": prod}
# Operators that only choose, copy or move elements.
EXACT = frozenset((
    "Relu", "Neg", "Abs", "Max", "Min", "Identity", "Dropout", "Clip", "Concat", "Split", "Transpose", "Reshape",
    "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand", "Pad", "MaxPool", "TopK",
))  # fmt: skip


class Misfit(Exception):
    """Raised when shapes, sizes or bounds do not fit together."""


class Tensor(NamedTuple):
    """A tensor of a sketch.

    Attributes:
        bound: largest absolute value that an element can have.
        exact: no operator has rounded it and no rewrite can, so the order of its elements is certain.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    bound: float
    constant: bool = False
    exact: bool = True


class Sketch:
    """A graph that is being drawn.

    Attributes:
        tensors: the inputs and results that a motif may read.
        symbols: name → size, for the sizes that will be symbols; they are drawn as often as all others.
    """

    def __init__(self, seed: int | list[int], symbols: Mapping[str, int] | None = None):
        self.symbols = symbols or {}
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice(OPSETS))
        self.float = np.dtype(self.rng.choice(["float32", "float64", "float16"], p=[0.7, 0.2, 0.1]))
        self.nodes: list[onnx.NodeProto] = []
        self.constant_nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[Tensor] = []
        self.tensors: list[Tensor] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.names = 0

    def attempt(self, motif) -> None:
        """Draw a motif, or undo all of it."""
        lists = (self.nodes, self.constant_nodes, self.weights, self.inputs, self.tensors)
        lengths = [len(items) for items in lists]
        try:
            motif(self)
        except Misfit:
            for items, length in zip(lists, lengths, strict=True):
                del items[length:]

    # -- chance ------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def permutation(self, n: int) -> list[int]:
        return self.rng.permutation(n).tolist()

    def sizes(self, rank: int) -> tuple[int, ...]:
        """Return small sizes: a fifth are 1, now and then one is 0; sometimes all are equal, which confuses axes
        easily.
        """
        if self.chance(0.12):
            return (self.pick([2, 3]),) * rank
        sizes = [self.pick(SIZES) for _ in range(rank)]
        if rank and self.chance(0.035):
            sizes[int(self.rng.integers(rank))] = 0
        if self.symbols:
            sizes = [self.pick(list(self.symbols.values())) if self.chance(0.5) else size for size in sizes]
        return tuple(sizes)

    # -- tensors -----------------------------------------------------------------------------------

    def fresh(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def input(self, shape, dtype=None) -> Tensor:
        made = Tensor(self.fresh("x"), np.dtype(dtype or self.float), tuple(shape), INPUT_BOUND)
        if prod(shape) > LARGEST:
            raise Misfit
        self.inputs.append(made)
        self.tensors.append(made)
        return made

    def find(self, fits, make) -> Tensor:
        """Return a tensor of the graph that fits, later ones more often, or the input that `make` makes."""
        fitting = [t for t in self.tensors if fits(t)]
        if not fitting or self.chance(0.15 if len(self.inputs) < 4 else 0.03):
            return make()
        return fitting[-min(int(self.rng.geometric(0.3)), len(fitting))]

    def real(self, rank: int | None = None, low: int = 0, high: int = 5, empty: bool = False) -> Tensor:
        """Return a float tensor of that rank, or of a rank from `low` to `high`; without elements only if `empty`
        allows it.
        """
        low, high = (low, high) if rank is None else (rank, rank)
        return self.find(
            lambda t: t.dtype == self.float and low <= len(t.shape) <= high and (empty or prod(t.shape) > 0),
            lambda: self.input(self._sizes(int(self.rng.integers(low, high + 1)), empty)),
        )

    def number(self, low: int = 0, high: int = 5) -> Tensor:
        """Return a tensor of floats or integers, possibly without elements."""
        if not self.chance(0.15):
            return self.real(low=low, high=high, empty=True)
        dtype = self.pick(["int64", "int32"])
        return self.find(
            lambda t: t.dtype == dtype and low <= len(t.shape) <= high,
            lambda: self.input(self.sizes(int(self.rng.integers(low, high + 1))), dtype),
        )

    def _sizes(self, rank: int, empty: bool) -> tuple[int, ...]:
        sizes = self.sizes(rank)
        return sizes if empty else tuple(max(size, 1) for size in sizes)

    def like(self, x: Tensor) -> Tensor:
        """Return a tensor of the same type, if possible another one."""
        return self.find(
            lambda t: t.dtype == x.dtype and t.shape == x.shape and (t is not x or self.chance(0.2)),
            lambda: self.input(x.shape, x.dtype),
        )

    def constant(self, values, dtype=None) -> Tensor:
        """Draw an initialiser or a Constant node."""
        array = np.asarray(values, dtype)
        bound = float(np.abs(array).max(initial=0))
        made = Tensor(self.fresh("w"), array.dtype, array.shape, bound, constant=True)
        self.arrays[made.name] = array
        proto = numpy_helper.from_array(array, made.name)
        if self.chance(0.25):
            self.constant_nodes.append(helper.make_node("Constant", [], [made.name], value=proto))
        else:
            self.weights.append(proto)
        return made

    def weight(self, shape, fan_in: int = 1, dtype=None, positive: bool = False) -> Tensor:
        """Draw eighths around ±1, never 0, over the root of `fan_in`; now and then computed, or an input of the graph.
        """
        dtype = np.dtype(dtype or self.float)
        if not positive and self.chance(0.04):
            return self.input(shape, dtype)
        eighths = self.rng.integers(4, 13, shape) if dtype.kind == "f" else 8 * self.rng.integers(1, 4, shape)
        signs = 1 if positive else self.rng.choice([-1, 1], shape)
        values = np.asarray(eighths * signs / 8)
        if dtype.kind == "f":
            values = values / 2 ** round(np.log2(max(fan_in, 1)) / 2)
        made = self.constant(values, dtype)
        return self.op(self.pick(["Identity", "Neg"]), made) if not positive and self.chance(0.04) else made

    @staticmethod
    def attribute_tensor(array: np.ndarray) -> dict[str, onnx.TensorProto]:
        """Return the attribute `value` of an operator."""
        return {"value": numpy_helper.from_array(array)}

    # -- nodes -------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: Tensor | None, bound=None, outputs: int = 1, omitted=(), late=None, **attributes):
        """Add a node and return its tensor, or the list of its tensors if it has several outputs.

        Args:
            kind: the operator, as rules write it: com.microsoft.QuickGelu is an operator of ONNX Runtime.
            bound: of the results (default: see `BOUNDS`).
            omitted: slots of optional outputs that get no name.
            late: attributes that a later opset made inputs, in the order of those inputs; None for an absent one.
        """
        if bound is None:
            bound = BOUNDS.get(kind, max)([t.bound for t in inputs if t is not None])
        if late and self.opset >= BECAME_INPUTS[kind]:
            inputs += tuple(None if values is None else self.constant(values) for values in late.values())
            while inputs[-1] is None:
                inputs = inputs[:-1]
        elif late:
            attributes |= {name: np.asarray(values).tolist() for name, values in late.items() if values is not None}
        names = ["" if slot in omitted else self.fresh("t") for slot in range(outputs)]
        domain, _, name = kind.rpartition(".")
        node = helper.make_node(name, [t.name if t else "" for t in inputs], names, domain=domain, **attributes)
        read = [t for t in inputs if t is not None]
        constant, exact = all(t.constant for t in read), kind in EXACT and all(t.exact for t in read)
        made = [
            Tensor(name, dtype, shape, bound, constant, exact)
            for name, (dtype, shape) in zip(names, self.infer(node, read), strict=True)
        ]
        if len(self.nodes) == MOST_NODES or bound > BOUND or any(prod(t.shape) > LARGEST for t in made):
            raise Misfit
        if any(prod(t.shape) == 0 for t in made) and all(prod(t.shape) > 0 for t in read):
            raise Misfit  # a window or a slice of nothing
        self.nodes.append(node)
        self.tensors += [t for t in made if t.name and not constant]
        return made[0] if outputs == 1 else made

    def infer(self, node: onnx.NodeProto, read: list[Tensor]) -> list[tuple[np.dtype, tuple[int, ...]]]:
        """Return the data type and shape of every output."""
        dtypes = {t.name: helper.np_dtype_to_tensor_dtype(t.dtype) for t in read}
        types = {t.name: helper.make_tensor_type_proto(dtypes[t.name], t.shape) for t in read}
        arrays = {t.name: self.arrays[t.name] for t in read if t.name in self.arrays}
        data = {name: numpy_helper.from_array(array) for name, array in arrays.items() if array.dtype == np.int64}
        opsets = self.opsets([node])
        try:
            schema = defs.get_schema(node.op_type, opsets[-1].version, node.domain)
            result = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets, ir_version=8)
        except (shape_inference.InferenceError, onnx.checker.ValidationError, defs.SchemaError) as error:
            raise Misfit from error
        return [_known(result[name].tensor_type) if name else (np.dtype("V"), ()) for name in node.output]

    def opsets(self, nodes: list[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
        """Return the opsets that the nodes need, with ONNX Runtime's own domain last if they need it."""
        own = any(node.domain == contrib.DOMAIN for node in nodes)
        return [helper.make_opsetid("", self.opset)] + [helper.make_opsetid(contrib.DOMAIN, contrib.VERSION)] * own

    # -- the end -----------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        """Return the model. Its outputs are the tensors that no node reads (half of them, if others are read) and a few
        others.
        """
        read = {name for node in self.nodes for name in node.input}
        spare = {name for node in self.nodes if read & set(node.output) for name in node.output}
        made = [t for t in self.tensors if t not in self.inputs]
        chances = [0.12 if t.name in read else 0.5 if t.name in spare else 1.0 for t in made]
        outputs = [t for t, chance in zip(made, chances, strict=True) if self.chance(chance)] or made[-1:]
        used = read | {t.name for t in outputs}
        graph = helper.make_graph(
            [*(n for n in self.constant_nodes if n.output[0] in used), *self.nodes],
            "random",
            [self.declared(t) for t in self.inputs if t.name in used],
            [self.declared(t) for t in outputs],
            [weight for weight in self.weights if weight.name in used],
            value_info=[self.declared(t) for t in made if t not in outputs] if self.chance(0.2) else [],
        )
        opsets = self.opsets(self.nodes)
        version = helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        return helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="rlflow.zoo")

    @staticmethod
    def declared(tensor: Tensor) -> onnx.ValueInfoProto:
        dtype = helper.np_dtype_to_tensor_dtype(tensor.dtype)
        return helper.make_tensor_value_info(tensor.name, dtype, tensor.shape)


def _known(kind: onnx.TypeProto.Tensor) -> tuple[np.dtype, tuple[int, ...]]:
    sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
    if not kind.HasField("shape") or min(sizes, default=0) < 0:
        raise Misfit
    return helper.tensor_dtype_to_np_dtype(kind.elem_type), tuple(sizes)
