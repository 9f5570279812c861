"""Enumerate the graphs of one world, one operator at a time, and find graphs of equal value.

A *representative* is the first graph with its value, in the order of size, operator and inputs. Operators are added to
representatives only, because any other graph equals an earlier one. Two inputs of an operator may share one variable if
both inputs are outputs of the same operator type, as in x · y + x · z. Equalities that hold only for graphs such as
x + x or x · (x · y) are not searched for.

WORLDS lists the small worlds to enumerate: variables with shapes, and operators, including TASO's operators (Jia et
al., SOSP 2019). Four variables of one shape suffice to state that an operator is associative and commutative. With
fewer variables, many special cases of these laws would be found instead.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import NamedTuple

import numpy as np

from rlflow.proving.generator.operators import COMMUTATIVE, Label, Misfit, Node, Term, label, outputs, variables

SAMPLES = 4  # number of random values of each variable
LARGEST = 4  # The values of variables are integers from -LARGEST to LARGEST.
CHUNK = 1 << 16  # largest number of graphs that are evaluated at once
MIN_SIZE, MAX_SIZE = 2, 4  # limits of new axis sizes that an operator makes, as in TASO; size 1 broadcasts
UNARY = frozenset(("Neg", "Relu", "Split", "Transpose", "ReduceSum", "ReduceMean", "MaxPool", "AveragePool", "Pad"))


@dataclass(frozen=True)
class World:
    """The variables, with shapes, and the operators, with attributes, whose graphs are enumerated.

    Exactly the variables named in `operators.SCALARS` have rank 0, because equalities that hold only for scalars
    recognise scalars by name.

    Attributes:
      name: the name of the world.
      variables: (name, shape) pairs.
      labels: the operators.
    """

    name: str
    variables: tuple[tuple[str, tuple[int, ...]], ...]
    labels: tuple[Label, ...]

    def inputs(self, sample: int = 0) -> dict[str, np.ndarray]:
        """Return random int64 values [SAMPLES, *shape] of every variable.

        Args:
          sample: the seed.
        """
        rng = np.random.default_rng(sample)
        return {v: rng.integers(-LARGEST, LARGEST + 1, (SAMPLES, *shape)) for v, shape in self.variables}

    def real_inputs(self) -> dict[str, np.ndarray]:
        """Return random floats [16, *shape] for every variable; they refute laws that hold for integers only."""
        rng = np.random.default_rng(0)
        return {v: rng.uniform(-1, 1, (16, *shape)) for v, shape in self.variables}


class Batch(NamedTuple):
    """Graphs with the same root operator and the same input shapes.

    Attributes:
      label: the position of the root operator in the world's labels.
      shapes: for each input of the operator, the position of its shape in `Graphs.shapes`.
      inputs: int64 [graphs, arity], the positions of the inputs in `Graphs.terms`.
    """

    label: int
    shapes: tuple[int, ...]
    inputs: np.ndarray  # [graphs, arity]


def hashed(values: np.ndarray) -> np.ndarray:
    """Return a hash of the value of each graph, uint64 [graphs], from values [graphs, samples, *shape]."""
    shape = values.shape[1:]
    rng = np.random.default_rng((len(shape), *shape))
    factors = rng.integers(1, 2**63, int(np.prod(shape)) + 1, np.uint64) * np.uint64(2) + np.uint64(1)
    return values.reshape(len(values), -1).astype(np.uint64) @ factors[1:] + factors[0]


def _proper(label: Label, shapes: list[tuple[int, ...]]) -> bool:
    """Return True if an operator takes images and kernels as exported models do.

    Images are the tensors of rank 4 with batch size 1, kernels the other tensors of rank 4. Conv takes an image and a
    kernel, Relu and pools take images, and Pad and Concat along axis 0 take kernels.

    Args:
      label: the operator.
      shapes: the shapes of the operator's inputs.
    """
    images = [shape[0] == 1 for shape in shapes if len(shape) == 4]
    if label.op == "Conv":
        return images == [True, False]
    if label.op == "Pad" or (label.op == "Concat" and label.get("axis") == 0):
        return not any(images)
    return all(images) or label.op not in ("Relu", "MaxPool", "AveragePool")


def _parts(result: frozenset[int]) -> Iterator[frozenset[int]]:
    """Yield the non-empty subsets of a set, small ones first."""
    for count in range(1, len(result) + 1):
        yield from map(frozenset, combinations(sorted(result), count))


class Graphs:
    """The representatives of a world, in the order in which they were found.

    Attributes:
      terms: the term of each representative.
      hashes: the hash of each representative's value, uint64.
      shapes: the distinct shapes of the representatives' values.
      values: for each shape, the values of its representatives, int64 [graphs, SAMPLES, *shape].
      members: for each shape, the positions of its representatives in `terms`.
    """

    def __init__(self, world: World):
        self.world = world
        self.terms: list[Term] = []
        self.hashes = np.zeros(0, np.uint64)
        self.shapes: list[tuple[int, ...]] = []
        self.values: list[np.ndarray] = []
        self.members: list[np.ndarray] = []
        self._operators: dict[tuple, int] = {}  # (label, inputs) → number
        self._sets: list[frozenset[int]] = []
        self._variables = np.zeros(0, np.int64)  # variables of each representative, one bit each
        self._splits = np.zeros(0, np.int32)  # per representative: number of its root Split, else -1
        self._kinds = np.zeros(0, np.int32)  # per representative: number of its root's type, -1 for variables
        inputs = world.inputs()
        order = sorted(inputs, key=lambda name: inputs[name].shape)
        self._extend(order, [inputs[name] for name in order], [frozenset()] * len(order))

    def _extend(self, terms: list[Term], values: list[np.ndarray], sets: list[frozenset]) -> None:
        """Add representatives.

        Args:
          terms: the new representatives.
          values: their values [SAMPLES, *shape].
          sets: their sets of operators, as numbers of `self._operators`.
        """
        bits = {v: 1 << k for k, (v, _) in enumerate(self.world.variables)}
        masks = [sum(bits[v] for v in variables(term)) for term in terms]
        splits = [self._operators[t[:2]] if isinstance(t, Node) and t.label.op == "Split" else -1 for t in terms]
        self._variables = np.append(self._variables, np.array(masks, np.int64))
        self._splits = np.append(self._splits, np.array(splits, np.int32))
        ops = list(dict.fromkeys(result.op for result in self.world.labels))
        kinds = [ops.index(term.label.op) if isinstance(term, Node) else -1 for term in terms]
        self._kinds = np.append(self._kinds, np.array(kinds, np.int32))
        by_shape = defaultdict(list)
        for k, array in enumerate(values):
            by_shape[array.shape[1:]].append(k)
        hashes = np.zeros(len(terms), np.uint64)
        for shape, rows in sorted(by_shape.items()):
            if shape not in self.shapes:
                self.shapes.append(shape)
                self.values.append(np.zeros((0, SAMPLES, *shape), np.int64))
                self.members.append(np.zeros(0, np.int64))
            k = self.shapes.index(shape)
            stacked = np.stack([values[row] for row in rows])
            hashes[rows] = hashed(stacked)
            self.values[k] = np.concatenate([self.values[k], stacked])
            self.members[k] = np.concatenate([self.members[k], np.array(rows) + len(self.terms)])
        self.hashes = np.concatenate([self.hashes, hashes])
        self.terms += terms
        self._sets += sets
        self._sizes = np.array([len(result) for result in self._sets], np.int32)
        self._orders = None
        self._positions = np.zeros(len(self.terms), np.int64)  # position of each representative within its shape
        for members in self.members:
            self._positions[members] = np.arange(len(members))

    # -- candidates for the next size --------------------------------------------------------------

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all graphs of `size` operators whose inputs at the root are representatives."""
        unary = [members[self._sizes[members] == size - 1][:, None] for members in self.members]
        binary = dict(self._pairs(size - 1))
        for number, operator in enumerate(self.world.labels):
            positions = product(range(len(self.shapes)), repeat=1 if operator.op in UNARY else 2)
            for shapes in positions:
                if not self._fits(operator, shapes):
                    continue
                rows = unary[shapes[0]] if len(shapes) == 1 else binary.get(shapes, np.zeros((0, 2), np.int64))
                if operator.op in COMMUTATIVE:
                    rows = rows[rows[:, 0] <= rows[:, 1]]
                for start in range(0, len(rows), CHUNK):
                    yield Batch(number, shapes, rows[start : start + CHUNK])

    def _fits(self, label: Label, shapes: tuple[int, ...]) -> bool:
        """Return True if an operator takes inputs of these shapes and its outputs have allowed sizes.

        Args:
          label: the operator.
          shapes: for each input, the position of its shape in `self.shapes`.
        """
        sizes = {self.shapes[k] for k in shapes}
        if not _proper(label, [self.shapes[k] for k in shapes]):
            return False
        if label.op in COMMUTATIVE and len(sizes - {()}) > 1:
            return False  # Operands of sums and products have one shape, or one is a scalar.
        try:
            result = outputs(label, [self.values[k][0] for k in shapes])
        except Misfit:
            return False
        known = {n for _, shape in self.world.variables for n in shape}
        sizes = {n for array in result for n in array.shape[1:]}
        return all(MIN_SIZE <= n <= MAX_SIZE or n in known for n in sizes)

    def _pairs(self, size: int) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
        """Yield all pairs of representatives that have `size` distinct operators together, grouped by shapes.

        Yields:
          (the positions of the two shapes in `self.shapes`, int64 [pairs, 2] positions of representatives).
        """
        shape_of = np.zeros(len(self.terms), np.int32)
        for k, members in enumerate(self.members):
            shape_of[members] = k
        pairs = np.concatenate([self._apart(size), self._sharing(size)])
        keys = shape_of[pairs[:, 0]].astype(np.int64) * len(self.shapes) + shape_of[pairs[:, 1]]
        order = np.lexsort((pairs[:, 1], pairs[:, 0], keys))
        pairs, keys = pairs[order], keys[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        for start, result in zip(starts, np.split(pairs, starts[1:]), strict=False):
            yield divmod(int(keys[start]), len(self.shapes)), result

    def _sensible(self, pairs: np.ndarray) -> np.ndarray:
        """Return the pairs of representatives that may be the two inputs of one operator.

        The two inputs share no variable. They may share one if both are outputs of the same operator type, and more if
        they are two outputs of one Split.

        Args:
          pairs: int64 [pairs, 2], positions of representatives.
        """
        one, other = self._variables[pairs].T
        kinds, splits = self._kinds[pairs].T, self._splits[pairs].T
        common = one & other
        alike = (common & (common - 1) == 0) & (one != other) & (kinds[0] == kinds[1]) & (kinds[0] >= 0)
        parts = (splits[0] == splits[1]) & (splits[0] >= 0) & (pairs[:, 0] != pairs[:, 1])
        return pairs[(common == 0) | alike | parts]

    def _apart(self, size: int) -> np.ndarray:
        """Return the pairs of representatives with `size` operators together that share no operator."""
        result = [np.zeros((0, 2), np.int64)]
        for left in range(size + 1):
            a, b = np.flatnonzero(self._sizes == left), np.flatnonzero(self._sizes == size - left)
            pairs = self._sensible(np.stack([np.repeat(a, len(b)), np.tile(b, len(a))], 1))
            if 0 < left < size:
                pairs = pairs[self._shared(pairs) == 0]
            result.append(pairs)
        return np.concatenate(result)

    def _sharing(self, size: int) -> np.ndarray:
        """Return the pairs of representatives with `size` distinct operators together that share operators."""
        exactly, holding = defaultdict(list), defaultdict(list)  # operators → representatives
        for k, result in enumerate(self._sets):
            exactly[result].append(k)
            for part in _parts(result):
                holding[part, len(result)].append(k)
        blocks = []
        for result, members in exactly.items():
            for part in _parts(result):
                if len(result) == size:
                    blocks.append((members, exactly.get(part, [])))
                elif part != result:
                    blocks.append((members, holding[part, size - len(result) + len(part)]))
        keys = [np.zeros(0, np.int64)]
        for members, others in blocks:
            if others:
                a, b = np.array(members, np.int64), np.array(others, np.int64)
                keys += [np.add.outer(a * len(self.terms), b).ravel(), np.add.outer(b * len(self.terms), a).ravel()]
        unique = np.unique(np.concatenate(keys))
        pairs = self._sensible(np.stack([unique // len(self.terms), unique % len(self.terms)], 1))
        return pairs[self._sizes[pairs].sum(1) - self._shared(pairs) == size]

    def _shared(self, pairs: np.ndarray) -> np.ndarray:
        """Return, for each pair of representatives, the number of operators that both contain, int32 [pairs]."""
        table = np.full((len(self.terms), max(1, int(self._sizes.max()))), -1, np.int32)
        for k, result in enumerate(self._sets):
            table[k, : len(result)] = sorted(result)
        shared = np.zeros(len(pairs), np.int32)
        for i, j in product(range(table.shape[1]), repeat=2):
            a = table[pairs[:, 0], i]
            shared += (a == table[pairs[:, 1], j]) & (a >= 0)
        return shared

    def canonical(self, batch: Batch) -> np.ndarray:
        """Return bool [graphs], True if the variables of each shape occur in the graph in the world's order.

        Other graphs are copies of such graphs with other variables.
        """
        if self._orders is None:
            self._orders = self._variable_orders()
        codes, table = self._orders
        result = codes[batch.inputs]
        one, other = result[:, 0], result[:, -1]
        commutes = self.world.labels[batch.label].op in COMMUTATIVE
        return table[one, other] | table[other, one] if commutes else table[one, other]

    def _variable_orders(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (codes, table) for `canonical`.

        The code of a representative is the number of the order in which its variables occur. The table has True at
        (code, other code) if a graph with inputs of these codes has its variables in the world's order.
        """
        orders: dict[tuple, int] = {}
        codes = np.array([orders.setdefault(variables(term), len(orders)) for term in self.terms])
        shapes = dict(self.world.variables)
        by_shape = [[v for v in shapes if shapes[v] == shape] for shape in dict.fromkeys(shapes.values())]

        def is_canonical(order: tuple[str, ...]) -> bool:
            met = [[v for v in order if v in names] for names in by_shape]
            return all(result == names[: len(result)] for result, names in zip(met, by_shape, strict=True))

        table = [[is_canonical(tuple(dict.fromkeys(one + other))) for other in orders] for one in orders]
        return codes, np.array(table)

    def representative(self, value: np.ndarray) -> Term | None:
        """Return the representative that has the value [SAMPLES, *shape] for the inputs of the world, or None."""
        result = np.flatnonzero(self.hashes == hashed(value[None])[0])
        return self.terms[result[0]] if len(result) else None

    # -- evaluation --------------------------------------------------------------------------------

    def hashes_of(self, batch: Batch) -> np.ndarray:
        """Return the hashes of all outputs of the graphs of a batch, uint64 [graphs, outputs]."""
        return np.stack([hashed(array) for array in self._outputs(batch)], 1)

    def _outputs(self, batch: Batch) -> list[np.ndarray]:
        """Return one array [graphs, SAMPLES, *shape] for every output of a batch's root operator."""
        arrays = [self.values[k][self._positions[batch.inputs[:, i]]] for i, k in enumerate(batch.shapes)]
        n = len(batch.inputs)
        result = outputs(self.world.labels[batch.label], [a.reshape(n * SAMPLES, *a.shape[2:]) for a in arrays])
        return [array.reshape(n, SAMPLES, *array.shape[1:]) for array in result]

    def term(self, batch: Batch, row: int, slot: int) -> Node:
        """Return output `slot` of one graph of a batch as a term."""
        inputs = tuple(self.terms[k] for k in batch.inputs[row])
        return Node(self.world.labels[batch.label], inputs, int(slot))

    def grow(self, new: list[tuple[Batch, np.ndarray]]) -> None:
        """Add graphs with new values to the representatives.

        Args:
          new: (batch, int64 [n, 2]) pairs; each row is (graph in the batch, output of its root operator).
        """
        terms, values, sets = [], [], []
        for batch, positions in new:
            rows = np.unique(positions[:, 0])
            result = self._outputs(batch._replace(inputs=batch.inputs[rows]))
            for row, slot in positions:
                term = self.term(batch, row, slot)
                number = self._operators.setdefault(term[:2], len(self._operators))
                terms.append(term)
                values.append(result[slot][np.searchsorted(rows, row)])
                sets.append(frozenset((number,)).union(*(self._sets[k] for k in batch.inputs[row])))
        self._extend(terms, values, sets)


POINTWISE = (label("Relu"), label("Add"), label("Mul"))
TRANSPOSE = label("Transpose", perm=(1, 0))
CONCATS = tuple(label("Concat", axis=axis) for axis in (0, 1))
SPLITS = tuple(label("Split", axis=axis) for axis in (0, 1))
PADS = (1, 1, 1, 1)
POOLS = tuple(label(op, kernel_shape=(3, 3), pads=PADS) for op in ("MaxPool", "AveragePool"))
IMAGE, KERNEL, GROUPED, POINT = (1, 2, 3, 3), (2, 2, 3, 3), (2, 1, 3, 3), (2, 2, 1, 1)


def tensors(**shapes: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return (name, shape) pairs: each letter of a keyword names a variable, and the argument is its shape.

    For example, `tensors(ab=(2, 3))` returns `(("a", (2, 3)), ("b", (2, 3)))`.
    """
    return tuple((name, shape) for names, shape in shapes.items() for name in names)


WORLDS = (
    World(
        "permutations",
        tensors(ab=(2, 3, 4), c=(2, 4)),
        tuple(label("Transpose", perm=perm) for rank in (2, 3) for perm in permutations(range(rank))),
    ),
    World(
        "matrices",
        tensors(abcd=(2, 2), ef=(2, 4), g=(4, 2)),
        (*POINTWISE, label("MatMul"), TRANSPOSE, *CONCATS, *SPLITS),
    ),
    World("numbers", tensors(abcd=(2, 2), kl=()), (*POINTWISE, label("MatMul"), TRANSPOSE, *CONCATS)),
    World(
        "convolutions",
        tensors(abcd=IMAGE, uvw=KERNEL, k=()),
        (*POINTWISE, label("Conv", pads=PADS), *CONCATS, SPLITS[1], *POOLS),
    ),
    World(
        "grouped",
        tensors(abcd=IMAGE, uvw=GROUPED),
        (*POINTWISE, *(label("Conv", pads=PADS, group=group) for group in (2, 4)), *CONCATS, SPLITS[1]),
    ),
    World(
        "small kernels",
        tensors(abcd=IMAGE, uv=POINT, w=KERNEL),
        (*POINTWISE, label("Conv"), label("Conv", pads=PADS), label("Pad"), *CONCATS, SPLITS[1], POOLS[1]),
    ),
)
