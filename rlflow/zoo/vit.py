"""Vision Transformer (Dosovitskiy et al., arXiv:2010.11929), as Hugging Face's ViTForImageClassification exports."""

import onnx

from rlflow.zoo.transformer import Size, Transformer

TINY = Size(hidden=32, layers=2, heads=2, intermediate=64)


def embeddings(b: Transformer, x: str, image: int, patch: int) -> str:
    """[1, 3, image, image] → [1, 1 + P, H]: the class token and P patches, plus their positions."""
    hidden, patches = b.size.hidden, (image // patch) ** 2
    x = b.conv(x, "patch_embeddings.projection", hidden, patch, stride=patch, bias=True)
    x = b.op("Transpose", b.reshape(x, 1, hidden, patches), perm=[0, 2, 1])
    x = b.op("Concat", b.parameter("cls_token", b.weights.normal([1, 1, hidden])), x, axis=1)
    return b.op("Add", x, b.parameter("position_embeddings", b.weights.normal([1, 1 + patches, hidden], std=0.1)))


def encoder_layer(b: Transformer, x: str, positions: int) -> str:
    """[1, S, H] → [1, S, H]: attention, then GELU's feed-forward, each on a normalised copy of the residual stream."""
    y = b.layer_norm(x, "layernorm_before")
    with b.scope("attention"):
        with b.scope("attention"):
            y = b.attention(y, positions)
        x = b.op("Add", b.linear(y, "output.dense", b.size.hidden), x)
    y = b.layer_norm(x, "layernorm_after")
    y = b.gelu(b.linear(y, "intermediate.dense", b.size.intermediate))
    return b.op("Add", b.linear(y, "output.dense", b.size.hidden, inputs=b.size.intermediate), x)


def vit(name: str, seed: int, size: Size, fused: bool, image: int, patch: int, classes: int) -> onnx.ModelProto:
    """[1, 3, image, image] → [1, classes], read from the class token."""
    b = Transformer(name, seed, size, fused)
    x = b.input("pixel_values", [1, 3, image, image])
    with b.scope("vit"):
        with b.scope("embeddings"):
            x = embeddings(b, x, image, patch)
        for i in range(size.layers):
            with b.scope(f"encoder.layer.{i}"):
                x = encoder_layer(b, x, positions=1 + (image // patch) ** 2)
        x = b.layer_norm(x, "layernorm")
    b.output(b.gemm(b.gather(x, 0, axis=1), "classifier", size.hidden, classes), "logits", [1, classes])
    return b.model()


def vit_base(seed: int, fused: bool = False) -> onnx.ModelProto:
    """ViT-Base/16, 224×224; LayerNorm and GELU decomposed."""
    return vit("vit_base_fused" if fused else "vit_base", seed, Size(), fused, image=224, patch=16, classes=1000)


def vit_base_fused(seed: int) -> onnx.ModelProto:
    """ViT-Base/16 with LayerNormalization and Gelu as operators (opset 20)."""
    return vit_base(seed, fused=True)


def tiny_vit_base(seed: int, fused: bool = False) -> onnx.ModelProto:
    """ViT of two layers, 32 features, 32×32 in patches of 8; LayerNorm and GELU decomposed."""
    return vit("tiny_vit_base_fused" if fused else "tiny_vit_base", seed, TINY, fused, image=32, patch=8, classes=10)


def tiny_vit_base_fused(seed: int) -> onnx.ModelProto:
    """The tiny ViT with LayerNormalization and Gelu as operators (opset 20)."""
    return tiny_vit_base(seed, fused=True)
