"""Networks for small machines, whose channels are no whole vectors: ShuffleNet v2 and MobileNet v2.

ShuffleNet v2 (Ma et al., arXiv:1807.11164) is torchvision's; MobileNet v2 (Sandler et al., arXiv:1801.04381) is
Keras's, which pads in operators of their own where a convolution strides, as TensorFlow's padding is not symmetric
there.
"""

import onnx

from rlflow.zoo.builder import BRANCH_SCALE, Builder

# -- ShuffleNet v2 ---------------------------------------------------------------------------------


def pointwise(b: Builder, x: str, name: str, channels: int) -> str:
    return b.relu(b.batch_norm(b.conv(x, f"{name}.conv", channels, 1), f"{name}.bn"))


def depthwise(b: Builder, x: str, name: str, stride: int) -> str:
    y = b.conv(x, f"{name}.conv", b.channels[x], 3, stride=stride, pad=1, groups=b.channels[x])
    return b.batch_norm(y, f"{name}.bn")


def shuffled(b: Builder, x: str, size: int) -> str:
    """The channels of two halves in turns; x is [1, C, size, size]."""
    channels = b.channels[x]
    y = b.op("Transpose", b.reshape(x, 1, 2, channels // 2, size, size), perm=[0, 2, 1, 3, 4])
    y = b.reshape(y, 1, channels, size, size)
    b.channels[y] = channels
    return y


def unit(b: Builder, x: str, channels: int, stride: int, size: int) -> str:
    """One half passes, or strides, the other is convolved; then they are joined and shuffled.

    `size` is that of the result.
    """
    half = channels // 2
    if stride == 1:
        kept, x = b.split(x, half, half)
    else:
        kept = pointwise(b, depthwise(b, x, "branch1.0", stride), "branch1.2", half)
    y = depthwise(b, pointwise(b, x, "branch2.0", half), "branch2.3", stride)
    return shuffled(b, b.concat(kept, pointwise(b, y, "branch2.5", half)), size)


class Folded(Builder):
    """Normalisations are weights and biases of the convolutions before them, as PyTorch's exporter folds them."""

    def conv(self, x: str, *arguments, **options) -> str:
        return super().conv(x, *arguments, **options | {"bias": True})

    def batch_norm(self, x: str, name: str, epsilon: float = 1e-5, scale: float = 0.95) -> str:
        return x


def shufflenet_v2_of(
    name: str, seed: int, stages, last: int, image: int, classes: int, builder: type[Builder] = Builder
) -> onnx.ModelProto:
    """`stages` are (channels, units); [1, 3, image, image] → [1, classes]."""
    b = builder(name, seed)
    x = b.input("input", [1, 3, image, image])
    x = b.max_pool(b.relu(b.batch_norm(b.conv(x, "conv1.0", 24, 3, stride=2, pad=1), "conv1.1")), 3, stride=2, pad=1)
    size = image // 4
    for stage, (channels, units) in enumerate(stages, start=2):
        size //= 2
        for i in range(units):
            with b.scope(f"stage{stage}.{i}"):
                x = unit(b, x, channels, stride=1 if i else 2, size=size)
    x = pointwise(b, x, "conv5", last)
    x = b.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    b.output(b.gemm(x, "fc", last, classes), "logits", [1, classes])
    return b.model()


def shufflenet_v2(seed: int, builder: type[Builder] = Builder) -> onnx.ModelProto:
    """ShuffleNet v2 1.0×, 224×224."""
    stages = [(116, 4), (232, 8), (464, 4)]
    return shufflenet_v2_of("shufflenet_v2", seed, stages, 1024, image=224, classes=1000, builder=builder)


def shufflenet_v2_folded(seed: int) -> onnx.ModelProto:
    """ShuffleNet v2 1.0× with its normalisations folded into the convolutions."""
    return shufflenet_v2(seed, Folded)


def tiny_shufflenet_v2(seed: int) -> onnx.ModelProto:
    """ShuffleNet v2 of four units, 20 channels and more, 32×32."""
    return shufflenet_v2_of("tiny_shufflenet_v2", seed, [(20, 2), (40, 2)], 48, image=32, classes=10)


# -- MobileNet v2 ----------------------------------------------------------------------------------


def normalised(b: Builder, x: str, scale: float = 0.95) -> str:
    return b.batch_norm(x, "BN", epsilon=1e-3, scale=scale)


def relu6(b: Builder, x: str) -> str:
    return b.op("Clip", x, b.constant(0), b.constant(6))


def strided(b: Builder, x: str, stride: int) -> tuple[str, int]:
    """(x with one row and column of zeros after it, no padding) where there is a stride, else (x, a padding of one)."""
    if stride == 1:
        return x, 1
    return b.op("Pad", x, b.constant([0, 0, 0, 0, 0, 0, 1, 1], "int64"), mode="constant"), 0


def inverted_residual(b: Builder, x: str, expansion: int, channels: int, stride: int) -> str:
    """Wide, a convolution of each channel, narrow again; the narrow ends are added where they are alike."""
    y, before = x, b.channels[x]
    if expansion > 1:
        with b.scope("expand"):
            y = relu6(b, normalised(b, b.conv(y, "conv", expansion * before, 1)))
    y, pad = strided(b, y, stride)
    with b.scope("depthwise"):
        y = relu6(b, normalised(b, b.conv(y, "conv", b.channels[y], 3, stride=stride, pad=pad, groups=b.channels[y])))
    residual = stride == 1 and channels == before
    with b.scope("project"):
        y = normalised(b, b.conv(y, "conv", channels, 1), BRANCH_SCALE if residual else 0.95)
    return b.op("Add", x, y) if residual else y


def mobilenet_v2_of(name: str, seed: int, first: int, blocks, last: int, image: int, classes: int) -> onnx.ModelProto:
    """`blocks` are (expansion, channels, repetitions, stride); [1, 3, image, image] → [1, classes]."""
    b = Builder(name, seed)
    x, pad = strided(b, b.input("input", [1, 3, image, image]), 2)
    with b.scope("Conv1"):
        x = relu6(b, normalised(b, b.conv(x, "conv", first, 3, stride=2, pad=pad)))
    for k, (expansion, channels, repetitions, stride) in enumerate(blocks):
        for i in range(repetitions):
            with b.scope(f"block_{k}_{i}"):
                x = inverted_residual(b, x, expansion, channels, 1 if i else stride)
    with b.scope("Conv_1"):
        x = relu6(b, normalised(b, b.conv(x, "conv", last, 1)))
    b.output(b.gemm(b.pooled_features(x), "predictions", last, classes), "logits", [1, classes])
    return b.model()


def mobilenet_v2(seed: int) -> onnx.ModelProto:
    """MobileNet v2 1.0, 224×224, padded as Keras does."""
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    return mobilenet_v2_of("mobilenet_v2", seed, 32, blocks, 1280, image=224, classes=1000)


def tiny_mobilenet_v2(seed: int) -> onnx.ModelProto:
    """MobileNet v2 of four blocks, 8 channels and more, 32×32."""
    return mobilenet_v2_of(
        "tiny_mobilenet_v2", seed, 8, [(1, 8, 1, 1), (2, 12, 2, 2), (2, 20, 1, 2)], 32, image=32, classes=10
    )
