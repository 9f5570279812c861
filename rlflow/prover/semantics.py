"""What every operator means: the axioms that proofs of rules stand on.

Each operator is defined by an equation on elements: a tensor is a shape and a function from an index to a number,
and `at=lambda i: …` says what stands at index i. Numbers are real; rounding is not part of the meaning. The
equations are written for an algebra `m`, so that one text serves numbers (rlflow.prover.numbers) and symbols
(rlflow.prover.symbolic). An algebra has

    m.total(sizes, body), m.greatest(sizes, body, inside)   Σ and max of body(k) over all indices k
    m.inside(pairs, value)     value() if 0 ≤ place < size for every (place, size), else 0
    m.choose(c, a, b)          the integer a if c, else b
    m.wider(a, b)              of two sizes that are equal or one of them 1: the one that is not
    m.met(size, whole, k)      index k of an axis of size `whole`, on one of that size or of size 1
    m.number(n)  m.quotient(a, b)  m.larger(a, b)  m.apply("exp", a)     numbers
    m.place(shape, index), m.index(place, shape)   the place in row-major order, and back
    m.reshaped(shape, wanted, allowzero)         the shape that Reshape makes of `wanted`, with 0 and -1 filled in
    m.require(c)               what the operator asks of its inputs

and its integers and numbers have +, -, *, // and comparisons. `if` on a comparison is allowed everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Tensor:
    """`at` gives the element at an index, `content` the integers of a shape or a list of axes, if known.

    Attributes:
      floats: whether its elements are real numbers (else integers, whose division is another).
      flat: the element at a place in row-major order; None where that follows from `at`.
    """

    shape: tuple
    at: Callable[[tuple], Any]
    floats: bool = True
    content: tuple | None = None
    flat: Callable | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)


class Attributes:
    """The attributes of one operator; `a("axis", 0)` is the value, or what it is by default."""

    def __init__(self, *sources):
        self.sources = sources

    def __call__(self, name: str, default=None):
        return next((source[name] for source in self.sources if name in source), default)


# -- one number each -------------------------------------------------------------------------------


def broadcast_shape(m, *tensors: Tensor) -> tuple:
    """The common shape; sizes that differ must be 1."""
    rank, found = max(t.rank for t in tensors), []
    for axis in range(-rank, 0):
        first, *others = (t.shape[axis] for t in tensors if t.rank >= -axis)
        size = first
        for other in others:
            m.require((other == size) | (other == 1) | (size == 1))
            size = m.wider(size, other)
        found.append(size)
    return tuple(found)


def read(m, t: Tensor, i: tuple, whole: tuple):
    """The element of `t` that meets index i of a tensor of shape `whole`, which `t` is broadcast to."""
    skip = len(i) - t.rank
    return t.at(tuple(map(m.met, t.shape, whole[skip:], i[skip:])))


def pointwise(m, f: Callable, *tensors: Tensor) -> Tensor:
    if len(tensors) == 1:
        return Tensor(tensors[0].shape, lambda i: f(tensors[0].at(i)), tensors[0].floats)
    shape = broadcast_shape(m, *tensors)
    return Tensor(shape, lambda i: f(*(read(m, t, i, shape) for t in tensors)), tensors[0].floats)


def folded(f: Callable) -> Callable:
    """An operator of any number of inputs from one of two."""

    def apply(m, a, *tensors):
        def all_of(first, *rest):
            for other in rest:
                first = f(m, first, other)
            return first

        return pointwise(m, all_of, *tensors)

    return apply


def unary(f: Callable) -> Callable:
    """An operator on single numbers; `f(m, a, x)` with its attributes."""
    return lambda m, a, x, *others: pointwise(m, lambda e: f(m, a, e), x)


def function(name: str) -> Callable:
    return unary(lambda m, a, e: m.apply(name, e))


def smaller(m, a, b):
    return -m.larger(-a, -b)


def half(m):
    return m.quotient(m.number(1), m.number(2))


def sigmoid(m, e):
    return m.quotient(m.number(1), m.number(1) + m.apply("exp", -e))


def tanh(m, e):
    return m.number(2) * sigmoid(m, m.number(2) * e) - m.number(1)


def gelu(m, e, approximate=b"none"):
    if approximate == b"tanh":
        cubic = e + m.number(0.044715) * e * e * e
        return half(m) * e * (m.number(1) + tanh(m, m.number(0.7978845608028654) * cubic))
    return half(m) * e * (m.number(1) + m.apply("erf", m.quotient(e, m.number(1.4142135623730951))))


def hard_sigmoid(m, e, slope, offset):
    return smaller(m, m.larger(m.number(slope) * e + m.number(offset), m.number(0)), m.number(1))


def leaky(m, e, slope):
    return m.larger(e, m.number(0)) + m.number(slope) * smaller(m, e, m.number(0))


def clip(m, a, x, low=None, high=None):
    for bound, f in ((low, m.larger), (high, lambda p, q: smaller(m, p, q))):
        if bound is not None:
            m.require(bound.rank == 0)
            x = pointwise(m, f, x, bound)
    return x


def divide(m, a, x, y):
    if x.floats:
        return pointwise(m, m.quotient, x, y)
    return pointwise(m, lambda p, q: m.apply("integer quotient", p, q), x, y)


def power(m, a, x, y):
    def one(base, exponent):
        known = m.known(exponent)
        if not x.floats or known is None:
            return m.apply("power", base, exponent)
        if known == 0.5:
            return m.apply("sqrt", base)
        if known == -0.5:
            return m.quotient(m.number(1), m.apply("sqrt", base))
        if known != int(known):
            return m.apply("power", base, exponent)
        result = m.number(1)
        for _ in range(abs(int(known))):
            result = result * base
        return result if known >= 0 else m.quotient(m.number(1), result)

    return pointwise(m, one, x, y)


# -- layout ----------------------------------------------------------------------------------------


def identity(m, a, x, *others):
    return x


def transpose(m, a, x):
    perm = a("perm") or tuple(reversed(range(x.rank)))
    source = [perm.index(axis) for axis in range(x.rank)]
    shape = tuple(x.shape[axis] for axis in perm)
    return Tensor(shape, lambda i: x.at(tuple(i[k] for k in source)), x.floats)


def renamed(m, x: Tensor, shape: tuple) -> Tensor:
    """The same elements in the same row-major order under another shape."""
    flat = flat_of(m, x)
    return Tensor(shape, lambda i: flat(m.place(shape, i)), x.floats, flat=flat)


def flat_of(m, x: Tensor) -> Callable:
    return x.flat or (lambda place: x.at(m.index(place, x.shape)))


def reshape(m, a, x, s):
    return renamed(m, x, m.reshaped(x.shape, s.content, a("allowzero", 0)))


def flatten(m, a, x):
    axis = a("axis", 1)
    return renamed(m, x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def squeeze(m, a, x, axes=None):
    chosen = {k % x.rank for k in axes.content} if axes is not None else {k for k in range(x.rank) if x.shape[k] == 1}
    for k in sorted(chosen):
        m.require(x.shape[k] == 1)
    left = [k for k in range(x.rank) if k not in chosen]
    spread = lambda i: tuple(i[left.index(k)] if k in left else 0 for k in range(x.rank))  # noqa: E731
    return Tensor(tuple(x.shape[k] for k in left), lambda i: x.at(spread(i)), x.floats)


def unsqueeze(m, a, x, axes):
    rank = x.rank + len(axes.content)
    m.require(all(-rank <= k < rank for k in axes.content))
    new = {k % rank for k in axes.content}
    m.require(len(new) == len(axes.content))
    old = [k for k in range(rank) if k not in new]
    shape = tuple(1 if k in new else x.shape[old.index(k)] for k in range(rank))
    return Tensor(shape, lambda i: x.at(tuple(i[k] for k in old)), x.floats)


def expand(m, a, x, s):
    like = Tensor(tuple(s.content), lambda i: m.number(0))
    shape = broadcast_shape(m, x, like)
    return Tensor(shape, lambda i: read(m, x, i, shape), x.floats)


def concat(m, a, *tensors):
    rank, axis = tensors[0].rank, a("axis") % tensors[0].rank
    for t in tensors[1:]:
        m.require(t.rank == rank)
        for k in range(rank):
            m.require(k == axis or t.shape[k] == tensors[0].shape[k])

    def at(i):
        k = i[axis]
        for t in tensors[:-1]:
            if k < t.shape[axis]:
                return t.at((*i[:axis], k, *i[axis + 1 :]))
            k = k - t.shape[axis]
        return tensors[-1].at((*i[:axis], k, *i[axis + 1 :]))

    size = sum(t.shape[axis] for t in tensors)
    return Tensor((*tensors[0].shape[:axis], size, *tensors[0].shape[axis + 1 :]), at, tensors[0].floats)


def split(m, a, x, s):
    axis, start, parts = a("axis", 0) % x.rank, 0, []
    m.require(sum(s.content) == x.shape[axis])
    for size in s.content:
        m.require(size >= 0)
        at = lambda i, start=start: x.at((*i[:axis], i[axis] + start, *i[axis + 1 :]))  # noqa: E731
        parts.append(Tensor((*x.shape[:axis], size, *x.shape[axis + 1 :]), at, x.floats))
        start = start + size
    return parts


def slice_(m, a, x, starts, ends, axes=None, steps=None):
    """Of positive steps; others are not defined here."""
    count = len(starts.content)
    where = axes.content if axes is not None else tuple(range(count))
    by = steps.content if steps is not None else (1,) * count
    shape, offsets, strides = list(x.shape), [0] * x.rank, [1] * x.rank
    for axis, start, end, step in zip(where, starts.content, ends.content, by, strict=True):
        m.require(step >= 1)
        size = x.shape[axis]
        first, last = (
            m.choose(k < 0, m.choose(k + size < 0, 0, k + size), m.choose(k > size, size, k)) for k in (start, end)
        )
        shape[axis] = m.choose(last > first, (last - first + step - 1) // step, 0)
        offsets[axis], strides[axis] = first, step
    places = lambda i: tuple(k * step + offset for k, step, offset in zip(i, strides, offsets, strict=True))  # noqa: E731
    return Tensor(tuple(shape), lambda i: x.at(places(i)), x.floats)


def pad(m, a, x, pads, value=None, axes=None):
    """With a constant; the other modes are not defined here."""
    m.require(a("mode", b"constant") == b"constant" and axes is None)
    begin, end = pads.content[: x.rank], pads.content[x.rank :]
    m.require(len(pads.content) == 2 * x.rank)
    fill = value.at((0,) * value.rank) if value is not None else m.number(0)

    def at(i):
        places = [(k - b, size) for k, b, size in zip(i, begin, x.shape, strict=True)]
        if m.known(fill) == 0:
            return m.inside(places, lambda: x.at(tuple(place for place, _ in places)))
        within = all(p >= 0 and p < size for p, size in places)
        return x.at(tuple(place for place, _ in places)) if within else fill

    return Tensor(tuple(s + b + e for s, b, e in zip(x.shape, begin, end, strict=True)), at, x.floats)


# -- sums ------------------------------------------------------------------------------------------


def matmul(m, a, x, y):
    m.require(x.rank > 0 and y.rank > 0)
    depth = x.shape[-1]
    m.require(depth == y.shape[-2 if y.rank > 1 else 0])
    left = Tensor(x.shape[:-2], None)
    right = Tensor(y.shape[:-2], None)
    batch = broadcast_shape(m, left, right)
    rows, columns = x.shape[-2:-1], y.shape[-1:] if y.rank > 1 else ()

    def at(i):
        row, column = i[len(batch) : len(batch) + len(rows)], i[len(batch) + len(rows) :]

        def term(k):
            one = Tensor(left.shape, lambda b: x.at((*b, *row, *k)))
            other = Tensor(right.shape, lambda b: y.at((*b, *k, *column)))
            return read(m, one, i[: len(batch)], batch) * read(m, other, i[: len(batch)], batch)

        return m.total((depth,), term)

    return Tensor((*batch, *rows, *columns), at, x.floats)


def gemm(m, a, x, y, c=None):
    x = transpose(m, Attributes(), x) if a("transA", 0) else x
    y = transpose(m, Attributes(), y) if a("transB", 0) else y
    m.require(x.rank == 2 and y.rank == 2)
    scaled = lambda t, factor: pointwise(m, lambda e: m.number(factor) * e, t)  # noqa: E731
    product = scaled(matmul(m, a, x, y), a("alpha", 1.0))
    if c is None:
        return product
    found = pointwise(m, lambda p, q: p + q, product, scaled(c, a("beta", 1.0)))
    m.require(found.rank == 2 and found.shape[0] == product.shape[0])
    m.require(found.shape[1] == product.shape[1])
    return found


def axes_of(x: Tensor, a, axes: Tensor | None) -> list[int]:
    given = axes.content if axes is not None else a("axes")
    if given is None or len(given) == 0:
        return [] if a("noop_with_empty_axes", 0) else list(range(x.rank))
    return sorted({k % x.rank for k in given})


def reduced(how: Callable) -> Callable:
    """A reduction; `how(m, sizes, body)` of the elements body(k) over all k in sizes."""

    def apply(m, a, x, axes=None):
        m.require(axes is None or all(-x.rank <= k < x.rank for k in axes.content))
        gone = axes_of(x, a, axes)
        keep = a("keepdims", 1)
        shape = tuple(1 if k in gone else size for k, size in enumerate(x.shape) if keep or k not in gone)

        def at(i):
            rest = iter(i if not keep else [place for k, place in enumerate(i) if k not in gone])
            base = [None if k in gone else next(rest) for k in range(x.rank)]

            def body(k):
                inner = iter(k)
                return x.at(tuple(next(inner) if place is None else place for place in base))

            return how(m, tuple(x.shape[k] for k in gone), body)

        return Tensor(shape, at, x.floats)

    return apply


def mean(m, sizes, body):
    """Of floats; that of integers is another, without a definition here."""
    return m.quotient(m.total(sizes, body), m.number(prod(sizes)))


def greatest(m, sizes, body):
    return m.greatest(sizes, body, lambda k: [])


def least(m, sizes, body):
    return -m.greatest(sizes, lambda k: -body(k), lambda k: [])


def global_pool(how: Callable) -> Callable:
    def apply(m, a, x):
        m.require(x.rank > 2)
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        return Tensor(shape, lambda i: how(m, x.shape[2:], lambda k: x.at((*i[:2], *k))), x.floats)

    return apply


def softmax(m, a, x):
    axis = a("axis", -1) % x.rank

    def at(i):
        others = m.total((x.shape[axis],), lambda k: m.apply("exp", x.at((*i[:axis], *k, *i[axis + 1 :]))))
        return m.quotient(m.apply("exp", x.at(i)), others)

    return Tensor(x.shape, at, x.floats)


def batch_normalization(m, a, x, scale, offset, mu, variance):
    """Of inference: mean and variance are given."""
    for t in (scale, offset, mu, variance):
        m.require(t.rank == 1)
        m.require(t.shape[0] == (x.shape[1] if x.rank > 1 else 1))

    def at(i):
        c = (i[1] if x.rank > 1 else 0,)
        deviation = m.apply("sqrt", variance.at(c) + m.number(a("epsilon", 1e-5)))
        return scale.at(c) * m.quotient(x.at(i) - mu.at(c), deviation) + offset.at(c)

    return Tensor(x.shape, at, x.floats)


def layer_normalization(m, a, x, scale, offset=None):
    axis = a("axis", -1) % x.rank
    sizes = x.shape[axis:]

    def at(i):
        element = lambda k: x.at((*i[:axis], *k))  # noqa: E731
        mu = mean(m, sizes, element)
        variance = mean(m, sizes, lambda k: (element(k) - mu) * (element(k) - mu))
        return m.quotient(element(i[axis:]) - mu, m.apply("sqrt", variance + m.number(a("epsilon", 1e-5))))

    normal = Tensor(x.shape, at, x.floats)
    result = pointwise(m, lambda p, q: p * q, normal, scale)
    result = pointwise(m, lambda p, q: p + q, result, offset) if offset is not None else result
    m.require(result.rank == x.rank and all(p == q for p, q in zip(result.shape, x.shape, strict=True)))
    return result


# -- windows ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Sliding windows: output place o and kernel place k of an axis read input place o·stride + k·dilation - begin."""

    sizes: tuple  # of the input
    kernel: tuple
    strides: tuple
    dilations: tuple
    begin: tuple
    end: tuple
    outputs: tuple  # how many windows along each axis

    def places(self, o: tuple, k: tuple) -> list[tuple]:
        """(place, size) along each axis."""
        return [
            (o[j] * self.strides[j] + k[j] * self.dilations[j] - self.begin[j], self.sizes[j])
            for j in range(len(self.sizes))
        ]


def windows_of(m, a, sizes: tuple, kernel: tuple) -> Windows:
    n, automatic = len(sizes), a("auto_pad", b"NOTSET")
    strides, dilations, pads = (a("strides") or (1,) * n, a("dilations") or (1,) * n, a("pads") or (0,) * (2 * n))
    begin, end, outputs = [], [], []
    for j, (size, k, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        extent = (k - 1) * dilation + 1
        if automatic in (b"SAME_UPPER", b"SAME_LOWER"):
            count = (size + stride - 1) // stride
            missing = (count - 1) * stride + extent - size
            missing = m.choose(missing > 0, missing, 0)
            lesser = missing // 2
            first = lesser if automatic == b"SAME_UPPER" else missing - lesser
            last = missing - first
        else:
            first, last = (0, 0) if automatic == b"VALID" else (pads[j], pads[j + n])
            room = size + first + last - extent
            m.require(room >= 0)
            count = room // stride + 1
            if a("ceil_mode", 0):
                count = (room + stride - 1) // stride + 1
                count = m.choose((count - 1) * stride >= size + first, count - 1, count)
        begin.append(first)
        end.append(last)
        outputs.append(count)
    return Windows(sizes, kernel, tuple(strides), tuple(dilations), tuple(begin), tuple(end), tuple(outputs))


def conv(m, a, x, w, bias=None):
    m.require(x.rank == w.rank and x.rank > 2)
    groups, outputs, depth = a("group", 1), w.shape[0], w.shape[1]
    m.require(x.shape[1] == depth * groups)
    m.require(outputs == (outputs // groups) * groups)
    windows = windows_of(m, a, x.shape[2:], w.shape[2:])
    if bias is not None:
        m.require(bias.rank == 1 and bias.shape[0] == outputs)

    def at(i):
        first = (i[1] // (outputs // groups)) * depth  # of the channels of the group

        def term(k):
            places = windows.places(i[2:], k[1:])
            element = m.inside(places, lambda: x.at((i[0], first + k[0], *(place for place, _ in places))))
            return element * w.at((i[1], *k))

        total = m.total((depth, *windows.kernel), term)
        return total + bias.at((i[1],)) if bias is not None else total

    return Tensor((x.shape[0], outputs, *windows.outputs), at)


def max_pool(m, a, x):
    m.require(x.rank > 2)
    windows = windows_of(m, a, x.shape[2:], a("kernel_shape"))

    def at(i):
        return m.greatest(
            windows.kernel,
            lambda k: x.at((*i[:2], *(place for place, _ in windows.places(i[2:], k)))),
            lambda k: windows.places(i[2:], k),
        )

    return Tensor((*x.shape[:2], *windows.outputs), at, x.floats)


def average_pool(m, a, x):
    m.require(x.rank > 2)
    windows = windows_of(m, a, x.shape[2:], a("kernel_shape"))

    def at(i):
        places = lambda k: windows.places(i[2:], k)  # noqa: E731
        counted = places
        if a("count_include_pad", 0):  # the padding that ceil_mode adds is never counted
            padded = [s + b + e for s, b, e in zip(windows.sizes, windows.begin, windows.end, strict=True)]
            counted = lambda k: [  # noqa: E731
                (place + b, size) for (place, _), b, size in zip(places(k), windows.begin, padded, strict=True)
            ]
        count = m.total(windows.kernel, lambda k: m.inside(counted(k), lambda: m.number(1)))
        if a("count_include_pad", 0) and not a("ceil_mode", 0):
            count = m.number(prod(windows.kernel))
        element = lambda k: x.at((*i[:2], *(place for place, _ in places(k))))  # noqa: E731
        return m.quotient(m.total(windows.kernel, lambda k: m.inside(places(k), lambda: element(k))), count)

    return Tensor((*x.shape[:2], *windows.outputs), at)


OPERATORS: dict[str, Callable] = {
    "Identity": identity,
    "Dropout": identity,
    "Relu": unary(lambda m, a, e: m.larger(e, m.number(0))),
    "Neg": unary(lambda m, a, e: -e),
    "Abs": unary(lambda m, a, e: m.larger(e, -e)),
    "Reciprocal": unary(lambda m, a, e: m.quotient(m.number(1), e)),
    "Exp": function("exp"),
    "Log": function("log"),
    "Sqrt": function("sqrt"),
    "Erf": function("erf"),
    "Tanh": unary(lambda m, a, e: tanh(m, e)),
    "Sigmoid": unary(lambda m, a, e: sigmoid(m, e)),
    "Gelu": unary(lambda m, a, e: gelu(m, e, a("approximate", b"none"))),
    "LeakyRelu": unary(lambda m, a, e: leaky(m, e, a("alpha", 0.01))),
    "HardSigmoid": unary(lambda m, a, e: hard_sigmoid(m, e, a("alpha", 0.2), a("beta", 0.5))),
    "HardSwish": unary(lambda m, a, e: e * hard_sigmoid(m, e, "1/6", 0.5)),
    "Clip": clip,
    "Add": folded(lambda m, p, q: p + q),
    "Sum": folded(lambda m, p, q: p + q),
    "Sub": folded(lambda m, p, q: p - q),
    "Mul": folded(lambda m, p, q: p * q),
    "Max": folded(lambda m, p, q: m.larger(p, q)),
    "Min": folded(smaller),
    "Div": divide,
    "Pow": power,
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Expand": expand,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    "MatMul": matmul,
    "Gemm": gemm,
    "ReduceSum": reduced(lambda m, sizes, body: m.total(sizes, body)),
    "ReduceMean": reduced(mean),
    "ReduceMax": reduced(greatest),
    "ReduceMin": reduced(least),
    "GlobalAveragePool": global_pool(mean),
    "GlobalMaxPool": global_pool(greatest),
    "Softmax": softmax,
    "LogSoftmax": lambda m, a, x: pointwise(m, lambda e: m.apply("log", e), softmax(m, a, x)),
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "Conv": conv,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
}


def outputs_of(m, op: str, a: Attributes, inputs: list[Tensor | None]) -> list[Tensor]:
    """The outputs of one operator. Raises KeyError for one that has no definition."""
    found = OPERATORS[op](m, a, *inputs)
    return found if isinstance(found, list) else [found]
