"""A random ONNX graph under construction, which tracks the type, shape and largest value of every tensor.

A motif (benchmarks.random_models.motifs) is a function that adds nodes to a `Sketch` by `Sketch.op`. If a shape, a size
or a bound does not fit, `op` raises `Misfit`, and the sketch removes all nodes of the motif.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from rlflow.graph import contrib
from rlflow.graph.opsets import MOVED, for_inference

OPSETS = (*range(9, 24), 17, 18, 20, 20, 21, 21, 23, 23, 23, 23, 23)  # opsets with more operators are drawn more often
SIZES = (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 6, 8)
LARGEST = 2048  # largest number of elements of a tensor
MOST_NODES = 25  # largest number of nodes of a model, except Constant nodes
BOUND = 256.0  # largest allowed absolute value of an element, so that sums of products stay in float16's range
INPUT_BOUND = 2.0  # largest absolute value of the random inputs
# Operator → first opset in which its former attributes are inputs.
BECAME_INPUTS = {op: moved.version for op, moved in MOVED.items()} | {"Dropout": 12, "TopK": 10}
# Operator → function from the bounds of the operands to the bound of the result; the default is max.
BOUNDS = {"Add": sum, "Sub": sum, "Sum": sum, "Mul": prod}
# Operators that round no element: they choose, copy, move or negate elements.
EXACT = frozenset((
    "Relu", "Neg", "Abs", "Max", "Min", "Identity", "Dropout", "Clip", "Concat", "Split", "Transpose", "Reshape",
    "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand", "Pad", "MaxPool", "TopK",
))  # fmt: skip


class Misfit(Exception):
    """Raised in a motif if shapes, sizes or bounds do not fit, or if an operator does not exist in the opset."""


class Tensor(NamedTuple):
    """A tensor of a sketch.

    Attributes:
        name: name in the ONNX graph.
        dtype: data type.
        shape: shape.
        bound: largest absolute value that an element can have.
        constant: True if the tensor depends on no input of the graph.
        exact: True if only operators of EXACT computed the tensor, so no rewrite can change how its elements are
            rounded. A comparison of such elements has a certain result.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    bound: float
    constant: bool = False
    exact: bool = True


class Sketch:
    """A random graph under construction.

    Attributes:
        symbols: symbol → size, for sizes that become symbols later. Half of all drawn sizes are sizes of symbols.
        rng: the random generator.
        opset: opset of the model.
        float: data type of all floating-point inputs and weights.
        nodes: the nodes, except Constant nodes.
        constant_nodes: the Constant nodes.
        weights: the initialisers.
        inputs: the inputs of the graph.
        tensors: the inputs and results that a motif may read, oldest first.
        arrays: tensor name → its value, for constants and for tensors that are computed from sizes.
        names: number of names that have been given.
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
        """Call `motif(self)`; if it raises Misfit, remove all nodes, constants and inputs that it has added."""
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
        """Return a random shape of small sizes.

        A fifth of the sizes are 1, and 3.5 % of the shapes have a size 0. In 12 % of the shapes all sizes are equal, so
        that exchanged axes do not change the shape.
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
        """Return a random existing tensor, the latest ones with the highest probability, or a new input.

        Args:
            fits: predicate for the existing tensors that may be returned.
            make: function that adds the new input; called if no tensor fits, and otherwise with small probability.
        """
        fitting = [t for t in self.tensors if fits(t)]
        if not fitting or self.chance(0.15 if len(self.inputs) < 4 else 0.03):
            return make()
        return fitting[-min(int(self.rng.geometric(0.3)), len(fitting))]

    def real(self, rank: int | None = None, low: int = 0, high: int = 5, empty: bool = False) -> Tensor:
        """Return an existing tensor or a new input of the floating-point type of the sketch.

        Args:
            rank: the rank; None for a rank from `low` to `high`.
            low, high: smallest and largest rank.
            empty: True if the tensor may have no elements.
        """
        low, high = (low, high) if rank is None else (rank, rank)
        return self.find(
            lambda t: t.dtype == self.float and low <= len(t.shape) <= high and (empty or prod(t.shape) > 0),
            lambda: self.input(self._sizes(int(self.rng.integers(low, high + 1)), empty)),
        )

    def number(self, low: int = 0, high: int = 5) -> Tensor:
        """Return an existing tensor or a new input: floating point, or with probability 0.15 int32 or int64.

        The rank is from `low` to `high`, and the tensor may have no elements.
        """
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
        """Return an existing tensor or a new input of the data type and shape of x, mostly different from x."""
        return self.find(
            lambda t: t.dtype == x.dtype and t.shape == x.shape and (t is not x or self.chance(0.2)),
            lambda: self.input(x.shape, x.dtype),
        )

    def constant(self, values, dtype=None) -> Tensor:
        """Add a constant, as an initialiser or with probability 0.25 as a Constant node.

        Args:
            values: the elements.
            dtype: data type; None for NumPy's data type of the values.
        """
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
        """Add a weight with random elements other than 0 and return its tensor.

        Floating-point elements are ±4/8 to ±12/8, divided by a power of two near the square root of `fan_in`. Integers
        are ±1 to ±3. Seldom the weight is an input of the graph instead, or the Identity or Neg of a constant.

        Args:
            shape: shape of the weight.
            fan_in: number of products in a sum that the weight takes part in.
            dtype: data type; None for the floating-point type of the sketch.
            positive: True for positive elements only; then the weight is always a constant.
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
        """Return {"value": array as TensorProto}, the attribute of Constant and ConstantOfShape."""
        return {"value": numpy_helper.from_array(array)}

    # -- nodes -------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: Tensor | None, bound=None, outputs: int = 1, omitted=(), late=None, **attributes):
        """Add a node and return its tensor, or the list of its tensors if it has several outputs.

        Args:
            kind: the operator, as rules write it, for instance "Add" or "com.microsoft.QuickGelu".
            inputs: the operands; None for an absent optional input.
            bound: largest absolute value of the results; None to compute it by BOUNDS from the bounds of the operands.
            outputs: number of outputs.
            omitted: indices of optional outputs that are left out.
            late: name → value of parameters that are attributes in early opsets and inputs in later opsets (see
                BECAME_INPUTS), in the order of these inputs. The value None leaves a parameter out.
            attributes: attributes of the node.

        Raises:
            Misfit: shape inference fails, or the node, a size or a bound exceeds MOST_NODES, LARGEST or BOUND.
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
            raise Misfit  # a window or a slice without any element
        self.nodes.append(node)
        self.tensors += [t for t in made if t.name and not constant]
        return made[0] if outputs == 1 else made

    def infer(self, node: onnx.NodeProto, read: list[Tensor]) -> list[tuple[np.dtype, tuple[int, ...]]]:
        """Return the data type and shape of every output of a node, by ONNX's shape inference.

        An omitted output has the data type V and the shape ().

        Args:
            node: the node.
            read: the tensors that the node reads.

        Raises:
            Misfit: the inference fails, or a shape is not fully known.
        """
        dtypes = {t.name: helper.np_dtype_to_tensor_dtype(t.dtype) for t in read}
        types = {t.name: helper.make_tensor_type_proto(dtypes[t.name], t.shape) for t in read}
        arrays = {t.name: self.arrays[t.name] for t in read if t.name in self.arrays}
        data = {name: numpy_helper.from_array(array) for name, array in arrays.items() if array.dtype == np.int64}
        opsets = self.opsets([node])
        try:
            node = for_inference(node)
            schema = defs.get_schema(node.op_type, opsets[-1].version, node.domain)
            result = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets, ir_version=8)
        except (shape_inference.InferenceError, onnx.checker.ValidationError, defs.SchemaError) as error:
            raise Misfit from error
        return [_known(result[name].tensor_type) if name else (np.dtype("V"), ()) for name in node.output]

    def opsets(self, nodes: list[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
        """Return the opset imports for the nodes: ONNX, and then com.microsoft if a node is of this domain."""
        own = any(node.domain == contrib.DOMAIN for node in nodes)
        return [helper.make_opsetid("", self.opset)] + [helper.make_opsetid(contrib.DOMAIN, contrib.VERSION)] * own

    # -- the end -----------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        """Return the model, without unused inputs and constants.

        Its outputs are the results that no node reads and, with probability 0.12 each, results that a node reads. If a
        node has a result that is read, an unread result of this node is an output with probability 0.5 only.
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
