"""Convolutional networks of the zoo, with random weights: ResNet, Inception-v3, SqueezeNet, ShuffleNet v2, MobileNet
v2.

- ResNet-18 and -50 (He et al., arXiv:1512.03385), Inception-v3 without the auxiliary head (Szegedy et al.,
  arXiv:1512.00567), SqueezeNet 1.1 (Iandola et al., arXiv:1602.07360) and ShuffleNet v2 (Ma et al., arXiv:1807.11164)
  follow torchvision.
- MobileNet v2 (Sandler et al., arXiv:1801.04381) follows Keras. Its strided convolutions have separate Pad operators,
  since TensorFlow's padding is not symmetric there. The channels of both mobile networks do not fill whole vectors.

`tiny_*` models have the same structure with fewer layers and channels.
"""

import onnx

from rlflow.zoo.builder import BRANCH_SCALE, Builder


def basic_block(b: Builder, x: str, width: int, stride: int) -> str:
    """[N, C, H, W] → [N, width, H/stride, W/stride]: two 3×3 convolutions around a shortcut."""
    y = b.relu(b.batch_norm(b.conv(x, "conv1", width, 3, stride, pad=1), "bn1"))
    y = b.batch_norm(b.conv(y, "conv2", width, 3, pad=1), "bn2", scale=BRANCH_SCALE)
    return b.relu(b.op("Add", y, shortcut(b, x, width, stride)))


def bottleneck(b: Builder, x: str, width: int, stride: int) -> str:
    """[N, C, H, W] → [N, 4·width, H/stride, W/stride]: 1×1, 3×3 (which strides), 1×1 around a shortcut."""
    y = b.relu(b.batch_norm(b.conv(x, "conv1", width, 1), "bn1"))
    y = b.relu(b.batch_norm(b.conv(y, "conv2", width, 3, stride, pad=1), "bn2"))
    y = b.batch_norm(b.conv(y, "conv3", 4 * width, 1), "bn3", scale=BRANCH_SCALE)
    return b.relu(b.op("Add", y, shortcut(b, x, 4 * width, stride)))


def shortcut(b: Builder, x: str, channels: int, stride: int) -> str:
    """x itself, or its 1×1 projection where the block changes the shape."""
    if stride == 1 and b.channels[x] == channels:
        return x
    with b.scope("downsample"):
        return b.batch_norm(b.conv(x, "0", channels, 1, stride), "1")


def resnet(
    name: str, seed: int, block, depths, width: int = 64, image: int = 224, classes: int = 1000
) -> onnx.ModelProto:
    """`depths[i]` blocks of `width`·2^i channels in stage i; [1, 3, image, image] → [1, classes]."""
    b = Builder(name, seed)
    x = b.input("input", [1, 3, image, image])
    x = b.relu(b.batch_norm(b.conv(x, "conv1", width, 7, stride=2, pad=3), "bn1"))
    x = b.max_pool(x, 3, stride=2, pad=1)
    for stage, depth in enumerate(depths):
        for i in range(depth):
            with b.scope(f"layer{stage + 1}"), b.scope(str(i)):
                x = block(b, x, width << stage, stride=2 if stage and not i else 1)
    features = b.channels[x]
    b.output(b.gemm(b.pooled_features(x), "fc", features, classes), "logits", [1, classes])
    return b.model()


def resnet18(seed: int) -> onnx.ModelProto:
    """ResNet-18, 224×224."""
    return resnet("resnet18", seed, basic_block, [2, 2, 2, 2])


def resnet50(seed: int) -> onnx.ModelProto:
    """ResNet-50, 224×224."""
    return resnet("resnet50", seed, bottleneck, [3, 4, 6, 3])


def tiny_resnet18(seed: int) -> onnx.ModelProto:
    """ResNet of two stages with one basic block each, 8 channels, 32×32."""
    return resnet("tiny_resnet18", seed, basic_block, [1, 1], width=8, image=32, classes=10)


def tiny_resnet50(seed: int) -> onnx.ModelProto:
    """ResNet of two stages with two and one bottlenecks, 8 channels, 32×32."""
    return resnet("tiny_resnet50", seed, bottleneck, [2, 1], width=8, image=32, classes=10)


def basic_conv(b: Builder, x: str, name: str, channels: int, kernel, stride: int = 1, pad=0) -> str:
    """Conv without bias, BatchNormalization, ReLU."""
    with b.scope(name):
        return b.relu(b.batch_norm(b.conv(x, "conv", channels, kernel, stride, pad), "bn", epsilon=1e-3))


def branch_pool(b: Builder, x: str, channels: int) -> str:
    x = b.op("AveragePool", x, ceil_mode=0, count_include_pad=1, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    return basic_conv(b, x, "branch_pool", channels, 1)


def inception_a(b: Builder, x: str, pool: int, d: int) -> str:
    """[N, C, H, W] → [N, 224 + pool, H, W]: 1×1, 5×5, two 3×3, pool."""
    one = basic_conv(b, x, "branch1x1", 64 // d, 1)
    five = basic_conv(b, x, "branch5x5_1", 48 // d, 1)
    five = basic_conv(b, five, "branch5x5_2", 64 // d, 5, pad=2)
    three = basic_conv(b, x, "branch3x3dbl_1", 64 // d, 1)
    three = basic_conv(b, three, "branch3x3dbl_2", 96 // d, 3, pad=1)
    three = basic_conv(b, three, "branch3x3dbl_3", 96 // d, 3, pad=1)
    return b.concat(one, five, three, branch_pool(b, x, pool // d))


def inception_b(b: Builder, x: str, d: int) -> str:
    """[N, C, H, W] → [N, C + 480, H/2, W/2]: 3×3, two 3×3, max pool, all with stride 2."""
    three = basic_conv(b, x, "branch3x3", 384 // d, 3, stride=2)
    double = basic_conv(b, x, "branch3x3dbl_1", 64 // d, 1)
    double = basic_conv(b, double, "branch3x3dbl_2", 96 // d, 3, pad=1)
    double = basic_conv(b, double, "branch3x3dbl_3", 96 // d, 3, stride=2)
    return b.concat(three, double, b.max_pool(x, 3, stride=2))


def inception_c(b: Builder, x: str, width: int, d: int) -> str:
    """[N, C, H, W] → [N, 768, H, W]: 1×1, factored 7×7, two factored 7×7, pool."""
    one = basic_conv(b, x, "branch1x1", 192 // d, 1)
    seven = basic_conv(b, x, "branch7x7_1", width // d, 1)
    seven = basic_conv(b, seven, "branch7x7_2", width // d, (1, 7), pad=(0, 3))
    seven = basic_conv(b, seven, "branch7x7_3", 192 // d, (7, 1), pad=(3, 0))
    double = basic_conv(b, x, "branch7x7dbl_1", width // d, 1)
    double = basic_conv(b, double, "branch7x7dbl_2", width // d, (7, 1), pad=(3, 0))
    double = basic_conv(b, double, "branch7x7dbl_3", width // d, (1, 7), pad=(0, 3))
    double = basic_conv(b, double, "branch7x7dbl_4", width // d, (7, 1), pad=(3, 0))
    double = basic_conv(b, double, "branch7x7dbl_5", 192 // d, (1, 7), pad=(0, 3))
    return b.concat(one, seven, double, branch_pool(b, x, 192 // d))


def inception_d(b: Builder, x: str, d: int) -> str:
    """[N, C, H, W] → [N, C + 512, H/2, W/2]: 3×3, factored 7×7 then 3×3, max pool, all with stride 2."""
    three = basic_conv(b, x, "branch3x3_1", 192 // d, 1)
    three = basic_conv(b, three, "branch3x3_2", 320 // d, 3, stride=2)
    seven = basic_conv(b, x, "branch7x7x3_1", 192 // d, 1)
    seven = basic_conv(b, seven, "branch7x7x3_2", 192 // d, (1, 7), pad=(0, 3))
    seven = basic_conv(b, seven, "branch7x7x3_3", 192 // d, (7, 1), pad=(3, 0))
    seven = basic_conv(b, seven, "branch7x7x3_4", 192 // d, 3, stride=2)
    return b.concat(three, seven, b.max_pool(x, 3, stride=2))


def inception_e(b: Builder, x: str, d: int) -> str:
    """[N, C, H, W] → [N, 2048, H, W]: 1×1, 3×3 split in 1×3 and 3×1, two 3×3 likewise, pool."""

    def split(x: str, name: str) -> str:
        row = basic_conv(b, x, f"{name}a", 384 // d, (1, 3), pad=(0, 1))
        column = basic_conv(b, x, f"{name}b", 384 // d, (3, 1), pad=(1, 0))
        return b.concat(row, column)

    one = basic_conv(b, x, "branch1x1", 320 // d, 1)
    three = split(basic_conv(b, x, "branch3x3_1", 384 // d, 1), "branch3x3_2")
    double = basic_conv(b, x, "branch3x3dbl_1", 448 // d, 1)
    double = split(basic_conv(b, double, "branch3x3dbl_2", 384 // d, 3, pad=1), "branch3x3dbl_3")
    return b.concat(one, three, double, branch_pool(b, x, 192 // d))


def inception(
    name: str, seed: int, a_pools, c_widths, e_count: int, d: int, image: int, classes: int
) -> onnx.ModelProto:
    """One block A per pool width, B, one C per width of its 7×7, D, then E; [1, 3, image, image] → [1, classes]."""
    b = Builder(name, seed)
    x = b.input("input", [1, 3, image, image])
    x = basic_conv(b, x, "Conv2d_1a_3x3", 32 // d, 3, stride=2)
    x = basic_conv(b, x, "Conv2d_2a_3x3", 32 // d, 3)
    x = basic_conv(b, x, "Conv2d_2b_3x3", 64 // d, 3, pad=1)
    x = b.max_pool(x, 3, stride=2)
    x = basic_conv(b, x, "Conv2d_3b_1x1", 80 // d, 1)
    x = basic_conv(b, x, "Conv2d_4a_3x3", 192 // d, 3)
    x = b.max_pool(x, 3, stride=2)
    blocks = [("Mixed_5", "bcd", [(inception_a, pool) for pool in a_pools])]
    blocks += [("Mixed_6", "abcde", [(inception_b,), *((inception_c, width) for width in c_widths)])]
    blocks += [("Mixed_7", "abc", [(inception_d,), *[(inception_e,)] * e_count])]
    for stage, letters, members in blocks:
        for letter, (block, *args) in zip(letters, members, strict=False):
            with b.scope(stage + letter):
                x = block(b, x, *args, d)
    features = b.channels[x]
    b.output(b.gemm(b.pooled_features(x), "fc", features, classes), "logits", [1, classes])
    return b.model()


def inception_v3(seed: int) -> onnx.ModelProto:
    """Inception-v3, 299×299."""
    return inception("inception_v3", seed, [32, 64, 64], [128, 160, 160, 192], 2, d=1, image=299, classes=1000)


def tiny_inception_v3(seed: int) -> onnx.ModelProto:
    """Inception-v3 with one of each of its five blocks, a sixteenth of the channels, 75×75."""
    return inception("tiny_inception_v3", seed, [32], [128], 1, d=16, image=75, classes=10)


POOL = "pool"


def fire(b: Builder, x: str, squeeze: int, expand: int) -> str:
    """[N, C, H, W] → [N, 2·expand, H, W]: a 1×1 squeeze, then 1×1 and 3×3 expansions side by side."""
    x = b.relu(b.conv(x, "squeeze", squeeze, 1, bias=True))
    one = b.relu(b.conv(x, "expand1x1", expand, 1, bias=True))
    three = b.relu(b.conv(x, "expand3x3", expand, 3, pad=1, bias=True))
    return b.concat(one, three)


def squeezenet(name: str, seed: int, width: int, layers, image: int, classes: int) -> onnx.ModelProto:
    """`layers` are POOL or a fire module's (squeeze, expand); [1, 3, image, image] → [1, classes]."""
    b = Builder(name, seed)
    x = b.input("input", [1, 3, image, image])
    with b.scope("features"):
        x = b.relu(b.conv(x, "0", width, 3, stride=2, bias=True))
        for i, layer in enumerate(layers, start=2):
            with b.scope(str(i)):
                x = b.max_pool(x, 3, stride=2, ceil=True) if layer == POOL else fire(b, x, *layer)
    x = b.relu(b.conv(x, "classifier.1", classes, 1, bias=True))
    b.output(b.pooled_features(x), "logits", [1, classes])
    return b.model()


def squeezenet1_1(seed: int) -> onnx.ModelProto:
    """SqueezeNet 1.1, 224×224."""
    layers = [POOL, (16, 64), (16, 64), POOL, (32, 128), (32, 128), POOL, (48, 192), (48, 192), (64, 256), (64, 256)]
    return squeezenet("squeezenet1_1", seed, 64, layers, image=224, classes=1000)


def tiny_squeezenet1_1(seed: int) -> onnx.ModelProto:
    """SqueezeNet of two fire modules, 8 channels, 32×32."""
    return squeezenet("tiny_squeezenet1_1", seed, 8, [POOL, (4, 8), POOL, (4, 16)], image=32, classes=10)


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
