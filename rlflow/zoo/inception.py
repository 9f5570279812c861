"""Inception-v3 (Szegedy et al., "Rethinking the Inception Architecture", arXiv:1512.00567), as torchvision's
without the auxiliary head. `d` divides every number of channels; it is 1 at full size.
"""

import onnx

from rlflow.zoo.builder import Builder


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
