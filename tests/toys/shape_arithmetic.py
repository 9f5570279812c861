"""A model with symbolic sizes and a node that computes a size, an input for `rlflow.rules.locations`."""

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,S,4] x) => (float[N,T,2] y) <int64 zero = {0}, int64[1] first = {0}, int64[2] rest = {-1, 2}> {
  s = Shape(x)
  n = Gather<axis = 0>(s, zero)
  u = Unsqueeze(n, first)
  sizes = Concat<axis = 0>(u, rest)
  r = Reshape(x, sizes)
  a = Relu(r)
  y = Relu(a)
}"""
