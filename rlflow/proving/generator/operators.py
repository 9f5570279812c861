"""Define the terms of the enumeration, their exact values, and rules before they are written (`Pattern`).

A term is a graph of ONNX operators. Its values are residues modulo a prime, centred around 0. Sums, products and means
are therefore exact, and small integers keep their order, which Relu and MaxPool need. Every array has a leading axis of
samples: int64 [samples, *shape]. A `Pattern` is one direction of an equality with its conditions. Its attributes are
expressions of the rule language (`Named`).
"""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

PRIME = 2**31 - 1  # The product of two residues fits into int64.
COMMUTATIVE = frozenset(("Add", "Mul"))
SCALARS = frozenset("kl")  # names of the variables of rank 0


class Misfit(Exception):
    """Raised if the inputs of an operator do not fit; `op` is the type of the operator."""

    op = ""


class Label(NamedTuple):
    """An operator type with attributes.

    Attributes:
      op: the operator type.
      attributes: (name, value) pairs. For Split, `parts` holds the sizes, which are an input in ONNX; without it, the
        parts are equal halves.
    """

    op: str
    attributes: tuple[tuple[str, Any], ...] = ()

    def get(self, name: str, default=None):
        """Return the value of an attribute, or a default if it is absent."""
        return next((value for key, value in self.attributes if key == name), default)


class Node(NamedTuple):
    """An output of an operator. A term is a Node or the name of a variable.

    Attributes:
      label: the operator type with attributes.
      inputs: the input terms.
      slot: the position of the output among the operator's outputs.
    """

    label: Label
    inputs: tuple
    slot: int = 0


Term = Node | str


def label(op: str, **attributes) -> Label:
    """Return the Label of an operator type with the given attributes, sorted by name."""
    return Label(op, tuple(sorted(attributes.items())))


def operators(*terms: Term) -> frozenset[tuple]:
    """Return the distinct operators of a graph with these outputs, as (label, inputs) pairs."""
    result: set[tuple] = set()
    for term in terms:
        if isinstance(term, Node):
            result |= {term[:2]} | operators(*term.inputs)
    return frozenset(result)


def variables(*terms: Term) -> tuple[str, ...]:
    """Return the names of the variables in some terms, in the order of their first occurrence."""
    result: dict[str, None] = {}
    for term in terms:
        result |= {term: None} if isinstance(term, str) else dict.fromkeys(variables(*term.inputs))
    return tuple(result)


def rename(term: Term, names: dict[str, Term]) -> Term:
    """Return a term in which variables are replaced.

    Args:
      term: the term.
      names: variable → new variable or term; variables that are not listed stay.
    """
    if isinstance(term, str):
        return names.get(term, term)
    return term._replace(inputs=tuple(rename(child, names) for child in term.inputs))


def centred(array: np.ndarray) -> np.ndarray:
    """Return integers as residues modulo PRIME, centred around 0; a float array is returned unchanged."""
    if array.dtype.kind == "f":
        return array
    array = array % PRIME
    return np.where(array > PRIME // 2, array - PRIME, array)


def value(term: Term, scope: dict[str, np.ndarray], known: dict | None = None) -> np.ndarray:
    """Return the value of a term, an array [samples, *shape]; each operator is computed once.

    Args:
      term: the term.
      scope: the value [samples, *shape] of each variable.
      known: a cache of the outputs of operators; None for an empty one.

    Raises:
      Misfit: if the inputs of an operator do not fit.
    """
    known = {} if known is None else known
    if isinstance(term, str):
        return scope[term]
    if term[:2] not in known:
        known[term[:2]] = outputs(term.label, [value(child, scope, known) for child in term.inputs])
    result = known[term[:2]]
    if term.slot >= len(result):
        raise Misfit(f"{term.label.op} has no output {term.slot}")
    return result[term.slot]


def outputs(label: Label, inputs: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the outputs of an operator, arrays [samples, *shape].

    Args:
      label: the operator type with attributes.
      inputs: arrays [samples, *shape].

    Raises:
      Misfit: if the inputs do not fit.
    """
    try:
        return _OPERATORS[label.op](label, *inputs)
    except Misfit as misfit:
        misfit.op = label.op
        raise


# -- operators -------------------------------------------------------------------------------------


def _aligned(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both arrays with equal ranks: new axes of size 1 follow the axis of samples of the smaller array.

    Raises:
      Misfit: if the shapes do not broadcast.
    """
    rank = max(a.ndim, b.ndim)
    a, b = (x.reshape(x.shape[:1] + (1,) * (rank - x.ndim) + x.shape[1:]) for x in (a, b))
    if any(m != n and 1 not in (m, n) for m, n in zip(a.shape, b.shape, strict=True)):
        raise Misfit("the shapes do not broadcast")
    return a, b


def _pointwise(function: Callable) -> Callable:
    def run(label, a, b):
        a, b = _aligned(a, b)
        return (centred(function(a, b)),)

    return run


def _matmul(label, a, b):
    if a.ndim < 2 or b.ndim < 2:
        raise Misfit("a factor is a scalar")
    vectors = [axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 2]
    a, b = a[:, None] if a.ndim == 2 else a, b[:, :, None] if b.ndim == 2 else b
    if a.shape[-1] != b.shape[-2]:
        raise Misfit("the inner sizes differ")
    a, b = a[..., None], b[..., None, :, :]  # [*, m, k, 1] and [*, 1, k, n]
    a, b = _aligned(a, b)
    total = sum(centred(a[..., k, :] * b[..., k, :]) for k in range(a.shape[-2]))
    total = centred(np.asarray(total)) if a.shape[-2] else np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int64)
    return (total.squeeze(tuple(vectors)) if vectors else total,)


def _axis(label: Label, array: np.ndarray) -> int:
    """Return the axis of `array` for the attribute `axis`; it is one larger, because axis 0 counts the samples.

    Raises:
      Misfit: if the array has no such axis.
    """
    axis = label.get("axis")
    if not 0 <= axis < array.ndim - 1:
        raise Misfit(f"no axis {axis}")
    return axis + 1


def _concat(label, *parts):
    axis = _axis(label, parts[0])
    around = {(p.shape[:axis], p.shape[axis + 1 :], p.ndim) for p in parts}
    if len(around) > 1:
        raise Misfit("the parts differ in other axes")
    return (np.concatenate(parts, axis),)


def _split(label, x):
    axis = _axis(label, x)
    parts = label.get("parts", (x.shape[axis] // 2,) * 2)
    if sum(parts) != x.shape[axis] or min(parts) < 1:
        raise Misfit("the sizes do not add up")
    return tuple(np.split(x, np.cumsum(parts[:-1]), axis))


def _transpose(label, x):
    perm = label.get("perm")
    if sorted(perm) != list(range(x.ndim - 1)):
        raise Misfit("no such permutation")
    return (x.transpose(0, *(p + 1 for p in perm)),)


def _reduce(mean: bool) -> Callable:
    def run(label, x):
        axis = _axis(label, x)
        total = centred(x.sum(axis, keepdims=True))
        return (_divided(total, np.array(x.shape[axis])) if mean else total,)

    return run


def _windows(label: Label, spatial: tuple[int, ...], kernel: tuple[int, ...]):
    """Return the pads and positions of the windows of a convolution or pool.

    Args:
      label: the operator type with attributes.
      spatial: the spatial sizes of the input.
      kernel: the spatial sizes of the kernel.

    Returns:
      (pads, positions): the pads are (begin, end) pairs, and the positions map each kernel index to one slice per
      spatial axis, the positions that all windows read there in the padded input.

    Raises:
      Misfit: if no window fits, a pad is negative, or the attributes are for another number of axes.
    """
    n = len(spatial)
    pads = label.get("pads", (0,) * 2 * n)
    strides, dilations = label.get("strides", (1,) * n), label.get("dilations", (1,) * n)
    if not len(kernel) == len(strides) == len(dilations) == len(pads) // 2 == n > 0:
        raise Misfit("the attributes are for another number of axes")
    counts = [
        (size + low + high - dilation * (k - 1) - 1) // stride + 1
        for size, low, high, dilation, k, stride in zip(
            spatial, pads[:n], pads[n:], dilations, kernel, strides, strict=True
        )
    ]
    if min(counts) < 1 or min(pads) < 0:
        raise Misfit("no window fits")
    return list(zip(pads[:n], pads[n:], strict=True)), {
        offset: tuple(
            slice(o * d, o * d + s * (count - 1) + 1, s)
            for o, d, s, count in zip(offset, dilations, strides, counts, strict=True)
        )
        for offset in product(*map(range, kernel))
    }


def _conv(label, x, w):
    group = label.get("group", 1)
    if x.ndim < 4 or w.ndim != x.ndim or x.shape[2] != w.shape[2] * group or w.shape[1] % group:
        raise Misfit("the weight does not fit")
    pads, positions = _windows(label, x.shape[3:], w.shape[3:])
    x = np.pad(x, [(0, 0)] * 3 + pads)
    per, given = w.shape[1] // group, w.shape[2]
    wide = (slice(None), None, slice(None), *(None,) * len(pads))
    result = []
    for g in range(group):
        total = 0
        for c, (offset, position) in product(range(given), positions.items()):
            weight = w[(slice(None), slice(g * per, (g + 1) * per), c, *offset)]
            total = total + centred(weight[wide] * x[(slice(None), slice(None), g * given + c, *position)][:, :, None])
        result.append(centred(total))
    return (np.concatenate(result, 2),)


def _pool(mean: bool) -> Callable:
    def run(label, x):
        if x.ndim < 4:
            raise Misfit("the input has no positions")
        pads, positions = _windows(label, x.shape[3:], label.get("kernel_shape"))
        if any(max(pair) >= k for pair, k in zip(pads, label.get("kernel_shape"), strict=True)):
            raise Misfit("the padding is as wide as a window")
        lowest = 0 if mean else -PRIME
        padded = np.pad(x, [(0, 0)] * 3 + pads, constant_values=lowest)
        parts = [padded[(..., *position)] for position in positions.values()]
        if not mean:
            return (np.max(parts, axis=0),)
        inside = np.pad(np.ones(x.shape[3:], np.int64), pads, constant_values=label.get("count_include_pad", 0))
        return (_divided(centred(sum(parts)), sum(inside[position] for position in positions.values())),)

    return run


def _divided(total: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the quotient of an array by counts: modulo PRIME for integers, and as floats for floats."""
    return total / counts if total.dtype.kind == "f" else centred(total * _inverses()[counts])


@cache
def _inverses() -> np.ndarray:
    """Return an int64 array whose entry n is the inverse of n modulo PRIME, for 1 ≤ n < 200; entry 0 is unused."""
    return np.array([0] + [pow(n, -1, PRIME) for n in range(1, 200)])


def _widen(label, w):
    """Define Pad, which adds one zero before and after each spatial axis of a kernel."""
    if w.ndim < 4:
        raise Misfit("no kernel")
    return (np.pad(w, [(0, 0)] * 3 + [(1, 1)] * (w.ndim - 3)),)


_OPERATORS: dict[str, Callable] = {
    "Add": _pointwise(np.add),
    "Mul": _pointwise(np.multiply),
    "Sub": _pointwise(np.subtract),
    "Neg": lambda label, x: (-x,),
    "Relu": lambda label, x: (np.maximum(x, 0),),
    "MatMul": _matmul,
    "Concat": _concat,
    "Split": _split,
    "Transpose": _transpose,
    "ReduceSum": _reduce(mean=False),
    "ReduceMean": _reduce(mean=True),
    "Conv": _conv,
    "MaxPool": _pool(mean=False),
    "AveragePool": _pool(mean=True),
    "Pad": _widen,
}


class Named(NamedTuple):
    """The value of an attribute as an expression of the rule language."""

    text: str


class Pattern(NamedTuple):
    """One direction of an equality, a rule before it is written. The attributes of its labels are `Named`.

    Attributes:
      source: the outputs of the side to match.
      target: the outputs of the replacement, in the order of the source's outputs.
      conditions: conditions in the rule language.
      constants: the variables that must be weights so that the rewrite is useful (`paying`).
      ranks: (variable, rank) pairs, with the ranks in the world of the equality.
      stricter: alternatives of further conditions to try if the rule is not proved for all shapes.
    """

    source: tuple[Node, ...]
    target: tuple[Term, ...]
    conditions: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()
    stricter: tuple[tuple[str, ...], ...] = ()


def with_labels(term: Term, change) -> Term:
    """Return the term in which every label is replaced by `change(label)`."""
    if isinstance(term, str):
        return term
    return Node(change(term.label), tuple(with_labels(child, change) for child in term.inputs), term.slot)


def labels_of(terms) -> list[Label]:
    """Return the distinct labels in some terms; the labels of a node's inputs come before the node's label."""
    result: dict[Label, None] = {}
    for term in terms:
        if isinstance(term, Node):
            result |= dict.fromkeys([*labels_of(term.inputs), term.label])
    return list(result)
