"""Convolutional networks of the zoo, with random weights: ResNet, Inception-v3, SqueezeNet, ShuffleNet v2, MobileNet
v2.

- ResNet-18, -50 and -101 (He et al., arXiv:1512.03385), Inception-v3 without the auxiliary head (Szegedy et al.,
  arXiv:1512.00567), SqueezeNet 1.1 (Iandola et al., arXiv:1602.07360) and ShuffleNet v2 (Ma et al., arXiv:1807.11164)
  follow torchvision.
- MobileNet v2 (Sandler et al., arXiv:1801.04381) follows Keras. Before its strided convolutions there are separate Pad
  operators, since TensorFlow pads these convolutions at the end only.
- In ShuffleNet v2 and MobileNet v2, some numbers of channels are no multiples of the vector width.

`tiny_*` models have the same structure with fewer layers and channels.
"""

import onnx

from rlflow.zoo.builder import BRANCH_SCALE, Builder


def basic_block(b: Builder, x: str, width: int, stride: int) -> str:
    """Add a residual block of two 3×3 convolutions, [N, C, H, W] → [N, width, H/stride, W/stride]."""
    y = b.relu(b.batch_norm(b.conv(x, "conv1", width, 3, stride, pad=1), "bn1"))
    y = b.batch_norm(b.conv(y, "conv2", width, 3, pad=1), "bn2", scale=BRANCH_SCALE)
    return b.relu(b.op("Add", y, shortcut(b, x, width, stride)))


def bottleneck(b: Builder, x: str, width: int, stride: int) -> str:
    """Add a residual block of 1×1, 3×3 and 1×1 convolutions, [N, C, H, W] → [N, 4·width, H/stride, W/stride].

    The 3×3 convolution has the stride.
    """
    y = b.relu(b.batch_norm(b.conv(x, "conv1", width, 1), "bn1"))
    y = b.relu(b.batch_norm(b.conv(y, "conv2", width, 3, stride, pad=1), "bn2"))
    y = b.batch_norm(b.conv(y, "conv3", 4 * width, 1), "bn3", scale=BRANCH_SCALE)
    return b.relu(b.op("Add", y, shortcut(b, x, 4 * width, stride)))


def shortcut(b: Builder, x: str, channels: int, stride: int) -> str:
    """Return the residual summand of a block with `channels` channels: x, or a strided 1×1 convolution of x.

    The convolution is added if the block changes the number of channels or the size of the image.
    """
    if stride == 1 and b.channels[x] == channels:
        return x
    with b.scope("downsample"):
        return b.batch_norm(b.conv(x, "0", channels, 1, stride), "1")


def resnet(
    name: str, seed: int, block, depths, width: int = 64, image: int = 224, classes: int = 1000
) -> onnx.ModelProto:
    """Build a ResNet, [1, 3, image, image] → [1, classes].

    Args:
      name: name of the graph.
      seed: seed of the weights.
      block: `basic_block` or `bottleneck`.
      depths: number of blocks of each stage.
      width: `width` argument of the blocks in the first stage; each stage doubles it.
      image: height and width of the input.
      classes: number of classes.
    """
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
    """Build ResNet-18 for 224×224 images."""
    return resnet("resnet18", seed, basic_block, [2, 2, 2, 2])


def resnet50(seed: int) -> onnx.ModelProto:
    """Build ResNet-50 for 224×224 images."""
    return resnet("resnet50", seed, bottleneck, [3, 4, 6, 3])


def resnet101(seed: int) -> onnx.ModelProto:
    """Build ResNet-101 for 224×224 images."""
    return resnet("resnet101", seed, bottleneck, [3, 4, 23, 3])


def tiny_resnet18(seed: int) -> onnx.ModelProto:
    """Build a ResNet for 32×32 images with two stages of one basic block each; the first has 8 channels."""
    return resnet("tiny_resnet18", seed, basic_block, [1, 1], width=8, image=32, classes=10)


def tiny_resnet50(seed: int) -> onnx.ModelProto:
    """Build a ResNet for 32×32 images with stages of two and one bottlenecks; the first has width 8."""
    return resnet("tiny_resnet50", seed, bottleneck, [2, 1], width=8, image=32, classes=10)


def basic_conv(b: Builder, x: str, name: str, channels: int, kernel, stride: int = 1, pad=0) -> str:
    """Add a Conv without bias, a BatchNormalization and a Relu.

    Args:
      b: the builder.
      x: name of the input tensor [N, C, H, W].
      name: scope of the weights.
      channels: number of output channels.
      kernel, stride, pad: as in `Builder.conv`.
    """
    with b.scope(name):
        return b.relu(b.batch_norm(b.conv(x, "conv", channels, kernel, stride, pad), "bn", epsilon=1e-3))


def branch_pool(b: Builder, x: str, channels: int) -> str:
    x = b.op("AveragePool", x, ceil_mode=0, count_include_pad=1, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    return basic_conv(b, x, "branch_pool", channels, 1)


def inception_a(b: Builder, x: str, pool: int, d: int) -> str:
    """Add an Inception block A, [N, C, H, W] → [N, (224 + pool) / d, H, W].

    Four branches are concatenated: a 1×1 convolution, a 5×5, two 3×3, and an average pool with `pool` / d channels. All
    numbers of channels are divided by d.
    """
    one = basic_conv(b, x, "branch1x1", 64 // d, 1)
    five = basic_conv(b, x, "branch5x5_1", 48 // d, 1)
    five = basic_conv(b, five, "branch5x5_2", 64 // d, 5, pad=2)
    three = basic_conv(b, x, "branch3x3dbl_1", 64 // d, 1)
    three = basic_conv(b, three, "branch3x3dbl_2", 96 // d, 3, pad=1)
    three = basic_conv(b, three, "branch3x3dbl_3", 96 // d, 3, pad=1)
    return b.concat(one, five, three, branch_pool(b, x, pool // d))


def inception_b(b: Builder, x: str, d: int) -> str:
    """Add an Inception block B, [N, C, H, W] → [N, C + 480 / d, ⌊(H − 1) / 2⌋, ⌊(W − 1) / 2⌋].

    Three branches of stride 2 are concatenated: a 3×3 convolution, two 3×3, and a max pool.
    """
    three = basic_conv(b, x, "branch3x3", 384 // d, 3, stride=2)
    double = basic_conv(b, x, "branch3x3dbl_1", 64 // d, 1)
    double = basic_conv(b, double, "branch3x3dbl_2", 96 // d, 3, pad=1)
    double = basic_conv(b, double, "branch3x3dbl_3", 96 // d, 3, stride=2)
    return b.concat(three, double, b.max_pool(x, 3, stride=2))


def inception_c(b: Builder, x: str, width: int, d: int) -> str:
    """Add an Inception block C, [N, C, H, W] → [N, 768 / d, H, W].

    Four branches are concatenated: a 1×1 convolution, a 7×7, two 7×7, and an average pool. A 7×7 convolution is
    factored into 1×7 and 7×1, with `width` / d channels inside.
    """
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
    """Add an Inception block D, [N, C, H, W] → [N, C + 512 / d, ⌊(H − 1) / 2⌋, ⌊(W − 1) / 2⌋].

    Three branches of stride 2 are concatenated: a 3×3 convolution, a 1×7, 7×1 and 3×3, and a max pool.
    """
    three = basic_conv(b, x, "branch3x3_1", 192 // d, 1)
    three = basic_conv(b, three, "branch3x3_2", 320 // d, 3, stride=2)
    seven = basic_conv(b, x, "branch7x7x3_1", 192 // d, 1)
    seven = basic_conv(b, seven, "branch7x7x3_2", 192 // d, (1, 7), pad=(0, 3))
    seven = basic_conv(b, seven, "branch7x7x3_3", 192 // d, (7, 1), pad=(3, 0))
    seven = basic_conv(b, seven, "branch7x7x3_4", 192 // d, 3, stride=2)
    return b.concat(three, seven, b.max_pool(x, 3, stride=2))


def inception_e(b: Builder, x: str, d: int) -> str:
    """Add an Inception block E, [N, C, H, W] → [N, 2048 / d, H, W].

    Four branches are concatenated: a 1×1 convolution, a split, a 3×3 followed by a split, and an average pool. A split
    is a 1×3 and a 3×1 convolution of the same input.
    """

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
    """Build an Inception-v3, [1, 3, image, image] → [1, classes].

    Args:
      name: name of the graph.
      seed: seed of the weights.
      a_pools: `pool` argument of each block A.
      c_widths: `width` argument of each block C.
      e_count: number of blocks E.
      d: divisor of all numbers of channels.
      image: height and width of the input.
      classes: number of classes.
    """
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
    """Build Inception-v3 for 299×299 images."""
    return inception("inception_v3", seed, [32, 64, 64], [128, 160, 160, 192], 2, d=1, image=299, classes=1000)


def tiny_inception_v3(seed: int) -> onnx.ModelProto:
    """Build an Inception-v3 for 75×75 images with one block each of A to E and a sixteenth of the channels."""
    return inception("tiny_inception_v3", seed, [32], [128], 1, d=16, image=75, classes=10)


POOL = "pool"


def fire(b: Builder, x: str, squeeze: int, expand: int) -> str:
    """Add a fire module of SqueezeNet, [N, C, H, W] → [N, 2·expand, H, W].

    A 1×1 convolution with `squeeze` channels is followed by a 1×1 and a 3×3 convolution in parallel.
    """
    x = b.relu(b.conv(x, "squeeze", squeeze, 1, bias=True))
    one = b.relu(b.conv(x, "expand1x1", expand, 1, bias=True))
    three = b.relu(b.conv(x, "expand3x3", expand, 3, pad=1, bias=True))
    return b.concat(one, three)


def squeezenet(name: str, seed: int, width: int, layers, image: int, classes: int) -> onnx.ModelProto:
    """Build a SqueezeNet, [1, 3, image, image] → [1, classes].

    Args:
      name: name of the graph.
      seed: seed of the weights.
      width: channels of the first convolution.
      layers: POOL for a max pool, or the (squeeze, expand) arguments of a `fire` module, in order.
      image: height and width of the input.
      classes: number of classes.
    """
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
    """Build SqueezeNet 1.1 for 224×224 images."""
    layers = [POOL, (16, 64), (16, 64), POOL, (32, 128), (32, 128), POOL, (48, 192), (48, 192), (64, 256), (64, 256)]
    return squeezenet("squeezenet1_1", seed, 64, layers, image=224, classes=1000)


def tiny_squeezenet1_1(seed: int) -> onnx.ModelProto:
    """Build a SqueezeNet for 32×32 images with two fire modules; the first convolution has 8 channels."""
    return squeezenet("tiny_squeezenet1_1", seed, 8, [POOL, (4, 8), POOL, (4, 16)], image=32, classes=10)


# -- ShuffleNet v2 ---------------------------------------------------------------------------------


def pointwise(b: Builder, x: str, name: str, channels: int) -> str:
    return b.relu(b.batch_norm(b.conv(x, f"{name}.conv", channels, 1), f"{name}.bn"))


def depthwise(b: Builder, x: str, name: str, stride: int) -> str:
    y = b.conv(x, f"{name}.conv", b.channels[x], 3, stride=stride, pad=1, groups=b.channels[x])
    return b.batch_norm(y, f"{name}.bn")


def shuffled(b: Builder, x: str, size: int) -> str:
    """Interleave the channels of the two halves of x, [1, C, size, size] → [1, C, size, size]."""
    channels = b.channels[x]
    y = b.op("Transpose", b.reshape(x, 1, 2, channels // 2, size, size), perm=[0, 2, 1, 3, 4])
    y = b.reshape(y, 1, channels, size, size)
    b.channels[y] = channels
    return y


def unit(b: Builder, x: str, channels: int, stride: int, size: int) -> str:
    """Add a ShuffleNet v2 unit with two branches, whose outputs are concatenated and interleaved.

    With stride 1, each branch reads half of the channels of x, and one branch is the identity. With stride 2, both
    branches read x and halve its height and width.

    Args:
      b: the builder.
      x: name of the input tensor.
      channels: number of output channels.
      stride: 1 or 2.
      size: height and width of the result.
    """
    half = channels // 2
    if stride == 1:
        kept, x = b.split(x, half, half)
    else:
        kept = pointwise(b, depthwise(b, x, "branch1.0", stride), "branch1.2", half)
    y = depthwise(b, pointwise(b, x, "branch2.0", half), "branch2.3", stride)
    return shuffled(b, b.concat(kept, pointwise(b, y, "branch2.5", half)), size)


class Folded(Builder):
    """A builder whose convolutions have biases and whose normalisations do nothing, as after folding at export."""

    def conv(self, x: str, *arguments, **options) -> str:
        return super().conv(x, *arguments, **options | {"bias": True})

    def batch_norm(self, x: str, name: str, epsilon: float = 1e-5, scale: float = 0.95) -> str:
        return x


def shufflenet_v2_of(
    name: str, seed: int, stages, last: int, image: int, classes: int, builder: type[Builder] = Builder
) -> onnx.ModelProto:
    """Build a ShuffleNet v2, [1, 3, image, image] → [1, classes].

    Args:
      name: name of the graph.
      seed: seed of the weights.
      stages: (number of channels, number of units) of each stage.
      last: channels of the last convolution.
      image: height and width of the input.
      classes: number of classes.
      builder: `Builder`, or `Folded` to omit the normalisations.
    """
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
    """Build ShuffleNet v2 1.0× for 224×224 images; the builder `Folded` omits the normalisations."""
    stages = [(116, 4), (232, 8), (464, 4)]
    return shufflenet_v2_of("shufflenet_v2", seed, stages, 1024, image=224, classes=1000, builder=builder)


def shufflenet_v2_folded(seed: int) -> onnx.ModelProto:
    """Build ShuffleNet v2 1.0× for 224×224 images, with normalisations folded into the convolutions."""
    return shufflenet_v2(seed, Folded)


def tiny_shufflenet_v2(seed: int) -> onnx.ModelProto:
    """Build a ShuffleNet v2 for 32×32 images with two stages of two units, of 20 and 40 channels."""
    return shufflenet_v2_of("tiny_shufflenet_v2", seed, [(20, 2), (40, 2)], 48, image=32, classes=10)


# -- MobileNet v2 ----------------------------------------------------------------------------------


def normalised(b: Builder, x: str, scale: float = 0.95) -> str:
    return b.batch_norm(x, "BN", epsilon=1e-3, scale=scale)


def relu6(b: Builder, x: str) -> str:
    return b.op("Clip", x, b.constant(0), b.constant(6))


def strided(b: Builder, x: str, stride: int) -> tuple[str, int]:
    """Prepare the input x of a 3×3 convolution, and return the prepared tensor and the convolution's padding.

    With stride 1 the result is (x, 1). With another stride, a row and a column of zeros are added at the end of x, and
    the padding is 0.
    """
    if stride == 1:
        return x, 1
    return b.op("Pad", x, b.constant([0, 0, 0, 0, 0, 0, 1, 1], "int64"), mode="constant"), 0


def inverted_residual(b: Builder, x: str, expansion: int, channels: int, stride: int) -> str:
    """Add a block of MobileNet v2, [N, C, H, W] → [N, channels, H/stride, W/stride].

    The block is a 1×1 convolution with `expansion`·C channels (none if expansion is 1), a depthwise 3×3 convolution and
    a 1×1 convolution. x is added to the result if both have the same shape.
    """
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
    """Build a MobileNet v2, [1, 3, image, image] → [1, classes].

    Args:
      name: name of the graph.
      seed: seed of the weights.
      first: channels of the first convolution.
      blocks: (expansion, channels, repetitions, stride) of each group of blocks.
      last: channels of the last convolution.
      image: height and width of the input.
      classes: number of classes.
    """
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
    """Build MobileNet v2 1.0 for 224×224 images, padded as in Keras."""
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    return mobilenet_v2_of("mobilenet_v2", seed, 32, blocks, 1280, image=224, classes=1000)


def tiny_mobilenet_v2(seed: int) -> onnx.ModelProto:
    """Build a MobileNet v2 for 32×32 images with four blocks of 8 to 20 channels."""
    return mobilenet_v2_of(
        "tiny_mobilenet_v2", seed, 8, [(1, 8, 1, 1), (2, 12, 2, 2), (2, 20, 1, 2)], 32, image=32, classes=10
    )
