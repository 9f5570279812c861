"""Small models with If, Loop, Scan, nested bodies and functions, each with rewrites inside a body."""

import numpy as np
import onnx

HEAD = '<ir_version: 8, opset_import: ["": {opset}{more}]>\n'
rng = np.random.default_rng(0)


def weight(*shape: int) -> str:
    """Return a float tensor with random content in the text form of ONNX, as type and value."""
    numbers = ",".join(f"{number:.4f}" for number in rng.normal(size=shape).reshape(-1) / 3)
    return f"float[{','.join(map(str, shape))}] NAME = {{{numbers}}}"


def named(name: str, *shape: int) -> str:
    return weight(*shape).replace("NAME", name)


def parsed(text: str, opset: int = 17, more: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(HEAD.format(opset=opset, more=more) + text)
    onnx.checker.check_model(model)
    return model


def lstm(steps: int | str = 5, batch: int | str = 2) -> onnx.ModelProto:
    """Return an LSTM as a Scan: gates by a product with captured weights, the state twice negated."""
    return parsed(f"""g (float[{steps},{batch},4] x, float[{batch},3] h0, float[{batch},3] c0)
      => (float[{batch},3] h, float[{batch},3] c, float[{steps},{batch},3] hs)
      <{named("w", 4, 12)}, {named("u", 3, 12)}, {named("b", 12)}> {{
      h, c, hs = Scan <num_scan_inputs = 2, body = cell (float[{batch},3] hp, float[{batch},3] cp, float[{batch},4] xt,
        float[{batch},4] again) => (float[{batch},3] hn, float[{batch},3] cn, float[{batch},3] out) {{
          xw = MatMul(xt, w) hu = MatMul(hp, u) s = Add(xw, hu) p = Add(s, b) n1 = Neg(p) n2 = Neg(n1)
          i, f, g1, o = Split <axis = 1> (n2)
          is = Sigmoid(i) fs = Sigmoid(f) gt = Tanh(g1) os = Sigmoid(o)
          fc = Mul(fs, cp) ig = Mul(is, gt) cn = Add(fc, ig) ct = Tanh(cn) hn = Mul(os, ct) out = Identity(hn)
      }}> (h0, c0, x, x) }}""")


def mamba(steps: int = 6, width: int = 4) -> onnx.ModelProto:
    """Return a selective scan as a Loop: h = exp(dt · a) · h + dt · b · x with slices of captured tensors in each
    step."""
    return parsed(f"""g (float[{steps},{width}] x, float[{steps},{width}] dt)
      => (float[{width},3] state, float[{steps},{width}] y)
      <{named("a", width, 3)}, {named("p", width, 3)}, {named("q", width, 3)},
       float[{width},3] h0 = {{{",".join("0" * width * 3)}}}, int64 trips = {{{steps}}},
       bool go = {{1}}, int64[1] last = {{1}}, float one = {{1.0}}> {{
      bs = MatMul(x, p)  cs = MatMul(x, q)
      state, y = Loop <body = step (int64 t, bool on, float[{width},3] h)
                            => (bool on2, float[{width},3] h2, float[{width}] yt) {{
          on2 = Identity(on)
          dtt = Gather(dt, t) dtc = Unsqueeze(dtt, last) scaled = Mul(dtc, a) decay = Exp(scaled)
          bt = Gather(bs, t) xt = Gather(x, t) ct = Gather(cs, t)
          db = Mul(dtc, bt) xc = Unsqueeze(xt, last) dbx = Mul(db, xc) kept = Mul(decay, h) k1 = Mul(kept, one)
          h1 = Add(k1, dbx) h2 = Identity(h1) hc = Mul(h2, ct) r = Relu(hc) r2 = Relu(r)
          yt = ReduceSum <keepdims = 0> (r2, last)
      }}> (trips, go, h0) }}""")


def branches() -> onnx.ModelProto:
    """Return an If whose branches use the same names and read the outer tensor `x`; one returns a captured weight."""
    return parsed(f"""g (bool c, float[2,4] x) => (float[2,4] y, float[2,4] z)
      <{named("w", 4, 4)}, {named("k", 2, 4)}> {{
      z = MatMul(x, w)
      y0, y1 = If (c) <then_branch = t () => (float[2,4] r, float[2,4] s) {{
          two = Constant <value = float {{2.0}}> () a = MatMul(x, w) r = Mul(a, two) s = Identity(k) }},
        else_branch = e () => (float[2,4] r, float[2,4] s) {{
          two = Constant <value = float {{3.0}}> () n = Neg(x) m = Neg(n) a = Mul(m, two) r = Relu(a) s = Add(z, a) }}>
      y = Add(y0, y1) }}""")


def nested() -> onnx.ModelProto:
    """Return a Loop in a branch of an If, with an If in the body of the Loop."""
    return parsed(f"""g (bool c, float[2,4] x) => (float[2,4] y)
      <{named("w", 4, 4)}, int64 n = {{3}}, bool go = {{1}}> {{
      a = Relu(x)
      y = If (c) <then_branch = t () => (float[2,4] r) {{
          r = Loop <body = b (int64 i, bool on, float[2,4] h) => (bool on2, float[2,4] h2) {{
              on2 = Identity(on) zero = Constant <value = int64 {{1}}> () first = Equal(i, zero)
              u = MatMul(h, w) v = MatMul(a, w) s = Add(u, v)
              h2 = If (first) <then_branch = t2 () => (float[2,4] p) {{ q = Neg(s) o = Neg(q) p = Tanh(o) }},
                               else_branch = e2 () => (float[2,4] p2) {{ q2 = Relu(s) p2 = Relu(q2) }}>
          }}> (n, go, x) }},
        else_branch = e () => (float[2,4] r2) {{ r2 = Abs(a) }}> }}""")


def growing() -> onnx.ModelProto:
    """Return a Loop that appends to a tensor in each step, so that the tensor's declared size has no number."""
    return parsed("""g (float[N,4] x) => (float[M,4] y, float[N,4] z)
      <int64 n = {3}, bool go = {1}, float one = {1.0}> {
      y, z = Loop <body = b (int64 i, bool on, float[K,4] h, float[N,4] s)
                    => (bool on2, float[L,4] h2, float[N,4] s2) {
          on2 = Identity(on) a = Neg(s) b1 = Neg(a) s2 = Relu(b1) h1 = Mul(h, one) h2 = Concat <axis = 0> (h1, s2)
      }> (n, go, x, x) }""")


def function() -> onnx.ModelProto:
    """Return a function with an attribute, called in the main graph and in a body."""
    return parsed("""g (bool c, float[2,4] x) => (float[2,4] y) {
      a = own.twice <alpha = 0.5> (x)
      y = If (c) <then_branch = t () => (float[2,4] r) { r = own.twice <alpha = 0.25> (a) },
                  else_branch = e () => (float[2,4] r2) { r2 = Neg(a) }> }
      <domain: "own", opset_import: ["": 17]> twice <alpha> (v) => (u) {
        n = Neg(v) m = Neg(n) u = LeakyRelu <alpha: float = @alpha> (m) }""", more=', "own": 1')


def learned() -> onnx.ModelProto:
    """Return a pipeline of scikit-learn: a Scaler, tensor operators, a LinearRegressor, and an If around its result."""
    return parsed("""g (float[N,3] x, bool c) => (float[N,1] y) <float one = {1.0}> {
      s = ai.onnx.ml.Scaler <offset = [0.5, 0.0, 1.0], scale = [2.0, 1.0, 0.5]> (x)
      n = Neg(s) m = Neg(n) t = Mul(m, one)
      l = ai.onnx.ml.LinearRegressor <coefficients = [0.3, -1.0, 2.0], intercepts = [0.1], targets = 1> (t)
      y = If (c) <then_branch = a () => (float[N,1] p) { p0 = Relu(l) p = Relu(p0) },
                  else_branch = b () => (float[N,1] q) { q = Identity(l) }> }""", more=', "ai.onnx.ml": 3')


MODELS = {
    "lstm": lstm, "lstm of any size": lambda: lstm("steps", "batch"), "mamba": mamba, "branches": branches,
    "nested": nested, "growing": growing, "function": function, "learned": learned,
}  # fmt: skip
