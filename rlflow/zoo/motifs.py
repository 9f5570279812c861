"""What random models are put together from: substructures that the rules match, almost match, or meet on the way.

A motif draws on a `Sketch`. Most choose between forms that a rule takes and look-alikes that it must refuse; wherever
it does not matter, the attributes, the order of operands and the shapes that broadcast are drawn, too.
"""

from math import prod

import numpy as np
from onnx import TensorProto

from rlflow.zoo.sketch import Misfit, Sketch, Tensor

# -- element-wise ----------------------------------------------------------------------------------


def commuted(s: Sketch, kind: str, x: Tensor, y: Tensor) -> Tensor:
    return s.op(kind, y, x) if s.chance(0.3) else s.op(kind, x, y)


def operand(s: Sketch, x: Tensor, positive: bool = False) -> Tensor:
    """A constant that broadcasts against x: mostly without enlarging it."""
    rank, shape = len(x.shape), x.shape
    forms = [(), (), (1,), shape, shape[-1:], tuple(n if s.chance(0.5) else 1 for n in shape)]
    if rank > 1:
        channels = (shape[1], *[1] * (rank - 2))
        forms += [channels, (1, *channels)] * (3 if rank > 2 else 1)
    if s.chance(0.05):
        forms = [(2, *shape), (1, *shape), (1,) * (rank + 1)]
    return s.weight(s.pick(forms), dtype=x.dtype, positive=positive)


def with_constant(s: Sketch, x: Tensor, kind: str) -> Tensor:
    """x and a constant, now and then the neutral one."""
    if s.chance(0.12):
        neutral = 0 if kind in ("Add", "Sub") else 1
        c = s.constant(np.full(s.pick([(), (1,), (1,) * len(x.shape)]), neutral, x.dtype))
        return s.op(kind, x, c, bound=x.bound)
    if kind == "Div":
        c = operand(s, x, positive=True)
        return s.op("Div", x, c, bound=2 * x.bound)
    c = operand(s, x)
    return s.op("Sub", x, c) if kind == "Sub" and s.chance(0.8) else commuted(s, kind, x, c)


def constants_chain(s: Sketch) -> None:
    x, kind = s.number(), s.pick(["Add", "Mul", "Sub", "Div"])
    for _ in range(int(s.rng.integers(1, 4))):
        x = with_constant(s, x, kind)
        kind = kind if s.chance(0.5) else s.pick(["Add", "Mul", "Sub", "Div"])


def two(s: Sketch) -> None:
    x = s.number()
    y = s.like(x) if s.chance(0.8) else s.input([n if s.chance(0.5) else 1 for n in x.shape], x.dtype)
    commuted(s, s.pick(["Add", "Mul", "Sub"]), x, y)


def several(s: Sketch) -> None:
    """Variadic operators, of one to four operands."""
    x = s.real(empty=True)
    kinds = ["Sum", "Sum", "Max", "Min"] if s.float != np.float64 or s.opset < 13 else ["Sum", "Max"]
    s.op(s.pick(kinds), x, *(s.like(x) for _ in range(s.pick([0, 1, 1, 1, 2, 3]))))


def constant_outward(s: Sketch) -> None:
    """(x + c) + y, (x + c) · d"""
    x = s.number()
    inner = with_constant(s, x, s.pick(["Add", "Add", "Mul"]))
    if s.chance(0.5):
        commuted(s, s.pick(["Add", "Add", "Mul"]), inner, s.like(inner))
    else:
        commuted(s, "Mul", inner, operand(s, inner))


def factored(s: Sketch) -> None:
    """x·d + y·d, and x·d + y·e"""
    x = s.number()
    y, d = s.like(x), operand(s, x)
    e = d if s.chance(0.8) else operand(s, x)
    commuted(s, "Add", commuted(s, "Mul", x, d), commuted(s, "Mul", y, e))


def unary(s: Sketch) -> None:
    kind = s.pick(["Relu", "Relu", "Neg", "Identity", "Abs", "Sigmoid", "Tanh", "Clip", "Dropout", "Softmax"])
    x = s.real(low=1, empty=kind != "Softmax") if kind in ("Sigmoid", "Tanh", "Softmax") else s.number()
    if x.dtype.kind == "i" and kind not in ("Neg", "Identity", "Abs"):
        if kind != "Relu" or x.dtype != np.int32 or s.opset < 14:
            raise Misfit
    for _ in range(s.pick([1, 1, 2])):
        x = one(s, kind, x)


def one(s: Sketch, kind: str, x: Tensor) -> Tensor:
    match kind:
        case "Clip" if s.opset < 12 and x.dtype == np.float64:
            raise Misfit  # ONNX Runtime has no kernel
        case "Clip":
            low, high = (np.asarray(v, x.dtype) if s.chance(0.8) else None for v in (s.pick([0.0, -0.5]), 1.5))
            return s.op("Clip", x, late={"min": low, "max": high})
        case "Dropout":
            late = {"ratio": np.asarray(0.25, x.dtype)} if s.chance(0.4) else {}
            mask, unnamed = s.chance(0.3), s.chance(0.5)
            outputs = s.op("Dropout", x, late=late, outputs=1 + mask, omitted=[1] if unnamed else [])
            return outputs[0] if isinstance(outputs, list) else outputs
        case "Softmax":
            return s.op("Softmax", x, axis=s.pick([-1, len(x.shape) - 1, 0, 1 if len(x.shape) > 1 else 0]), bound=1)
        case "Sigmoid" | "Tanh":
            return s.op(kind, x, bound=1)
    return s.op(kind, x)


def square(s: Sketch) -> None:
    x = s.number()
    if x.bound > 12:
        raise Misfit
    if s.chance(0.4):
        s.op("Mul", x, x)
    elif x.dtype.kind == "f" or s.opset >= 12:
        dtype = x.dtype if s.opset < 12 or s.chance(0.7) else s.pick(["int64", "float32"])
        exponent = s.constant(np.full(s.pick([(), (), (1,), x.shape[-1:]]), s.pick([2, 2, 2, 1]), dtype))
        s.op("Pow", x, exponent, bound=max(x.bound**2, x.bound))


def choice(s: Sketch) -> None:
    """Comparisons and Where."""
    x = s.number()
    y = s.like(x)
    if not x.exact and x.dtype.kind == "f":  # then the result must not jump where the comparison changes
        threshold = s.constant(np.asarray(0.25, x.dtype))
        s.op("Where", s.op("Less", x, threshold), threshold, x, bound=max(x.bound, 1))
    else:
        compared = s.op(s.pick(["Less", "Greater"]), x, s.constant(np.asarray(1, x.dtype)))
        s.op("Where", compared, x, y, bound=max(x.bound, y.bound))


def cast(s: Sketch) -> None:
    s.op("Cast", s.number(), to=TensorProto.FLOAT)


# -- layout ----------------------------------------------------------------------------------------


def transpose(s: Sketch, x: Tensor, perm: list[int] | None) -> Tensor:
    return s.op("Transpose", x, perm=perm) if perm is not None else s.op("Transpose", x)


def perm_of(s: Sketch, rank: int) -> list[int] | None:
    return None if s.chance(0.2) else list(range(rank)) if s.chance(0.1) else s.permutation(rank)


def between(s: Sketch, x: Tensor) -> Tensor:
    """Nothing, or what moves through a change of layout."""
    return s.pick([
        lambda: x, lambda: x, lambda: s.op("Relu", x) if x.dtype.kind == "f" else x,
        lambda: commuted(s, "Mul", x, s.weight(s.pick([(), (1,), (1, 1)]), dtype=x.dtype)),
    ])()  # fmt: skip


def transposes(s: Sketch) -> None:
    x = between(s, s.number(low=1))
    for _ in range(int(s.rng.integers(1, 4))):
        x = between(s, transpose(s, x, perm_of(s, len(x.shape))))


def reshape(s: Sketch, x: Tensor, sizes) -> Tensor:
    return s.op("Reshape", x, s.constant(np.array(sizes, np.int64)), bound=x.bound)


def shape_for(s: Sketch, x: Tensor) -> list[int]:
    """A random shape of as many elements, with -1 and 0 now and then."""
    if s.chance(0.2):
        return list(x.shape)
    if prod(x.shape) == 0:
        return [0, *x.shape[1:]][: len(x.shape)]
    left, sizes = prod(x.shape), []
    for _ in range(int(s.rng.integers(0, 3))):
        sizes.append(s.pick([n for n in (1, 2, 3, 4, 6) if left % n == 0]))
        left //= sizes[-1]
    sizes = [sizes[k] for k in s.permutation(len(sizes))]
    sizes.insert(int(s.rng.integers(len(sizes) + 1)), -1 if s.chance(0.5) else left)
    return [0 if k < len(x.shape) and n == x.shape[k] and s.chance(0.3) else n for k, n in enumerate(sizes)]


def reshapes(s: Sketch) -> None:
    x = between(s, s.number())
    for _ in range(int(s.rng.integers(1, 4))):
        if s.chance(0.2) and x.shape:
            axis = s.pick([None, 1, 1, int(s.rng.integers(len(x.shape) + 1))])
            x = between(s, s.op("Flatten", x) if axis is None else s.op("Flatten", x, axis=axis))
        else:
            x = between(s, reshape(s, x, shape_for(s, x)))


def squeezes(s: Sketch) -> None:
    """Axes that come and go, the same ones or others."""
    x = s.number(high=3)
    axes = sorted(s.permutation(len(x.shape) + 1)[: s.pick([1, 1, 2])])
    x = s.op("Unsqueeze", x, late={"axes": np.array(axes)})
    if s.chance(0.3):
        x = s.op("Neg", x)
    ones = [k for k, n in enumerate(x.shape) if n == 1]
    others = [s.pick(ones)] if s.chance(0.3) else axes
    y = s.op("Squeeze", x, late={"axes": np.array(others)} if s.chance(0.9) else {})
    if s.chance(0.6):
        again = others if s.chance(0.8) and max(others) < len(y.shape) + len(others) else [0]
        s.op("Unsqueeze", y, late={"axes": np.array(again)})


def transposed_sum(s: Sketch) -> None:
    x = s.number(low=1)
    y, perm = s.like(x), perm_of(s, len(x.shape))
    other = perm if s.chance(0.8) else perm_of(s, len(x.shape))
    commuted(s, s.pick(["Add", "Add", "Mul"]), transpose(s, x, perm), transpose(s, y, other))


def moves(s: Sketch) -> None:
    """Operators that copy elements; no rule is about them."""
    x = s.number(low=1)
    axis = int(s.rng.integers(len(x.shape)))
    size = x.shape[axis]
    match s.pick(["gather", "slice", "expand", "pad", "shuffle"]):
        case "gather" if size:
            rows = np.asarray(s.rng.integers(0, size, s.pick([(), (2,), (2, 2)])))
            s.op("Gather", x, s.constant(rows), axis=axis, bound=x.bound)
        case "slice":
            bounds = {"starts": [int(size > 1)], "ends": [size], "axes": [axis]}
            s.op("Slice", x, late={name: np.array(value) for name, value in bounds.items()})
        case "expand":
            sizes = [n if n != 1 else s.pick([1, 2, 3]) for n in x.shape]
            s.op("Expand", x, s.constant(np.array(sizes)), bound=x.bound)
        case "pad" if x.dtype == s.float:
            late = {"pads": s.rng.integers(0, 2, 2 * len(x.shape))}
            s.op("Pad", x, late=late | ({"value": np.asarray(0.5, x.dtype)} if s.chance(0.5) else {}))
        case "shuffle":
            s.op("Gather", x, s.constant(np.array(s.permutation(size), np.int64)), axis=axis, bound=x.bound)


def reduction(s: Sketch) -> None:
    x = s.real(low=1)
    kind = s.pick(["ReduceMean", "ReduceSum", "ReduceMax"])
    axes = np.array(sorted(s.permutation(len(x.shape))[: s.pick([1, 1, 2])]))
    keep = {} if s.chance(0.4) else {"keepdims": s.pick([0, 1])}
    if s.chance(0.4):
        axes = axes - len(x.shape)
    bound = x.bound * (prod(x.shape) if kind == "ReduceSum" else 1)
    s.op(kind, x, late={"axes": axes} if s.chance(0.9) else {}, bound=bound, **keep)


def top(s: Sketch) -> None:
    """TopK, one of whose outputs may be left unused."""
    x = s.real(low=1)
    if x.exact:
        s.op("TopK", x, late={"k": np.array([1], np.int64)}, outputs=2, axis=-1, bound=max(x.bound, x.shape[-1]))


# -- Concat and Split ------------------------------------------------------------------------------


def signed(s: Sketch, axis: int, x: Tensor) -> int:
    return axis - len(x.shape) if s.chance(0.3) else axis


def split(s: Sketch, x: Tensor, axis: int, parts: int | None = None) -> list[Tensor]:
    """Two or three parts of random sizes, or equal ones that are not written down."""
    size, parts = x.shape[axis], parts or s.pick([2, 2, 2, 3])
    if size < parts:
        raise Misfit
    if size % parts == 0 and s.chance(0.15):
        counted = {"num_outputs": parts} if s.opset >= 18 else {}
        return s.op("Split", x, outputs=parts, axis=signed(s, axis, x), **counted)
    cuts = sorted(1 + k for k in s.permutation(size - 1)[: parts - 1])
    sizes = np.diff([0, *cuts, size])
    return s.op("Split", x, late={"split": sizes}, outputs=parts, axis=signed(s, axis, x))


def wide(s: Sketch) -> tuple[Tensor, int]:
    """A tensor and an axis that can be split."""
    x = s.number(low=1)
    axes = [k for k, n in enumerate(x.shape) if n > 1]
    if not axes:
        x = s.input([4, 3], x.dtype)
        axes = [0, 1]
    return x, s.pick(axes)


def concat(s: Sketch, axis: int, *xs: Tensor) -> Tensor:
    return s.op("Concat", *xs, axis=signed(s, axis, xs[0]))


def split_concat(s: Sketch) -> None:
    x, axis = wide(s)
    parts = split(s, x, axis)
    if s.chance(0.3):
        parts = [parts[k] for k in s.permutation(len(parts))]
    if s.chance(0.4) and x.dtype.kind == "f":
        parts = [s.op("Relu", part) if s.chance(0.9) else part for part in parts]
    if s.chance(0.15):
        parts = parts[1:]
    concat(s, axis if s.chance(0.9) else int(s.rng.integers(len(x.shape))), *parts)


def relu_split(s: Sketch) -> None:
    x, axis = wide(s)
    if x.dtype.kind == "i":
        raise Misfit
    for part in split(s, x, axis):
        if s.chance(0.9):
            s.op("Relu", part)


def split_split(s: Sketch) -> None:
    x = s.real(low=1, high=3) if s.chance(0.5) else s.input([s.pick([4, 6, 8]), 2])
    axis = int(np.argmax(x.shape))
    parts = split(s, x, axis)
    inner = s.pick([k for k, part in enumerate(parts) if part.shape[axis] > 1] or [0])
    split(s, parts[inner], axis)


def split_of_concat(s: Sketch) -> None:
    x = s.number(low=1)
    axis = int(s.rng.integers(len(x.shape)))
    sizes = list(x.shape)
    sizes[axis] = s.pick([1, 2, 3])
    y = s.like(x) if s.chance(0.5) else s.input(sizes, x.dtype)
    joined = concat(s, axis, x, y)
    if s.chance(0.75):
        sizes = np.array([x.shape[axis], y.shape[axis]])
        s.op("Split", joined, late={"split": sizes}, outputs=2, axis=signed(s, axis, x))
    else:
        split(s, joined, axis, 2)


def transposed_split(s: Sketch) -> None:
    x, axis = wide(s)
    perm = perm_of(s, len(x.shape))
    for part in split(s, x, axis):
        transpose(s, part, perm if s.chance(0.9) else perm_of(s, len(x.shape)))


def concats(s: Sketch) -> None:
    """Nested, of one tensor, of clamped tensors, clamped."""
    x = s.number(low=1)
    axis = int(s.rng.integers(len(x.shape)))
    xs = [x, *(s.like(x) for _ in range(s.pick([0, 1, 1, 2])))]
    if x.dtype.kind == "f" and s.chance(0.4):
        xs = [s.op("Relu", y) if s.chance(0.85) else y for y in xs]
    joined = concat(s, axis, *xs)
    if s.chance(0.4):
        joined = concat(s, axis if s.chance(0.8) else 0, joined, x) if s.chance(0.5) else concat(s, axis, x, joined)
    if x.dtype.kind == "f" and s.chance(0.5):
        s.op("Relu", joined)


# -- matrices --------------------------------------------------------------------------------------


def matmul(s: Sketch, x: Tensor, w: Tensor) -> Tensor:
    if x.shape[-1] == 0 and len(w.shape) == 1:
        raise Misfit  # ONNX Runtime leaves the result as it finds it
    return s.op("MatMul", x, w, bound=max(1, x.shape[-1]) * x.bound * w.bound)


def columns(s: Sketch, x: Tensor) -> Tensor:
    """A weight for the last axis of x."""
    if not x.shape:
        raise Misfit
    inner, size = x.shape[-1], s.pick([1, 2, 3, 4, 5])
    if len(x.shape) > 2 and s.chance(0.1):
        return s.weight((x.shape[-3], inner, size), inner, x.dtype)
    return s.weight((inner,) if s.chance(0.04) else (inner, size), inner, x.dtype)


def biased(s: Sketch, y: Tensor) -> Tensor:
    size = y.shape[-1:]
    shape = s.pick([size] * 6 + [(), (1, *size), (1,), y.shape])
    return commuted(s, "Add", y, s.weight(shape, dtype=y.dtype))


def scaled(s: Sketch, y: Tensor) -> Tensor:
    shape = s.pick([(), (), (1,), y.shape[-1:], (1, 1), y.shape[-2:-1] + (1,)])
    return commuted(s, "Mul", y, s.weight(shape, dtype=y.dtype))


def factor(s: Sketch) -> Tensor:
    """What a weight multiplies: mostly of two or three axes."""
    return s.number(low=1, high=4) if s.chance(0.4) else s.real(rank=s.pick([2, 2, 3]))


def linear(s: Sketch) -> None:
    x = factor(s)
    y = matmul(s, x, columns(s, x))
    for _ in range(s.pick([0, 1, 1, 2])):
        y = s.pick([biased, biased, scaled])(s, y)
    if y.dtype.kind == "f" and s.chance(0.3):
        s.op("Relu", y)


def linear_siblings(s: Sketch) -> None:
    x, with_bias = factor(s), s.chance(0.6)
    w = columns(s, x)
    for k in range(s.pick([2, 2, 3])):
        y = matmul(s, x, w if k == 0 or s.chance(0.1) else columns(s, x))
        if with_bias:
            biased(s, y)


def matmul_chain(s: Sketch) -> None:
    x = factor(s)
    y = matmul(s, x, columns(s, x))
    if s.chance(0.15):
        y = s.op("Identity", y)
    matmul(s, y, columns(s, y))


def gemm(s: Sketch, x: Tensor, attributes: dict) -> Tensor:
    rows, inner = reversed(x.shape) if attributes.get("transA") else x.shape
    size = s.pick([1, 2, 3, 4, 5])
    w = s.weight((size, inner) if attributes.get("transB") else (inner, size), inner)
    bias = s.pick([(size,)] * 6 + [(), (1, size), (rows, 1), (rows, size), (1,)])
    if s.opset >= 11 and s.chance(0.1):
        return s.op("Gemm", x, w, bound=2 * (1 + inner) * x.bound * w.bound, **attributes)
    return s.op("Gemm", x, w, s.weight(bias), bound=2 * (inner * x.bound * w.bound + 2), **attributes)


def gemms(s: Sketch) -> None:
    x = s.real(rank=2)
    attributes = {"transA": 1} if s.chance(0.2) else {}
    attributes |= {"transB": s.pick([0, 1])} if s.chance(0.6) else {}
    attributes |= {"alpha": s.pick([0.5, 1.0]), "beta": s.pick([2.0, 1.0])} if s.chance(0.3) else {}
    for _ in range(s.pick([1, 1, 2, 3])):
        y = gemm(s, x, attributes)
        if s.chance(0.4):
            biased(s, y)


def attention(s: Sketch) -> None:
    """A product of two computed tensors, scaled before or after."""
    x = s.real(low=2, high=4)
    inner = s.like(x)
    y = s.op("Transpose", inner, perm=[*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2])
    factors = [(), (), (1,), (1, 1), x.shape[-1:]]
    if s.chance(0.5):
        x = commuted(s, "Mul", x, s.weight(s.pick(factors)))
    z = matmul(s, x, y)
    if s.chance(0.6):
        z = commuted(s, "Mul", z, s.weight(s.pick(factors[:4])))
    if s.chance(0.4):
        s.op("Softmax", z, axis=-1, bound=1)


def heads(s: Sketch) -> None:
    """Attention of several heads, their places and features by exporters' reshapes and transposes."""
    batch, places, count, depth = (int(n) for n in s.rng.integers(1, 4, 4))
    sizes = [batch, places, count, depth]

    def apart(perm: list[int]) -> Tensor:
        x = s.find(lambda t: t.dtype == s.float and t.shape == (batch, places, count * depth), lambda: s.input(
            (batch, places, count * depth)))  # fmt: skip
        return transpose(s, reshape(s, x, s.pick([sizes, [0, 0, count, -1], [0, 0, count, depth]])), perm)

    q, k, v = (apart(perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    z = matmul(s, q, k)
    if s.chance(0.7):
        z = s.op(s.pick(["Mul", "Div"]), z, s.constant(np.asarray(s.pick([0.5, 2.0, 1.5]), z.dtype)), bound=2 * z.bound)
    if s.chance(0.4):
        z = commuted(s, "Add", z, s.weight(s.pick([(1, 1, 1, places), (batch, 1, places, places), (places,)])))
    z = s.op("Softmax", z, axis=s.pick([-1, -1, -1, 3, 2]), bound=1)
    reshape(s, transpose(s, matmul(s, z, v), [0, 2, 1, 3]), s.pick([[batch, places, count * depth], [0, 0, -1]]))


# -- what exporters take apart ---------------------------------------------------------------------


def layer_norm(s: Sketch) -> None:
    x = s.real(low=1)
    x = s.op("Tanh", x, bound=1) if x.bound > 8 else x  # its square must not be too large
    last, rank = x.shape[-1], len(x.shape)
    axis = s.pick([-1, -1, -1, rank - 1, 0])
    mean = s.op("ReduceMean", x, late={"axes": np.array([axis])}, keepdims=1)
    centred = s.op("Sub", x, mean)
    squared = s.op("Pow", centred, s.constant(np.asarray(2, x.dtype)), bound=centred.bound**2)
    axis = axis if s.chance(0.85) else s.pick([-1, 0])
    variance = s.op("ReduceMean", squared, late={"axes": np.array([axis])}, **{"keepdims": 1} if s.chance(0.5) else {})
    epsilon = s.pick([0.5, 0.125, 2**-10])
    summand = s.constant(np.full(s.pick([(), (), (1,), (last,)]), epsilon, x.dtype))
    deviation = s.op("Sqrt", commuted(s, "Add", variance, summand))
    y = s.op("Div", centred, deviation, bound=centred.bound / epsilon**0.5)
    sizes = s.pick([(last,)] * 5 + [(1,), x.shape])
    biased(s, commuted(s, "Mul", y, s.weight(sizes)))


def fused_layer_norm(s: Sketch) -> None:
    if s.opset < 17:
        raise Misfit
    x = s.real(low=1)
    x = commuted(s, "Add", x, s.like(x)) if s.chance(0.5) else x
    outputs = s.pick([1, 1, 2, 3])
    s.op(
        "LayerNormalization", x, s.weight(x.shape[-1:]), *([s.weight(x.shape[-1:])] if s.chance(0.7) else []),
        outputs=outputs, omitted=[1] if outputs == 3 and s.chance(0.5) else [], epsilon=s.pick([0.5, 1e-2]),
        bound=max(x.bound, 10, 2 * x.shape[-1] ** 0.5 + 2),
    )  # fmt: skip


def gelu(s: Sketch) -> None:
    if s.float == np.float64:
        raise Misfit  # ONNX Runtime has no Erf
    x = s.real()
    x = biased(s, x) if x.shape and s.chance(0.5) else x
    root = s.constant(np.asarray(s.pick([2**0.5, 2**0.5, 1.4142, 1.5]), x.dtype))
    erf = s.op("Erf", s.op("Div", x, root, bound=x.bound), bound=1)
    one_, half = (s.constant(np.asarray(v, x.dtype)) for v in (1, 0.5))
    scaled_ = commuted(s, "Mul", x, commuted(s, "Add", erf, one_))
    commuted(s, "Mul", scaled_, half if s.chance(0.9) else one_)


def gated(s: Sketch) -> None:
    x = s.real()
    inner = commuted(s, "Mul", x, s.constant(np.asarray(s.pick([1.702, 1.5]), x.dtype))) if s.chance(0.6) else x
    commuted(s, "Mul", x, s.op("Sigmoid", inner, bound=1))


def softmax(s: Sketch) -> None:
    x = s.real(low=1)
    axis = np.array([s.pick([-1, len(x.shape) - 1, 0])])
    shifted = s.op("Sub", x, s.op("ReduceMax", x, late={"axes": axis}, keepdims=1))
    powers = s.op("Exp", shifted, bound=1)
    s.op("Div", powers, s.op("ReduceSum", powers, late={"axes": axis}, keepdims=1, bound=x.shape[axis[0]]), bound=1)


MOTIFS = {  # → how often, relative to the others
    constants_chain: 6, two: 3, several: 2, constant_outward: 3, factored: 2, unary: 6, square: 2, choice: 1, cast: 0.5,
    transposes: 4, reshapes: 4, squeezes: 3, transposed_sum: 2, moves: 3, reduction: 2, top: 0.5,
    split_concat: 3, relu_split: 2, split_split: 2, split_of_concat: 2, transposed_split: 2, concats: 3,
    linear: 4, linear_siblings: 3, matmul_chain: 2, gemms: 3, attention: 3, heads: 0.5,
    layer_norm: 3, fused_layer_norm: 1, gelu: 3, gated: 1, softmax: 1,
}  # fmt: skip
