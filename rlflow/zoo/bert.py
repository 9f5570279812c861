"""BERT (Devlin et al., arXiv:1810.04805) with its pooler, as Hugging Face's BertModel exports."""

import numpy as np
import onnx
from onnx import TensorProto

from rlflow.zoo.transformer import Size, Transformer

TINY = Size(hidden=32, layers=2, heads=2, intermediate=64)


def additive_mask(b: Transformer, attention_mask: str) -> str:
    """int64 [1, S] of 1 (attend) and 0 → float32 [1, 1, 1, S] of 0 and −10000."""
    mask = b.op("Unsqueeze", attention_mask, b.constant([1], np.int64))
    mask = b.op("Unsqueeze", mask, b.constant([2], np.int64))
    mask = b.op("Cast", mask, to=TensorProto.FLOAT)
    return b.op("Mul", b.op("Sub", b.constant(1), mask), b.constant(-10000))


def embeddings(
    b: Transformer, input_ids: str, token_type_ids: str, vocabulary: int, positions: int, sequence: int
) -> str:
    """int64 [1, S] twice → [1, S, H]: the sum of three Gathers, normalised."""

    def table(name: str, rows: int) -> str:
        return b.parameter(f"{name}_embeddings.weight", b.weights.normal([rows, b.size.hidden], std=0.02))

    words = b.gather(table("word", vocabulary), input_ids)
    types = b.gather(table("token_type", 2), token_type_ids)
    positions = b.gather(table("position", positions), [range(sequence)])
    return b.layer_norm(b.op("Add", b.op("Add", words, types), positions), "LayerNorm")


def encoder_layer(b: Transformer, x: str, mask: str, sequence: int) -> str:
    """[1, S, H] → [1, S, H]: attention, then GELU's feed-forward, each normalised after its residual sum."""
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
    name: str, seed: int, size: Size, fused: bool, vocabulary: int, positions: int, sequence: int
) -> onnx.ModelProto:
    """int64 [1, sequence] three times → last_hidden_state [1, sequence, H] and pooler_output [1, H]."""
    b = Transformer(name, seed, size, fused)
    names = ("input_ids", "attention_mask", "token_type_ids")
    input_ids, attention_mask, token_type_ids = (b.input(n, [1, sequence], TensorProto.INT64) for n in names)
    mask = additive_mask(b, attention_mask)
    with b.scope("embeddings"):
        x = embeddings(b, input_ids, token_type_ids, vocabulary, positions, sequence)
    for i in range(size.layers):
        with b.scope(f"encoder.layer.{i}"):
            x = encoder_layer(b, x, mask, sequence)
    with b.scope("pooler"):
        pooled = b.op("Tanh", b.gemm(b.gather(x, 0, axis=1), "dense", size.hidden, size.hidden))
    b.output(x, "last_hidden_state", [1, sequence, size.hidden])
    b.output(pooled, "pooler_output", [1, size.hidden])
    return b.model()


def bert_base(seed: int, fused: bool = False) -> onnx.ModelProto:
    """BERT-Base, uncased vocabulary, sequence of 128; LayerNorm and GELU decomposed."""
    name = "bert_base_fused" if fused else "bert_base"
    return bert(name, seed, Size(), fused, vocabulary=30522, positions=512, sequence=128)


def bert_base_fused(seed: int) -> onnx.ModelProto:
    """BERT-Base with LayerNormalization and Gelu as operators (opset 20)."""
    return bert_base(seed, fused=True)


def tiny_bert_base(seed: int, fused: bool = False) -> onnx.ModelProto:
    """BERT of two layers, 32 features, sequence of 16; LayerNorm and GELU decomposed."""
    name = "tiny_bert_base_fused" if fused else "tiny_bert_base"
    return bert(name, seed, TINY, fused, vocabulary=100, positions=32, sequence=16)


def tiny_bert_base_fused(seed: int) -> onnx.ModelProto:
    """The tiny BERT with LayerNormalization and Gelu as operators (opset 20)."""
    return tiny_bert_base(seed, fused=True)
