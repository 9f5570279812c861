"""ResNet (He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385), as torchvision's."""

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
