"""SqueezeNet 1.1 (Iandola et al., arXiv:1602.07360), as torchvision's; Dropout is absent at inference."""

import onnx

from rlflow.zoo.builder import Builder

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
