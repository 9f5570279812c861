"""Operators that sum, or take the greatest, along axes; and the normalisations made of such."""

from collections.abc import Callable
from math import prod

from rlflow.rules.prover.layout import axis_of, distinct_axes, transpose
from rlflow.rules.prover.tensors import Attributes, Tensor, broadcast_shape, only_as, pointwise, read


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

    return Tensor((*batch, *rows, *columns), at, x.dtype)


def gemm(m, a, x, y, c=None):
    x = transpose(m, Attributes(), x) if a("transA", 0) else x
    y = transpose(m, Attributes(), y) if a("transB", 0) else y
    m.require(x.rank == 2 and y.rank == 2)
    scaled = lambda t, factor: pointwise(m, lambda e: m.number(factor) * e, t)  # noqa: E731
    product = scaled(matmul(m, a, x, y), a("alpha", 1.0))
    if c is None:
        return product
    result = pointwise(m, lambda p, q: p + q, product, scaled(c, a("beta", 1.0)))
    m.require(result.rank == 2 and result.shape[0] == product.shape[0])
    m.require(result.shape[1] == product.shape[1])
    return result


def axes_of(m, x: Tensor, a, axes: Tensor | None) -> list[int]:
    given = axes.content if axes is not None else a("axes")
    if given is None or len(given) == 0:
        return [] if a("noop_with_empty_axes", 0) else list(range(x.rank))
    return distinct_axes(m, given, x.rank)


def reduced(how: Callable, of_integers: Callable | None = None) -> Callable:
    """A reduction; `how(m, sizes, body)` of the elements body(k) over all k in sizes; of integers it may be another."""

    def apply(m, a, x, axes=None):
        gone = sorted(axes_of(m, x, a, axes))
        keep = a("keepdims", 1)
        m.require(keep in (0, 1))
        shape = tuple(1 if k in gone else size for k, size in enumerate(x.shape) if keep or k not in gone)

        def at(i):
            rest = iter(i if not keep else [position for k, position in enumerate(i) if k not in gone])
            base = [None if k in gone else next(rest) for k in range(x.rank)]

            def body(k):
                inner = iter(k)
                return x.at(tuple(next(inner) if position is None else position for position in base))

            chosen = how if x.floats or of_integers is None else of_integers
            return chosen(m, tuple(x.shape[k] for k in gone), body)

        return Tensor(shape, at, x.dtype)

    return apply


def mean(m, sizes, body):
    return m.quotient(m.total(sizes, body), m.number(prod(sizes)))


def integer_mean(m, sizes, body):
    """Rounded towards 0, as ONNX Runtime does."""
    return m.apply("integer quotient", m.total(sizes, body), m.number(prod(sizes)))


def greatest(m, sizes, body):
    return m.greatest(sizes, body, lambda k: [])


def least(m, sizes, body):
    return -m.greatest(sizes, lambda k: -body(k), lambda k: [])


def global_pool(how: Callable) -> Callable:
    def apply(m, a, x):
        m.require(x.rank > 2)
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        return Tensor(shape, lambda i: how(m, x.shape[2:], lambda k: x.at((*i[:2], *k))), x.dtype)

    return apply


def softmax(m, a, x):
    axis = axis_of(m, a("axis", -1), x.rank)

    def at(i):
        others = m.total((x.shape[axis],), lambda k: m.apply("exp", x.at((*i[:axis], *k, *i[axis + 1 :]))))
        return m.quotient(m.apply("exp", x.at(i)), others)

    return Tensor(x.shape, at, x.dtype)


def batch_normalization(m, a, x, scale, offset, mu, variance):
    """Of inference: mean and variance are given."""
    for t in (scale, offset, mu, variance):
        m.require(t.rank == 1)
        m.require(t.shape[0] == (x.shape[1] if x.rank > 1 else 1))

    def at(i):
        c = (i[1] if x.rank > 1 else 0,)
        deviation = m.apply("sqrt", variance.at(c) + m.number(a("epsilon", 1e-5)))
        return scale.at(c) * m.quotient(x.at(i) - mu.at(c), deviation) + offset.at(c)

    return Tensor(x.shape, at, x.dtype)


def normalized(m, a, x, centre: Callable) -> Tensor:
    """(x - centre) / √(mean of (x - centre)² + epsilon), over the axes from `axis` on, as `centre` is."""
    axis = axis_of(m, a("axis", -1), x.rank)
    sizes = x.shape[axis:]

    def at(i):
        element = lambda k: x.at((*i[:axis], *k))  # noqa: E731
        mu = centre(m, sizes, element)
        variance = mean(m, sizes, lambda k: (element(k) - mu) * (element(k) - mu))
        return m.quotient(element(i[axis:]) - mu, m.apply("sqrt", variance + m.number(a("epsilon", 1e-5))))

    return Tensor(x.shape, at, x.dtype)


def scaled(m, normal: Tensor, scale: Tensor, offset: Tensor | None = None) -> Tensor:
    """Scale and offset must not enlarge it."""
    only_as(m, scale, normal)
    result = pointwise(m, lambda p, q: p * q, normal, scale)
    if offset is None:
        return result
    only_as(m, offset, normal)
    return pointwise(m, lambda p, q: p + q, result, offset)


def layer_normalization(m, a, x, scale, offset=None):
    return scaled(m, normalized(m, a, x, mean), scale, offset)


def rms_normalization(m, a, x, scale):
    return scaled(m, normalized(m, a, x, lambda m, sizes, body: m.number(0)), scale)
