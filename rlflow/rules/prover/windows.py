"""Operators of sliding windows: convolutions and pools."""

from dataclasses import dataclass
from math import prod

from rlflow.rules.prover.tensors import Tensor


@dataclass(frozen=True)
class Windows:
    """Sliding windows: output o and kernel position k of an axis read input position o·stride + k·dilation - begin."""

    sizes: tuple  # of the input
    kernel: tuple
    strides: tuple
    dilations: tuple
    begin: tuple
    end: tuple
    outputs: tuple  # how many windows along each axis

    def positions(self, o: tuple, k: tuple) -> list[tuple]:
        """(position, size) along each axis."""
        result = []
        for j, size in enumerate(self.sizes):
            result.append((o[j] * self.strides[j] + k[j] * self.dilations[j] - self.begin[j], size))
        return result


def indices_of(positions: list[tuple]) -> tuple:
    """The positions of (position, size) pairs."""
    return tuple(position for position, _ in positions)


def windows_of(m, a, sizes: tuple, kernel: tuple, pools: bool = False) -> Windows:
    """The windows of a convolution or a pool, as ONNX Runtime lays them.

    It asks that the padding of a pool is less than its kernel, and that a convolution with automatic padding is not
    dilated. In a pool automatic padding does not count the dilation, which ONNX's text does; where it would be negative
    (strides beyond the kernel) versions of the operator differ, and this one asks that it is not.
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
    """Padding of that size (none if negative) as (begin, end); where it is odd `automatic` says which gets more."""
    missing = m.choose(missing > 0, missing, 0)
    first = missing // 2 if automatic == b"SAME_UPPER" else missing - missing // 2
    return first, missing - first


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
            positions = windows.positions(i[2:], k[1:])
            element = m.inside(positions, lambda: x.at((i[0], first + k[0], *indices_of(positions))))
            return element * w.at((i[1], *k))

        total = m.total((depth, *windows.kernel), term)
        return total + bias.at((i[1],)) if bias is not None else total

    return Tensor((x.shape[0], outputs, *windows.outputs), at)


def transposed_windows_of(m, a, sizes: tuple, kernel: tuple) -> Windows:
    """The windows of ConvTranspose: of its output, with the input's positions as the windows.

    Where automatic padding is less than nothing ONNX Runtime's output is smaller than ONNX says; its meaning is taken.
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
    """Every output sums what reaches it: kernel position k of input q lands at q·stride + k·dilation - begin."""
    m.require(x.rank == w.rank and x.rank > 2)
    groups, depth, outputs = a("group", 1), w.shape[0], w.shape[1]
    m.require(x.shape[1] == depth)
    m.require(depth == (depth // groups) * groups)
    windows = transposed_windows_of(m, a, x.shape[2:], w.shape[2:])
    if bias is not None:
        m.require(bias.rank == 1 and bias.shape[0] == outputs * groups)

    def at(i):
        first = (i[1] // outputs) * (depth // groups)  # of the channels of the group
        channel = i[1] - (i[1] // outputs) * outputs

        def term(k):
            steps = zip(i[2:], k[1:], windows.strides, windows.dilations, windows.begin, windows.outputs, strict=True)
            positions, left = [], []
            for o, offset, stride, dilation, begin, size in steps:
                reached = o + begin - offset * dilation
                positions.append((reached // stride, size))
                left.append((reached - (reached // stride) * stride, 1))  # a multiple of the stride
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
            """The positions that count: with padding if it is included; what ceil_mode adds never is."""
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
