"""A small model, quantised by ONNX Runtime's own tool, with QuantizeLinear and DequantizeLinear around its
operators."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from rlflow.graph.drawn_inputs import random_inputs

# A branch around a depthwise convolution is joined in three ways. Its channels are shuffled, and some of them are
# pooled.
TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,16,64,64] x) => (float[1,16] y, float[1,16,32,32] m)
<int64[5] split = {1,2,8,64,64}, int64[4] image = {1,16,64,64}> {
  a = Conv(x, w, b0) r = Relu(a) d = Conv<group=16, pads=[1,1,1,1]>(r, v, b1) e = Add(r, d) c = Concat<axis=1>(r, e)
  p = Conv(c, u, b2) s = Reshape(p, split) t = Transpose<perm=[0,2,1,3,4]>(s) i = Reshape(t, image)
  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(i) q = GlobalAveragePool(m) f = Flatten(q) y = Gemm(f, z, b3)
}"""
WEIGHTS = {"w": (16, 16, 1, 1), "v": (16, 1, 3, 3), "u": (16, 32, 1, 1), "z": (16, 16)} | {
    f"b{k}": (16,) for k in range(4)
}


class Once(CalibrationDataReader):
    """A calibration reader with one random input of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.inputs = iter([random_inputs(model, seed=0)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.inputs, None)


def quantised_model(folder: Path) -> onnx.ModelProto:
    """Return the quantised model of TEXT; the tool writes its file to the folder."""
    model, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32), name))
    path = folder / "quantised.onnx"
    quantize_static(
        model, path, Once(model), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        reduce_range=True,  # Weights of 7 bits, because some processors overflow when they sum products of 8 bits.
    )  # fmt: skip
    return onnx.load(path)
