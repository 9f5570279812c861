"""One block of four transformers, word by word as torch's exporters write it, with random weights.

A block is a text of ONNX's own language whose sizes are words. `model` fills them in, so that what is measured on a
block needs no exporter, and no file.
"""

from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

HEAD = 64  # features of a head


class Block(NamedTuple):
    """A text, and the sizes that its words stand for.

    Attributes:
      length: of the sequence.  past: of what was there before it.  width: features.  inner: those between.
      key_heads: of keys and values; the heads of queries are width / HEAD.
      inputs: beside x, as the text format declares them.
      all_seen: whether the mask c, which is an input otherwise, is stored and masks nothing.
    """

    text: str
    opset: int
    length: int
    past: int = 0
    width: int = 768
    inner: int = 3072
    key_heads: int = 12
    inputs: str = ""
    all_seen: bool = False


# -- pieces of text --------------------------------------------------------------------------------

# Heads of the queries, keys and values that three products gave.
HEADS = """
    q3 = Reshape(q2, q_heads)  q = Transpose <perm = [0, 2, 1, 3]> (q3)
    k3 = Reshape(k2, k_heads)  k = Transpose <perm = [0, 2, 1, 3]> (k3)
    v3 = Reshape(v2, k_heads)  v = Transpose <perm = [0, 2, 1, 3]> (v3)
"""
MASK = "m = Where(c, zero, least)  t = Add(s, m)"
GUARD = "p = Softmax <axis = -1> (t)  nan = IsNaN(p)  g = Where(nan, zero, p)"
OUTWARD = "a3 = MatMul(a2, wo)  a4 = Add(a3, bo)"
GELU = """
    f1 = MatMul(n2, w1)  f2 = Add(f1, b1)  d = Div(f2, root2)  e = Erf(d)  e1 = Add(e, one)  e2 = Mul(half, e1)
    f3 = Mul(f2, e2)  f4 = MatMul(f3, w2)  f5 = Add(f4, b2)
"""


def projections(x: str) -> str:
    products = [f"{p}1 = MatMul({x}, w{p})  {p}2 = Add({p}1, b{p})" for p in "qkv"]
    return "  ".join(products)


def scores_of_stacked(keys: str) -> str:
    """dynamo transposes the keys while they are stacked."""
    return f"""
    kk = Reshape({keys}, stacked)  kt = Transpose <perm = [0, 2, 1]> (kk)  kr = Reshape(kt, across)
    qs = Mul(q, root)  ks = Mul(kr, root)  s = MatMul(qs, ks)
    """


def attended(values: str) -> str:
    return f"a = MatMul(g, {values})  a1 = Transpose <perm = [0, 2, 1, 3]> (a)  a2 = Reshape(a1, joined)"


ATTENTION = f"""{HEADS} {scores_of_stacked("k")} {MASK} {GUARD} {attended("v")}"""

VIT = f"""
    n = LayerNormalization <axis = -1> (x, s1, o1)
    {projections("n")} {ATTENTION} {OUTWARD}
    r = Add(a4, x)  n2 = LayerNormalization <axis = -1> (r, s2, o2)
    {GELU} y = Add(f5, r)
"""
BERT = f"""
    {projections("x")} {ATTENTION} {OUTWARD}
    r = Add(a4, x)  n2 = LayerNormalization <axis = -1> (r, s1, o1)
    {GELU} r2 = Add(f5, n2)  y = LayerNormalization <axis = -1> (r2, s2, o2)
"""
GPT2 = f"""
    n = LayerNormalization <axis = -1> (x, s1, o1)
    n1 = Reshape(n, flat)  qkv = Gemm(n1, wqkv, bqkv)  qkv1 = Reshape(qkv, deep)
    q2, k2, v2 = Split <axis = 2> (qkv1, thirds)
    {HEADS} keys = Concat <axis = -2> (past_k, k)  values = Concat <axis = -2> (past_v, v)
    {scores_of_stacked("keys")} {MASK} {GUARD} {attended("values")}
    a3 = Reshape(a2, flat)  a4 = Gemm(a3, wo, bo)  a5 = Reshape(a4, joined)
    r = Add(a5, x)  n2 = LayerNormalization <axis = -1> (r, s2, o2)
    n3 = Reshape(n2, flat)  f1 = Gemm(n3, w1, b1)  f2 = Reshape(f1, deep_inner)
    h = Mul(f2, half)  u = Pow(f2, three)  u1 = Mul(u, cubic)  u2 = Add(f2, u1)  u3 = Mul(u2, slope)  u4 = Tanh(u3)
    u5 = Add(u4, one)  f3 = Mul(h, u5)
    f4 = Reshape(f3, flat_inner)  f5 = Gemm(f4, w2, b2)  f6 = Reshape(f5, joined)  y = Add(r, f6)
"""


def rotated(x: str) -> str:
    """The rotary embedding of queries or keys: qe or ke of q or k."""
    return f"""
    {x}_c = Mul({x}, cos)  {x}_l = Slice({x}, from0, to_half, axis3)  {x}_h = Slice({x}, to_half, to_end, axis3)
    {x}_n = Neg({x}_h)  {x}_t = Concat <axis = -1> ({x}_n, {x}_l)  {x}_s = Mul({x}_t, sin)  {x}e = Add({x}_c, {x}_s)
"""


def root_mean_square(x: str, scale: str, result: str) -> str:
    return f"""
    {result}p = Pow({x}, two)  {result}m = ReduceMean <axes = [-1], keepdims = 1> ({result}p)
    {result}a = Add({result}m, epsilon)  {result}q = Sqrt({result}a)  {result}d = Div(one, {result}q)
    {result}x = Mul({x}, {result}d)  {result} = Mul({scale}, {result}x)
"""


def shared(x: str, result: str) -> str:
    """Heads of keys or values, each copied for all queries that share it."""
    return f"""
    {result}u = Unsqueeze({x}, axis2)  {result}c = Expand({result}u, copies)  {result} = Reshape({result}c, all_heads)
"""


LLAMA = f"""
    {root_mean_square("x", "s1", "n")}
    q2 = MatMul(n, wq)  k2 = MatMul(n, wk)  v2 = MatMul(n, wv)
    {HEADS} {rotated("q")} {rotated("k")} {shared("ke", "keys")} {shared("v", "values")}
    kt = Transpose <perm = [0, 1, 3, 2]> (keys)  qs = Mul(qe, root)  ks = Mul(kt, root)  s = MatMul(qs, ks)
    m = Where(c, zero, infinite)  t = Add(s, m) {GUARD} {attended("values")}
    a3 = MatMul(a2, wo)  r = Add(x, a3)
    {root_mean_square("r", "s2", "n2")}
    up = MatMul(n2, w1)  open = Sigmoid(up)  gate = Mul(up, open)  wide = MatMul(n2, w3)  both = Mul(gate, wide)
    f = MatMul(both, w2)  y = Add(r, f)
"""

BLOCKS = {
    "ViT-Base, 197 places": Block(VIT, 18, 197, all_seen=True),
    "BERT-Base, 128 places": Block(BERT, 18, 128, inputs=", bool[1, 1, 128, 128] c"),
    "GPT-2, 16 places after 112": Block(
        GPT2, 18, 16, 112,
        inputs=", bool[1, 1, 16, 128] c, float[1, 12, 112, 64] past_k, float[1, 12, 112, 64] past_v",
    ),
    "LLaMA-like, 128 places": Block(LLAMA, 17, 128, inner=2048, key_heads=4, inputs=", bool[1, 1, 128, 128] c"),
}  # fmt: skip


# -- what the words stand for ----------------------------------------------------------------------


def model(block: Block, seed: int = 0) -> onnx.ModelProto:
    """The block as a model: float x and y [1, length, width], random weights, none of them 0 or 1."""
    result = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {block.opset}, "com.microsoft": 1]>
        block (float[1, {block.length}, {block.width}] x{block.inputs})
        => (float[1, {block.length}, {block.width}] y) {{ {block.text} }}"""
    )
    read = {name for node in result.graph.node for name in node.input}
    arrays = weights(block, np.random.default_rng(seed)) | numbers(block) | lists(block)
    if block.all_seen:
        arrays["c"] = np.ones((1, 1, block.length, block.length), bool)
    result.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items() if name in read)
    onnx.checker.check_model(result, full_check=True)
    return result


def weights(block: Block, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Products' weights of about the size that keeps the scale of x; scales around 1; everything else small."""
    width, inner, narrow = block.width, block.inner, block.key_heads * HEAD
    shapes = {
        "wq": (width, width), "wk": (width, narrow), "wv": (width, narrow), "wo": (width, width), "w1": (width, inner),
        "w2": (inner, width), "w3": (width, inner), "wqkv": (width, 3 * width), "bq": width, "bk": narrow, "bv": narrow,
        "bo": width, "b1": inner, "b2": width, "bqkv": 3 * width, "o1": width, "o2": width, "s1": width, "s2": width,
    }  # fmt: skip
    arrays = {name: random.normal(0, 0.03, shape).astype(np.float32) for name, shape in shapes.items()}
    return arrays | {name: 1 + arrays[name] for name in ("s1", "s2")}


def numbers(block: Block) -> dict[str, np.ndarray]:
    """Numbers as exporters round them, and the angles of the rotary embedding."""
    scalars = {
        "zero": 0.0, "one": 1.0, "two": 2.0, "three": 3.0, "half": 0.5, "root": HEAD**-0.25, "root2": 2**0.5,
        "cubic": 0.044715, "slope": (2 / np.pi) ** 0.5, "epsilon": 1e-6, "least": np.finfo(np.float32).min,
        "infinite": -np.inf,
    }  # fmt: skip
    speeds = 10_000 ** -(np.arange(0, HEAD, 2) / HEAD)
    angles = np.tile(np.arange(block.length)[:, None] * speeds, 2)[None, None]
    arrays = scalars | {"cos": np.cos(angles), "sin": np.sin(angles)}
    arrays |= {f"{name}_once": arrays[name][0, 0, :, : HEAD // 2] for name in ("cos", "sin")}
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}


def lists(block: Block) -> dict[str, np.ndarray]:
    """Shapes, axes and ends."""
    length, whole, heads = block.length, block.past + block.length, block.width // HEAD
    named = {
        "q_heads": (1, length, -1, HEAD), "k_heads": (1, length, -1, HEAD), "joined": (1, length, block.width),
        "stacked": (heads, whole, HEAD), "across": (1, heads, HEAD, whole), "flat": (-1, block.width),
        "flat_inner": (-1, block.inner), "deep": (1, length, 3 * block.width), "deep_inner": (1, length, block.inner),
        "thirds": (block.width,) * 3, "from0": (0,), "to_half": (HEAD // 2,), "to_end": (np.iinfo(np.int64).max,),
        "axis2": (2,), "axis3": (3,), "copies": (1, block.key_heads, heads // block.key_heads, length, HEAD),
        "all_heads": (1, heads, length, HEAD), "first_place": (0,),
    }  # fmt: skip
    return {name: np.array(values, np.int64) for name, values in named.items()}
