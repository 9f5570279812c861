"""Define operators that sum or take the maximum: along axes, and under sliding windows.

The first part holds matrix products, reductions, global pools, softmax and the normalisations. The second part holds
convolutions and pools; `windows_of` places their windows as ONNX Runtime does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from onnx import TensorProto

from rlflow.proving.layout import axis_of, distinct_axes, renamed, transpose
from rlflow.proving.tensors import Attributes, Tensor, broadcast_shape, pointwise, read, require_not_enlarging
from rlflow.rules.expressions import labels


def matmul(m, a, x, y):
    """Define MatMul of (*batch, rows, depth) and (*batch, depth, columns), or of vectors; batches are broadcast."""
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


def einsum(m, a, *tensors):
    """Define Einsum: the sum of the products of elements over all labels that the result lacks."""
    *terms, result = labels(a("equation"))
    m.require(len(terms) == len(tensors))
    sizes: dict[int, Any] = {}
    for term, t in zip(terms, tensors, strict=True):
        m.require(len(term) == t.rank)
        for label, size in zip(term, t.shape, strict=True):
            m.require(sizes.setdefault(label, size) == size)
    summed = [label for label in sizes if label not in result]

    def at(i):
        def product(k):
            position = dict(zip((*result, *summed), (*i, *k), strict=True))
            first, *others = (
                t.at(tuple(position[label] for label in term)) for term, t in zip(terms, tensors, strict=True)
            )
            for other in others:
                first = first * other
            return first

        return m.total(tuple(sizes[label] for label in summed), product)

    return Tensor(tuple(sizes[label] for label in result), at, tensors[0].dtype)


def gemm(m, a, x, y, c=None):
    """Define Gemm: alpha · x y + beta · c, where broadcasting c must not enlarge the product."""
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
    """Return the axes of x over which a reduction runs.

    Args:
      m: the algebra.
      x: the tensor to reduce.
      a: the attributes. Without axes, `noop_with_empty_axes` 0 means all axes and 1 means no axis.
      axes: the list of axes; None to use the attribute `axes`.
    """
    given = axes.content if axes is not None else a("axes")
    if given is None or len(given) == 0:
        return [] if a("noop_with_empty_axes", 0) else list(range(x.rank))
    return distinct_axes(m, given, x.rank)


def reduced(how: Callable, of_integers: Callable | None = None) -> Callable:
    """Make a reduction operator such as ReduceSum.

    Args:
      how: `how(m, sizes, body)` combines the elements `body(k)` for all indices k below the sizes.
      of_integers: the function to use for integer tensors instead of `how`; None to use `how`.
    """

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
    """Return the mean of `body(k)` over all indices k below the sizes."""
    return m.quotient(m.total(sizes, body), m.number(prod(sizes)))


def total_of_squares(m, sizes, body):
    """Return the sum of `body(k)` · `body(k)` over all indices k below the sizes."""
    return m.total(sizes, lambda k: body(k) * body(k))


def integer_mean(m, sizes, body):
    """Return the mean of integers `body(k)`, rounded towards 0 as in ONNX Runtime."""
    return m.apply("integer quotient", m.total(sizes, body), m.number(prod(sizes)))


def greatest(m, sizes, body):
    """Return the maximum of `body(k)` over all indices k below the sizes."""
    return m.greatest(sizes, body, lambda k: [])


def least(m, sizes, body):
    """Return the minimum of `body(k)` over all indices k below the sizes."""
    return -m.greatest(sizes, lambda k: -body(k), lambda k: [])


def arg_max(m, a, x):
    """Define ArgMax: the first position of the maximum along an axis, or the last one."""
    axis, last, keep = axis_of(m, a("axis", 0), x.rank), a("select_last_index", 0), a("keepdims", 1)
    m.require(last in (0, 1) and keep in (0, 1))

    def at(i):
        rest = i[axis + 1 :] if keep else i[axis:]
        return m.place_of_greatest(x.shape[axis], lambda k: x.at((*i[:axis], k, *rest)), last)

    shape = (*x.shape[:axis], *([1] if keep else []), *x.shape[axis + 1 :])
    return Tensor(shape, at, TensorProto.INT64)


def scatter_elements(m, a, x, indices, updates):
    """Define ScatterElements that adds updates along axis 0: row `indices[e, …]` of the result gets `updates[e, …]`."""
    m.require(a("reduction", b"none") == b"add" and axis_of(m, a("axis", 0), x.rank) == 0)
    m.require(indices.rank == x.rank and updates.rank == x.rank)
    for size, other in zip(indices.shape, updates.shape, strict=True):
        m.require(size == other)
    for size, other in zip(indices.shape[1:], x.shape[1:], strict=True):
        m.require(size == other)
    return _rows_added(m, x, updates, lambda e, rest: indices.at((e, *rest)))


def scatter_nd(m, a, x, indices, updates):
    """Define ScatterND that adds whole rows: row `indices[e, 0]` of the result gets the row `updates[e]`."""
    m.require(a("reduction", b"none") == b"add" and indices.rank == 2 and updates.rank == x.rank)
    m.require(indices.shape[1] == 1)
    for size, other in zip(updates.shape, (indices.shape[0], *x.shape[1:]), strict=True):
        m.require(size == other)
    return _rows_added(m, x, updates, lambda e, rest: indices.at((e, 0)))


def _rows_added(m, x, updates, row: Callable):
    """Return x with updates added; `row(e, rest)` is the index of the row of x to which update (e, *rest) is added."""
    def at(i):
        def term(k):
            chosen = m.apply("is row", row(k[0], i[1:]), m.number(i[0]), m.number(x.shape[0]))
            return chosen * updates.at((k[0], *i[1:]))

        return x.at(i) + m.total(updates.shape[:1], term)

    return Tensor(x.shape, at, x.dtype)


def dft(m, a, x, length=None):
    """Define DFT of real numbers (…, size, 1) along the axis before the last.

    The Fourier matrix is unknown: its elements depend only on the position, the bin, the size and the part, real or
    imaginary. A proof for every matrix holds for the true one.
    """
    m.require(length is None and x.rank > 1 and not a("inverse", 0))
    m.require(axis_of(m, a("axis", 1), x.rank) == x.rank - 2)
    m.require(x.shape[-1] == 1)
    size = x.shape[-2]

    def at(i):
        return m.total((size,), lambda k: x.at((*i[:-2], k[0], 0)) * _wave(m, k[0], i[-2], size, i[-1]))

    return Tensor((*x.shape[:-2], _bins(a, size), 2), at, x.dtype)


def stft(m, a, x, step, window, length):
    """Define STFT of real signals (batch, samples) or (batch, samples, 1): the DFT of windowed frames."""
    m.require(x.rank == 2 or x.rank == 3)
    m.require(x.rank == 2 or x.shape[2] == 1)
    (step,), (size,) = step.content, length.content
    m.require(window.rank == 1 and window.shape[0] == size)
    m.require(step >= 1)
    m.require(x.shape[1] >= size)
    last = (0,) * (x.rank - 2)

    def at(i):
        batch, frame, k, part = i
        sample = lambda j: x.at((batch, frame * step + j, *last)) * window.at((j,))  # noqa: E731
        return m.total((size,), lambda j: sample(j[0]) * _wave(m, j[0], k, size, part))

    return Tensor((x.shape[0], (x.shape[1] - size) // step + 1, _bins(a, size, 1), 2), at, x.dtype)


def _bins(a, size, default: int = 0):
    """Return the number of bins of a DFT; the attribute `onesided` leaves out the bins that mirror others."""
    return size // 2 + 1 if a("onesided", default) else size


def _wave(m, position, k, size, part):
    return m.element("wave", (position, k, size, part))


def global_pool(how: Callable) -> Callable:
    """Make a global pool, which reduces all axes after batch and channels to size 1 with `how(m, sizes, body)`."""
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
    """Define BatchNormalization at inference: scale · (x - mu) / √(variance + epsilon) + offset, per channel."""
    for t in (scale, offset, mu, variance):
        m.require(t.rank == 1)
        m.require(t.shape[0] == (x.shape[1] if x.rank > 1 else 1))

    def at(i):
        c = (i[1] if x.rank > 1 else 0,)
        deviation = m.apply("sqrt", variance.at(c) + m.number(a("epsilon", 1e-5)))
        return scale.at(c) * m.quotient(x.at(i) - mu.at(c), deviation) + offset.at(c)

    return Tensor(x.shape, at, x.dtype)


def normalized(m, a, x, centre: Callable, axis: int = -1) -> Tensor:
    """Return (x - c) / √(mean of (x - c)² + epsilon), where c and the mean are taken over the axes from `axis` on.

    Args:
      m: the algebra.
      a: the attributes `axis` and `epsilon`.
      x: the tensor.
      centre: `centre(m, sizes, element)` returns c from the sizes and elements along these axes.
      axis: the first of these axes if there is no attribute `axis`.
    """
    axis = axis_of(m, a("axis", axis), x.rank)
    sizes = x.shape[axis:]

    def at(i):
        element = lambda k: x.at((*i[:axis], *k))  # noqa: E731
        mu = centre(m, sizes, element)
        variance = mean(m, sizes, lambda k: (element(k) - mu) * (element(k) - mu))
        return m.quotient(element(i[axis:]) - mu, m.apply("sqrt", variance + m.number(a("epsilon", 1e-5))))

    return Tensor(x.shape, at, x.dtype)


def scaled(m, normal: Tensor, scale: Tensor, offset: Tensor | None = None) -> Tensor:
    """Return normal · scale + offset. Broadcasting scale and offset must not enlarge the tensor `normal`."""
    require_not_enlarging(m, scale, normal)
    result = pointwise(m, lambda p, q: p * q, normal, scale)
    if offset is None:
        return result
    require_not_enlarging(m, offset, normal)
    return pointwise(m, lambda p, q: p + q, result, offset)


def layer_normalization(m, a, x, scale, offset=None):
    return scaled(m, normalized(m, a, x, mean), scale, offset)


def rms_normalization(m, a, x, scale):
    return scaled(m, normalized(m, a, x, lambda m, sizes, body: m.number(0)), scale)


def instance_normalization(m, a, x, scale, offset):
    """Define InstanceNormalization: normalise each channel of each image, then scale it."""
    m.require(x.rank > 2)
    return per_channel(m, normalized(m, a, x, mean, 2), scale, offset)


def group_normalization(m, a, x, scale, offset):
    """Define GroupNormalization: normalise the channels of each group together, then scale each channel."""
    m.require(x.rank > 2)
    groups = a("num_groups")
    m.require(x.shape[1] == (x.shape[1] // groups) * groups)
    apart = renamed(m, x, (x.shape[0], groups, x.shape[1] // groups * prod(x.shape[2:])))
    return per_channel(m, renamed(m, normalized(m, a, apart, mean, 2), x.shape), scale, offset)


def per_channel(m, normal: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Return normal · scale + offset, where scale and offset have one number per entry of axis 1."""
    for t in (scale, offset):
        m.require(t.rank == 1)
        m.require(t.shape[0] == normal.shape[1])
    return Tensor(normal.shape, lambda i: normal.at(i) * scale.at(i[1:2]) + offset.at(i[1:2]), normal.dtype)


@dataclass(frozen=True)
class Windows:
    """Sliding windows, given by one number per spatial axis.

    Output o reads input position o·stride + k·dilation - begin at kernel position k.
    """

    sizes: tuple  # spatial sizes of the input
    kernel: tuple  # spatial sizes of the kernel
    strides: tuple
    dilations: tuple
    begin: tuple  # padding before the first element of each axis
    end: tuple  # padding after the last element of each axis
    outputs: tuple  # number of windows along each axis

    def positions(self, o: tuple, k: tuple) -> list[tuple]:
        """Return (input position, input size) along each axis, for output index o and kernel index k."""
        result = []
        for j, size in enumerate(self.sizes):
            result.append((o[j] * self.strides[j] + k[j] * self.dilations[j] - self.begin[j], size))
        return result


def indices_of(positions: list[tuple]) -> tuple:
    """Return the first entries of (position, size) pairs, an index of the input."""
    return tuple(position for position, _ in positions)


def windows_of(m, a, sizes: tuple, kernel: tuple, pools: bool = False) -> Windows:
    """Return the windows of a convolution or a pool, as ONNX Runtime places them.

    ONNX Runtime requires that a pool's padding is smaller than its kernel, and that a convolution with automatic
    padding has dilation 1. A pool's automatic padding ignores the dilation, contrary to ONNX's specification. Where a
    pool's automatic padding would be negative (stride larger than kernel), versions of the operator differ, so this
    function requires that the padding is not negative.

    Args:
      m: the algebra.
      a: the attributes of the operator.
      sizes: the spatial sizes of the input.
      kernel: the spatial sizes of the kernel.
      pools: True for a pool.
    """
    own = m.windows(a, sizes, kernel)
    if own is not None:
        return own
    n, automatic = len(sizes), a("auto_pad", b"NOTSET")
    strides = a("strides") or (1,) * n
    dilations = a("dilations") or (1,) * n
    pads = a("pads") or (0,) * (2 * n)
    begin, end, outputs = [], [], []
    for j, (size, k, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if automatic in (b"SAME_UPPER", b"SAME_LOWER"):
            missing = ((size + stride - 1) // stride - 1) * stride + k - size
            m.require(missing >= 0 if pools else dilation == 1)
            first, last = halves(m, missing, automatic)
        elif automatic == b"VALID":
            first, last = 0, 0
        else:
            first, last = pads[j], pads[j + n]
            m.require((first >= 0) & (last >= 0))
            m.require(not pools or ((first < k) & (last < k)))
        room = size + first + last - (k - 1) * dilation - 1
        m.require(room >= 0)
        count = room // stride + 1
        if a("ceil_mode", 0):
            count = (room + stride - 1) // stride + 1
            count = m.choose((count - 1) * stride >= size + first, count - 1, count)
        begin.append(first)
        end.append(last)
        outputs.append(count)
    return Windows(sizes, kernel, tuple(strides), tuple(dilations), tuple(begin), tuple(end), tuple(outputs))


def halves(m, missing, automatic: bytes) -> tuple:
    """Split the total padding of an axis into (begin, end).

    Args:
      m: the algebra.
      missing: the total padding; a negative number counts as 0.
      automatic: the attribute `auto_pad`. If the total is odd, the end is larger for SAME_UPPER, else the beginning.
    """
    missing = m.choose(missing > 0, missing, 0)
    first = missing // 2 if automatic == b"SAME_UPPER" else missing - missing // 2
    return first, missing - first


def conv(m, a, x, w, bias=None):
    """Define Conv for x (batch, group · depth, *spatial), w (channels, depth, *kernel) and bias (channels,)."""
    m.require(x.rank == w.rank and x.rank > 2)
    groups, outputs, depth = a("group", 1), w.shape[0], w.shape[1]
    m.require(x.shape[1] == depth * groups)
    m.require(outputs == (outputs // groups) * groups)
    windows = windows_of(m, a, x.shape[2:], w.shape[2:])
    if bias is not None:
        m.require(bias.rank == 1 and bias.shape[0] == outputs)

    def at(i):
        first = (i[1] // (outputs // groups)) * depth  # first channel of the group

        def term(k):
            positions = windows.positions(i[2:], k[1:])
            element = m.inside(positions, lambda: x.at((i[0], first + k[0], *indices_of(positions))))
            return element * w.at((i[1], *k))

        total = m.total((depth, *windows.kernel), term)
        return total + bias.at((i[1],)) if bias is not None else total

    return Tensor((x.shape[0], outputs, *windows.outputs), at)


def transposed_windows_of(m, a, sizes: tuple, kernel: tuple) -> Windows:
    """Return the windows of ConvTranspose: windows over the operator's output, one per position of its input.

    If automatic padding is negative, ONNX Runtime's output is smaller than ONNX specifies; this function follows ONNX
    Runtime.

    Args:
      m: the algebra.
      a: the attributes of the operator.
      sizes: the spatial sizes of the input.
      kernel: the spatial sizes of the kernel.
    """
    n, automatic, wanted = len(sizes), a("auto_pad", b"NOTSET"), a("output_shape")
    strides = a("strides") or (1,) * n
    dilations = a("dilations") or (1,) * n
    pads = a("pads") or (0,) * (2 * n)
    more = a("output_padding") or (0,) * n
    begin, end, outputs = [], [], []
    for j, (size, k, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        reached = (size - 1) * stride + (k - 1) * dilation + 1
        whole = reached + more[j]
        first, last = (0, 0) if automatic == b"VALID" else (pads[j], pads[j + n])
        if wanted is not None or automatic in (b"SAME_UPPER", b"SAME_LOWER"):
            missing = whole - (wanted[j] if wanted is not None else size * stride)
            first, last = halves(m, missing, automatic)
        begin.append(first)
        end.append(last)
        outputs.append(wanted[j] if wanted is not None else whole - first - last)
        m.require(outputs[-1] >= 1)
        beyond = outputs[-1] + first + last - reached
        m.require((beyond >= 0) & (beyond < stride))
    return Windows(tuple(outputs), kernel, tuple(strides), tuple(dilations), tuple(begin), tuple(end), sizes)


def conv_transpose(m, a, x, w, bias=None):
    """Define ConvTranspose: input q and kernel position k contribute to output q·stride + k·dilation - begin."""
    m.require(x.rank == w.rank and x.rank > 2)
    groups, depth, outputs = a("group", 1), w.shape[0], w.shape[1]
    m.require(x.shape[1] == depth)
    m.require(depth == (depth // groups) * groups)
    windows = transposed_windows_of(m, a, x.shape[2:], w.shape[2:])
    if bias is not None:
        m.require(bias.rank == 1 and bias.shape[0] == outputs * groups)

    def at(i):
        first = (i[1] // outputs) * (depth // groups)  # first channel of the group
        channel = i[1] - (i[1] // outputs) * outputs

        def term(k):
            steps = zip(i[2:], k[1:], windows.strides, windows.dilations, windows.begin, windows.outputs, strict=True)
            positions, left = [], []
            for o, offset, stride, dilation, begin, size in steps:
                reached = o + begin - offset * dilation
                positions.append((reached // stride, size))
                left.append((reached - (reached // stride) * stride, 1))  # the remainder must be 0
            source = (i[0], first + k[0], *indices_of(positions))
            return m.inside(positions + left, lambda: x.at(source)) * w.at((first + k[0], channel, *k[1:]))

        total = m.total((depth // groups, *windows.kernel), term)
        return total + bias.at((i[1],)) if bias is not None else total

    return Tensor((x.shape[0], outputs * groups, *windows.sizes), at)


def max_pool(m, a, x):
    m.require(x.rank > 2)
    windows = windows_of(m, a, x.shape[2:], a("kernel_shape"), pools=True)

    def at(i):
        def positions(k):
            return windows.positions(i[2:], k)

        return m.greatest(windows.kernel, lambda k: x.at((*i[:2], *indices_of(positions(k)))), positions)

    return Tensor((*x.shape[:2], *windows.outputs), at, x.dtype)


def average_pool(m, a, x):
    m.require(x.rank > 2)
    windows = windows_of(m, a, x.shape[2:], a("kernel_shape"), pools=True)

    def at(i):
        def positions(k):
            return windows.positions(i[2:], k)

        def counted(k):
            """Return (position, size) pairs; the element counts in the mean if each position lies inside its size.

            With count_include_pad, the size includes the padding, but not the elements that ceil_mode adds.
            """
            if not a("count_include_pad", 0):
                return positions(k)
            result = []
            for (position, size), begin, end in zip(positions(k), windows.begin, windows.end, strict=True):
                result.append((position + begin, size + begin + end))
            return result

        def element(k):
            return m.inside(positions(k), lambda: x.at((*i[:2], *indices_of(positions(k)))))

        count = m.total(windows.kernel, lambda k: m.inside(counted(k), lambda: m.number(1)))
        if a("count_include_pad", 0) and not a("ceil_mode", 0):
            count = m.number(prod(windows.kernel))
        return m.quotient(m.total(windows.kernel, element), count)

    return Tensor((*x.shape[:2], *windows.outputs), at)
