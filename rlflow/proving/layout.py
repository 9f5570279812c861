"""Define operators that move, copy or reshape elements, as functions `f(m, a, *inputs)`; see rlflow.proving.semantics.
"""

from dataclasses import replace
from math import prod

from rlflow.proving.decisions import Undefined
from rlflow.proving.tensors import Tensor, broadcast_shape, listed, read

LARGEST = 2**63 - 1  # the end of a Slice up to the end of an axis: no axis is longer


def identity(m, a, x, *others):
    """Define Identity, and Dropout at inference: return x."""
    return x


def shape(m, a, x):
    """Define Shape: the sizes of x from axis `start` up to, but not including, axis `end`."""
    sizes = listed(m, x.shape[a("start", 0) : a("end")])
    return replace(sizes, at=lambda i: m.number(sizes.at(i)))


def distinct_axes(m, axes: tuple, rank: int) -> list[int]:
    """Return axes as numbers from 0 to rank - 1, in the given order.

    Args:
      m: the algebra, which receives the requirement that the axes exist and are distinct.
      axes: the axes; a negative axis counts from the end.
      rank: the rank of the tensor.
    """
    m.require(all(-rank <= k < rank for k in axes))
    result = [k % rank for k in axes]
    m.require(len(set(result)) == len(result))
    return result


def axis_of(m, axis: int, rank: int) -> int:
    """Return an axis as a number from 0 to rank - 1; a negative axis counts from the end."""
    return distinct_axes(m, (axis,), rank)[0]


def transpose(m, a, x):
    perm = a("perm") or tuple(reversed(range(x.rank)))
    m.require(sorted(perm) == list(range(x.rank)))
    source = [perm.index(axis) for axis in range(x.rank)]
    shape = tuple(x.shape[axis] for axis in perm)
    return Tensor(shape, lambda i: x.at(tuple(i[k] for k in source)), x.dtype)


def renamed(m, x: Tensor, shape: tuple) -> Tensor:
    """Return a tensor of another shape that has the elements of x in the same row-major order.

    Args:
      m: the algebra.
      x: the tensor.
      shape: the new shape, which must have as many elements as x.
    """
    flat = x.flat or (lambda position: x.at(m.index(position, x.shape)))
    return Tensor(shape, lambda i: flat(m.position(shape, i)), x.dtype, flat=flat)


def reshape(m, a, x, s):
    return renamed(m, x, m.reshaped(x.shape, s.content, a("allowzero", 0)))


def flatten(m, a, x):
    axis = a("axis", 1)
    m.require(-x.rank <= axis <= x.rank)
    return renamed(m, x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def squeeze(m, a, x, axes=None):
    if axes is not None:
        m.require(len(axes.content) > 0)  # ONNX Runtime removes all axes of size 1 for an empty list, ONNX none
        chosen = set(distinct_axes(m, axes.content, x.rank))
    else:
        chosen = {k for k in range(x.rank) if x.shape[k] == 1}
    for k in sorted(chosen):
        m.require(x.shape[k] == 1)
    left = [k for k in range(x.rank) if k not in chosen]
    spread = lambda i: tuple(i[left.index(k)] if k in left else 0 for k in range(x.rank))  # noqa: E731
    return Tensor(tuple(x.shape[k] for k in left), lambda i: x.at(spread(i)), x.dtype)


def unsqueeze(m, a, x, axes):
    rank = x.rank + len(axes.content)
    new = set(distinct_axes(m, axes.content, rank))
    old = [k for k in range(rank) if k not in new]
    shape = tuple(1 if k in new else x.shape[old.index(k)] for k in range(rank))
    return Tensor(shape, lambda i: x.at(tuple(i[k] for k in old)), x.dtype)


def expand(m, a, x, s):
    for size in s.content:
        m.require(size >= 1)
    like = Tensor(tuple(s.content), lambda i: m.number(0))
    shape = broadcast_shape(m, x, like)
    return Tensor(shape, lambda i: read(m, x, i, shape), x.dtype)


# (coordinate transformation, rounding) pairs with which a nearest Resize by a whole factor f reads position i // f.
REPEATING = frozenset((
    (b"asymmetric", b"floor"),
    *((place, rounding) for place in (b"half_pixel", b"pytorch_half_pixel", b"half_pixel_symmetric")
      for rounding in (b"round_prefer_floor", b"round_prefer_ceil")),
))  # fmt: skip


def resize(m, a, x, roi=None, scales=None, s=None):
    """Define Resize by whole factors: each axis keeps its size, or its size is multiplied.

    The mode nearest selects one element for each index (REPEATING says when it repeats each element). The mode linear
    interpolates along each axis between two elements. Other modes and attributes raise Undefined.
    """
    mode, place = a("mode", b"nearest"), a("coordinate_transformation_mode", b"half_pixel")
    others = {"axes": None, "antialias": 0, "exclude_outside": 0, "keep_aspect_ratio_policy": b"stretch"}
    if any(a(name, usual) != usual for name, usual in others.items()) or mode not in (b"nearest", b"linear"):
        raise Undefined("a Resize of this kind has no definition")
    m.require((scales is None) != (s is None))
    given = (scales if s is None else s).content
    m.require(len(given) == x.rank)
    for size in given:
        m.require(size >= 1)
    factors = [wanted // size for wanted, size in zip(given, x.shape, strict=True)] if scales is None else given
    shape = tuple(size * factor for size, factor in zip(x.shape, factors, strict=True))
    for size, wanted in zip(shape, given, strict=True):
        m.require(scales is not None or size == wanted)
    rounding = a("nearest_mode", b"round_prefer_floor") if mode == b"nearest" else None
    if (place, rounding) in REPEATING:
        return Tensor(shape, lambda i: x.at(tuple(k // factor for k, factor in zip(i, factors, strict=True))), x.dtype)

    def at(i, done=()):
        """Return the element at an index; `done` holds the positions in x along the first axes."""
        axis = len(done)
        if axis == x.rank:
            return x.at(done)
        k, size, factor = i[axis], x.shape[axis], factors[axis]
        if mode == b"nearest":
            return at(i, (*done, m.choose(factor == 1, k, m.nearest(place, rounding, k, size, factor))))
        low, high, weight = m.between(place, k, size, factor)
        low, high = (m.choose(factor == 1, k, position) for position in (low, high))
        if low is high:
            return at(i, (*done, low))
        return at(i, (*done, low)) * (m.number(1) - weight) + at(i, (*done, high)) * weight

    return Tensor(shape, at, x.dtype)


def concat(m, a, *tensors):
    rank, axis = tensors[0].rank, axis_of(m, a("axis"), tensors[0].rank)
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
    return Tensor((*tensors[0].shape[:axis], size, *tensors[0].shape[axis + 1 :]), at, tensors[0].dtype)


def split(m, a, x, s):
    axis, start, parts = axis_of(m, a("axis", 0), x.rank), 0, []
    m.require(sum(s.content) == x.shape[axis])
    for size in s.content:
        m.require(size >= 0)
        at = lambda i, start=start: x.at((*i[:axis], i[axis] + start, *i[axis + 1 :]))  # noqa: E731
        parts.append(Tensor((*x.shape[:axis], size, *x.shape[axis + 1 :]), at, x.dtype))
        start = start + size
    return parts


def slice_(m, a, x, starts, ends, axes=None, steps=None):
    count = len(starts.content)
    where = axes.content if axes is not None else tuple(range(count))
    by = steps.content if steps is not None else (1,) * count
    m.require(len(ends.content) == len(where) == len(by) == count <= x.rank)
    where = distinct_axes(m, where, x.rank)
    shape, offsets, strides = list(x.shape), [0] * x.rank, [1] * x.rank
    for axis, start, end, step in zip(where, starts.content, ends.content, by, strict=True):
        size = x.shape[axis]
        if step >= 1:
            first, last = (_clamped(m, k, size, 0, size) for k in (start, end))
            shape[axis] = m.choose(last > first, (last - first + step - 1) // step, 0)
        else:  # backwards
            m.require(step <= -1)
            first, last = _clamped(m, start, size, 0, size - 1), _clamped(m, end, size, -1, size - 1)
            shape[axis] = m.choose(first > last, (first - last - step - 1) // -step, 0)
        offsets[axis], strides[axis] = first, step
    positions = lambda i: tuple(k * step + offset for k, step, offset in zip(i, strides, offsets, strict=True))  # noqa: E731
    return Tensor(tuple(shape), lambda i: x.at(positions(i)), x.dtype)


def _clamped(m, k, size, least, most):
    """Return position k of an axis, clamped to least … most; a negative k counts from the end of the axis."""
    if isinstance(k, int) and k == LARGEST:
        return most
    k = m.choose(k < 0, k + size, k)
    return m.choose(k < least, least, m.choose(k > most, most, k))


def pad(m, a, x, pads, value=None, axes=None):
    """Define Pad; a negative pad removes elements, before other pads repeat or mirror the elements that are left."""
    where = distinct_axes(m, axes.content if axes is not None else tuple(range(x.rank)), x.rank)
    m.require(len(pads.content) == 2 * len(where))
    begin, end = [0] * x.rank, [0] * x.rank
    for k, axis in enumerate(where):
        begin[axis], end[axis] = pads.content[k], pads.content[k + len(where)]
    for b, e, s in zip(begin, end, x.shape, strict=True):
        m.require(s + b + e >= 1)
    for size in value.shape if value is not None else ():
        m.require(size == 1)
    shape = tuple(s + b + e for s, b, e in zip(x.shape, begin, end, strict=True))
    if (mode := a("mode", b"constant")) != b"constant":
        kept = [_kept(m, mode, *axis) for axis in zip(x.shape, begin, end, strict=True)]
        positions = lambda i: tuple(_repeated(m, mode, k - b, *ends) for k, b, ends in zip(i, begin, kept, strict=True))  # noqa: E731
        return Tensor(shape, lambda i: x.at(positions(i)), x.dtype)
    fill = value.at((0,) * value.rank) if value is not None else m.number(0)

    def at(i):
        positions = [(k - b, size) for k, b, size in zip(i, begin, x.shape, strict=True)]
        if m.known(fill) == 0:
            return m.inside(positions, lambda: x.at(tuple(position for position, _ in positions)))
        within = all(p >= 0 and p < size for p, size in positions)
        return x.at(tuple(position for position, _ in positions)) if within else fill

    return Tensor(shape, at, x.dtype)


def _kept(m, mode: bytes, size, begin, end) -> tuple:
    """Return the first position of an axis that negative pads keep, and the position behind the last one.

    As in ONNX Runtime, at least one element must be left, and more elements than each pad of mode reflect.
    """
    first, behind = m.choose(begin < 0, -begin, 0), m.choose(end < 0, size + end, size)
    m.require(behind - first >= 1)
    if mode == b"reflect":
        m.require((begin < behind - first) & (end < behind - first))
    return first, behind


def _repeated(m, mode: bytes, position, first, behind):
    """Return the position whose element a Pad in mode edge, reflect or wrap shows at a position outside, too."""
    last = behind - 1
    if mode == b"wrap":
        below = above = first + (position - first) % (behind - first)
    else:
        below, above = (first, last) if mode == b"edge" else (2 * first - position, 2 * last - position)
    return m.choose(position < first, below, m.choose(position > last, above, position))


def tile(m, a, x, repeats):
    m.require(len(repeats.content) == x.rank)
    for times in repeats.content:
        m.require(times >= 1)
    positions = lambda i: tuple(k - (k // size) * size for k, size in zip(i, x.shape, strict=True))  # noqa: E731
    shape = tuple(size * times for size, times in zip(x.shape, repeats.content, strict=True))
    return Tensor(shape, lambda i: x.at(positions(i)), x.dtype)


def gather(m, a, x, indices):
    """Define Gather, where a negative index counts from the end of the axis.

    The values of the indices must be known integers of the algebra (`content`) or have a known range (`below`).
    """
    axis = axis_of(m, a("axis", 0), x.rank)
    size = x.shape[axis]
    if indices.below is not None:
        m.require(indices.below <= size)
    elif indices.content is not None:
        for k in indices.content:
            m.require((k >= -size) & (k < size))
    else:
        raise TypeError("indices that are computed have no definition")

    def at(i):
        one = indices.content is not None and indices.rank == 0
        k = indices.content[0] if one else indices.at(i[axis : axis + indices.rank])
        return x.at((*i[:axis], m.choose(k < 0, k + size, k), *i[axis + indices.rank :]))

    return Tensor((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), at, x.dtype, below=x.below)


def space_to_depth(m, a, x):
    """Define SpaceToDepth: channel k at row r and column c of an n × n block becomes channel (r·n + c)·channels + k."""
    n = a("blocksize")
    m.require(x.rank == 4 and a("mode", b"DCR") == b"DCR")
    batch, channels, height, width = x.shape
    m.require(height == (height // n) * n)
    m.require(width == (width // n) * n)

    def at(i):
        block = i[1] // channels
        row = block // n
        return x.at((i[0], i[1] - block * channels, i[2] * n + row, i[3] * n + block - row * n))

    return Tensor((batch, channels * n * n, height // n, width // n), at, x.dtype)


def depth_to_space(m, a, x):
    """Define DepthToSpace. Channel k at row r and column c of an n × n block is read from one input channel.

    The input channel is (r·n + c)·channels + k in mode DCR, and k·n² + r·n + c in mode CRD.
    """
    n = a("blocksize")
    m.require(x.rank == 4)
    batch, whole, height, width = x.shape
    channels = whole // (n * n)
    m.require(whole == channels * n * n)

    def at(i):
        row, column = i[2] - (i[2] // n) * n, i[3] - (i[3] // n) * n
        block = row * n + column
        source = block * channels + i[1] if a("mode", b"DCR") == b"DCR" else i[1] * n * n + block
        return x.at((i[0], source, i[2] // n, i[3] // n))

    return Tensor((batch, channels, height * n, width * n), at, x.dtype)
