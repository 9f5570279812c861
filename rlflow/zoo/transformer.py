"""What BERT and ViT share: the encoder layers of Vaswani et al. (arXiv:1706.03762), as exporters write them.

`Transformer` decomposes LayerNorm and GELU into the arithmetic that opset 17 exports hold; with fused=True
they are LayerNormalization-17 and Gelu-20. Tensors x are [1, S, H]: S positions, H hidden features.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from rlflow.zoo.builder import Builder


@dataclass
class Size:
    """Of an encoder."""

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072


class Transformer(Builder):
    EPSILON = 1e-12

    def __init__(self, name: str, seed: int, size: Size, fused: bool):
        super().__init__(name, seed, opset=20 if fused else 17)
        self.size, self.fused = size, fused

    def gather(self, table: str, indices, axis: int = 0) -> str:
        """Rows of a table; `indices` is a tensor's name or constant integers."""
        if not isinstance(indices, str):
            indices = self.constant(indices, np.int64)
        return self.op("Gather", table, indices, axis=axis)

    def linear(self, x: str, name: str, outputs: int, inputs: int | None = None) -> str:
        """[1, S, inputs] → [1, S, outputs]: MatMul, then the bias as the first operand of Add (as PyTorch does)."""
        inputs = inputs or self.size.hidden
        with self.scope(name):
            weight = self.parameter("weight", self.weights.scaled([inputs, outputs], fan_in=inputs, gain=1.0))
            return self.op("Add", self.parameter("bias", self.weights.bias(outputs)), self.op("MatMul", x, weight))

    def layer_norm(self, x: str, name: str) -> str:
        """(x − mean) / √(variance + ε) · weight + bias over the features."""
        with self.scope(name):
            weight = self.parameter("weight", self.weights.scale(self.size.hidden, mean=1.0))
            bias = self.parameter("bias", self.weights.bias(self.size.hidden))
            if self.fused:
                return self.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=self.EPSILON)
            centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
            variance = self.op("ReduceMean", self.op("Pow", centred, self.constant(2)), axes=[-1])
            deviation = self.op("Sqrt", self.op("Add", variance, self.constant(self.EPSILON)))
            return self.op("Add", self.op("Mul", self.op("Div", centred, deviation), weight), bias)

    def gelu(self, x: str) -> str:
        """x · (1 + erf(x / √2)) · ½ (Hendrycks and Gimpel, arXiv:1606.08415)."""
        if self.fused:
            return self.op("Gelu", x)
        erf = self.op("Erf", self.op("Div", x, self.constant(sqrt(2))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.constant(1))), self.constant(0.5))

    def attention(self, x: str, positions: int, mask: str | None = None) -> str:
        """[1, S, H] → [1, S, H], without the output projection; `mask` [1, 1, 1, S] is added to the scores."""
        hidden, heads = self.size.hidden, self.size.heads
        depth = hidden // heads

        def split_heads(name: str, perm: list[int]) -> str:
            y = self.reshape(self.linear(x, name, hidden), 1, positions, heads, depth)
            return self.op("Transpose", y, perm=perm)

        query = split_heads("query", [0, 2, 1, 3])  # [1, heads, S, depth]
        key = split_heads("key", [0, 2, 3, 1])  # [1, heads, depth, S]
        value = split_heads("value", [0, 2, 1, 3])
        scores = self.op("Div", self.op("MatMul", query, key), self.constant(sqrt(depth)))
        if mask is not None:
            scores = self.op("Add", scores, mask)
        context = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        return self.reshape(self.op("Transpose", context, perm=[0, 2, 1, 3]), 1, positions, hidden)
