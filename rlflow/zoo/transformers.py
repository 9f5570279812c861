"""Transformers of the zoo, with random weights: BERT and ViT as exports of Hugging Face models contain them.

- BERT (Devlin et al., arXiv:1810.04805) with its pooler, as BertModel;
- ViT (Dosovitskiy et al., arXiv:2010.11929), as ViTForImageClassification.

`Transformer` builds the layers that both encoders share (Vaswani et al., arXiv:1706.03762). It decomposes LayerNorm and
GELU into arithmetic, as exports do. With fused=True it adds the operators LayerNormalization-17 and Gelu-20. Tensors x
are [1, S, H]: S positions, H hidden features.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx
from onnx import TensorProto

from rlflow.zoo.builder import Builder


@dataclass
class EncoderSize:
    """The hyperparameters of an encoder, by default for BERT-Base and ViT-Base.

    Attributes:
      hidden: H, number of features of the residual stream.
      layers: number of layers.
      heads: number of attention heads of a layer.
      intermediate: number of features inside the feed-forward block.
    """

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072


class Transformer(Builder):
    """A builder with the layers of a transformer encoder.

    Args:
      name: name of the graph.
      seed: seed of the weights.
      size: hyperparameters of the encoder.
      fused: True for LayerNormalization and Gelu as operators (opset 20), False for their decompositions (opset 17).
    """

    EPSILON = 1e-12

    def __init__(self, name: str, seed: int, size: EncoderSize, fused: bool):
        super().__init__(name, seed, opset=20 if fused else 17)
        self.size, self.fused = size, fused

    def gather(self, table: str, indices, axis: int = 0) -> str:
        """Add a Gather of the slices of a tensor at some indices of an axis.

        Args:
          table: name of the tensor.
          indices: name of a tensor, or constant integers.
          axis: the axis.
        """
        if not isinstance(indices, str):
            indices = self.constant(indices, np.int64)
        return self.op("Gather", table, indices, axis=axis)

    def linear(self, x: str, name: str, outputs: int, inputs: int | None = None) -> str:
        """Add a linear layer, [1, S, inputs] → [1, S, outputs].

        As in PyTorch's exports, the layer is a MatMul and an Add whose first operand is the bias.

        Args:
          x: name of the input tensor.
          name: scope of the weights.
          outputs: number of output features.
          inputs: number of input features; None for H.
        """
        inputs = inputs or self.size.hidden
        with self.scope(name):
            weight = self.parameter("weight", self.weights.scaled([inputs, outputs], fan_in=inputs, gain=1.0))
            return self.op("Add", self.parameter("bias", self.weights.bias(outputs)), self.op("MatMul", x, weight))

    def layer_norm(self, x: str, name: str) -> str:
        """Add a normalisation over the features, (x − mean) / √(variance + ε) · weight + bias, [1, S, H] → [1, S, H].

        `x` is the name of the input tensor, `name` the scope of weight and bias.
        """
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
        """Add the activation function x · (1 + erf(x / √2)) · ½ (Hendrycks and Gimpel, arXiv:1606.08415)."""
        if self.fused:
            return self.op("Gelu", x)
        erf = self.op("Erf", self.op("Div", x, self.constant(sqrt(2))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.constant(1))), self.constant(0.5))

    def attention(self, x: str, positions: int, mask: str | None = None) -> str:
        """Add multi-head self-attention without its output projection, [1, S, H] → [1, S, H].

        Args:
          x: name of the input tensor.
          positions: S, number of positions.
          mask: name of a tensor [1, 1, 1, S] to add to the scores; None for no mask.
        """
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


TINY_BERT = EncoderSize(hidden=32, layers=2, heads=2, intermediate=64)


def additive_mask(b: Transformer, attention_mask: str) -> str:
    """Add the conversion of an int64 mask [1, S] to a float32 summand of attention scores [1, 1, 1, S].

    1 (attend to the position) becomes 0, and 0 becomes −10000.
    """
    mask = b.op("Unsqueeze", attention_mask, b.constant([1], np.int64))
    mask = b.op("Unsqueeze", mask, b.constant([2], np.int64))
    mask = b.op("Cast", mask, to=TensorProto.FLOAT)
    return b.op("Mul", b.op("Sub", b.constant(1), mask), b.constant(-10000))


def bert_embeddings(
    b: Transformer, input_ids: str, token_type_ids: str, vocabulary: int, positions: int, sequence: int
) -> str:
    """Add the embedding layer, which normalises the sum of word, token-type and position embeddings.

    Args:
      b: the builder.
      input_ids, token_type_ids: names of int64 tensors [1, S].
      vocabulary: number of rows of the word table.
      positions: number of rows of the position table.
      sequence: S.

    Returns:
      The name of a tensor [1, S, H].
    """

    def table(name: str, rows: int) -> str:
        return b.parameter(f"{name}_embeddings.weight", b.weights.normal([rows, b.size.hidden], std=0.02))

    words = b.gather(table("word", vocabulary), input_ids)
    types = b.gather(table("token_type", 2), token_type_ids)
    positions = b.gather(table("position", positions), [range(sequence)])
    return b.layer_norm(b.op("Add", b.op("Add", words, types), positions), "LayerNorm")


def bert_layer(b: Transformer, x: str, mask: str, sequence: int) -> str:
    """Add an encoder layer of BERT, [1, S, H] → [1, S, H].

    The layer consists of attention and a feed-forward block with GELU. Each is followed by a residual sum and a
    normalisation. `mask` is the name of a tensor [1, 1, 1, S] to add to the attention scores, `sequence` is S.
    """
    with b.scope("attention"):
        with b.scope("self"):
            y = b.attention(x, sequence, mask)
        with b.scope("output"):
            x = b.layer_norm(b.op("Add", b.linear(y, "dense", b.size.hidden), x), "LayerNorm")
    with b.scope("intermediate"):
        y = b.gelu(b.linear(x, "dense", b.size.intermediate))
    with b.scope("output"):
        y = b.linear(y, "dense", b.size.hidden, inputs=b.size.intermediate)
        return b.layer_norm(b.op("Add", y, x), "LayerNorm")


def bert(
    name: str, seed: int, size: EncoderSize, fused: bool, vocabulary: int, positions: int, sequence: int
) -> onnx.ModelProto:
    """Build a BERT encoder with a pooler.

    Its inputs are input_ids, attention_mask and token_type_ids, int64 [1, sequence]. Its outputs are last_hidden_state
    [1, sequence, H] and pooler_output [1, H].

    Args:
      name: name of the graph.
      seed: seed of the weights.
      size: hyperparameters of the encoder.
      fused: True for LayerNormalization and Gelu as operators (opset 20), False for their decompositions (opset 17).
      vocabulary: number of rows of the word table.
      positions: number of rows of the position table.
      sequence: S, number of tokens.
    """
    b = Transformer(name, seed, size, fused)
    names = ("input_ids", "attention_mask", "token_type_ids")
    input_ids, attention_mask, token_type_ids = (b.input(n, [1, sequence], TensorProto.INT64) for n in names)
    mask = additive_mask(b, attention_mask)
    with b.scope("embeddings"):
        x = bert_embeddings(b, input_ids, token_type_ids, vocabulary, positions, sequence)
    for i in range(size.layers):
        with b.scope(f"encoder.layer.{i}"):
            x = bert_layer(b, x, mask, sequence)
    with b.scope("pooler"):
        pooled = b.op("Tanh", b.gemm(b.gather(x, 0, axis=1), "dense", size.hidden, size.hidden))
    b.output(x, "last_hidden_state", [1, sequence, size.hidden])
    b.output(pooled, "pooler_output", [1, size.hidden])
    return b.model()


def bert_base(seed: int, fused: bool = False) -> onnx.ModelProto:
    """Build BERT-Base with the uncased vocabulary for 128 tokens; LayerNorm and GELU are decomposed by default."""
    name = "bert_base_fused" if fused else "bert_base"
    return bert(name, seed, EncoderSize(), fused, vocabulary=30522, positions=512, sequence=128)


def bert_base_fused(seed: int) -> onnx.ModelProto:
    """Build BERT-Base with LayerNormalization and Gelu as operators (opset 20)."""
    return bert_base(seed, fused=True)


def tiny_bert_base(seed: int, fused: bool = False) -> onnx.ModelProto:
    """Build a BERT with two layers and H = 32 for 16 tokens; LayerNorm and GELU are decomposed by default."""
    name = "tiny_bert_base_fused" if fused else "tiny_bert_base"
    return bert(name, seed, TINY_BERT, fused, vocabulary=100, positions=32, sequence=16)


def tiny_bert_base_fused(seed: int) -> onnx.ModelProto:
    """Build the tiny BERT with LayerNormalization and Gelu as operators (opset 20)."""
    return tiny_bert_base(seed, fused=True)


TINY_VIT = EncoderSize(hidden=32, layers=2, heads=2, intermediate=64)


def vit_embeddings(b: Transformer, x: str, image: int, patch: int) -> str:
    """Add the embeddings of the class token and of P patches, [1, 3, image, image] → [1, 1 + P, H].

    `patch` is the height and width of a patch, so P = (image / patch)². Position embeddings are added to the result.
    """
    hidden, patches = b.size.hidden, (image // patch) ** 2
    x = b.conv(x, "patch_embeddings.projection", hidden, patch, stride=patch, bias=True)
    x = b.op("Transpose", b.reshape(x, 1, hidden, patches), perm=[0, 2, 1])
    x = b.op("Concat", b.parameter("cls_token", b.weights.normal([1, 1, hidden])), x, axis=1)
    return b.op("Add", x, b.parameter("position_embeddings", b.weights.normal([1, 1 + patches, hidden], std=0.1)))


def vit_layer(b: Transformer, x: str, positions: int) -> str:
    """Add an encoder layer of ViT, [1, S, H] → [1, S, H].

    The layer consists of attention and a feed-forward block with GELU. Each follows a normalisation and is followed by
    a residual sum. `positions` is S.
    """
    y = b.layer_norm(x, "layernorm_before")
    with b.scope("attention"):
        with b.scope("attention"):
            y = b.attention(y, positions)
        x = b.op("Add", b.linear(y, "output.dense", b.size.hidden), x)
    y = b.layer_norm(x, "layernorm_after")
    y = b.gelu(b.linear(y, "intermediate.dense", b.size.intermediate))
    return b.op("Add", b.linear(y, "output.dense", b.size.hidden, inputs=b.size.intermediate), x)


def vit(name: str, seed: int, size: EncoderSize, fused: bool, image: int, patch: int, classes: int) -> onnx.ModelProto:
    """Build a ViT that classifies an image from its class token, [1, 3, image, image] → [1, classes].

    Args:
      name: name of the graph.
      seed: seed of the weights.
      size: hyperparameters of the encoder.
      fused: True for LayerNormalization and Gelu as operators (opset 20), False for their decompositions (opset 17).
      image: height and width of the input.
      patch: height and width of a patch.
      classes: number of classes.
    """
    b = Transformer(name, seed, size, fused)
    x = b.input("pixel_values", [1, 3, image, image])
    with b.scope("vit"):
        with b.scope("embeddings"):
            x = vit_embeddings(b, x, image, patch)
        for i in range(size.layers):
            with b.scope(f"encoder.layer.{i}"):
                x = vit_layer(b, x, positions=1 + (image // patch) ** 2)
        x = b.layer_norm(x, "layernorm")
    b.output(b.gemm(b.gather(x, 0, axis=1), "classifier", size.hidden, classes), "logits", [1, classes])
    return b.model()


def vit_base(seed: int, fused: bool = False) -> onnx.ModelProto:
    """Build ViT-Base/16 for 224×224 images; LayerNorm and GELU are decomposed by default."""
    return vit("vit_base_fused" if fused else "vit_base", seed, EncoderSize(), fused, image=224, patch=16, classes=1000)


def vit_base_fused(seed: int) -> onnx.ModelProto:
    """Build ViT-Base/16 with LayerNormalization and Gelu as operators (opset 20)."""
    return vit_base(seed, fused=True)


def tiny_vit_base(seed: int, fused: bool = False) -> onnx.ModelProto:
    """Build a ViT with two layers, H = 32 and 8×8 patches for 32×32 images; fused=True is as in `vit_base_fused`."""
    return vit(
        "tiny_vit_base_fused" if fused else "tiny_vit_base", seed, TINY_VIT, fused, image=32, patch=8, classes=10
    )


def tiny_vit_base_fused(seed: int) -> onnx.ModelProto:
    """Build the tiny ViT with LayerNormalization and Gelu as operators (opset 20)."""
    return tiny_vit_base(seed, fused=True)
