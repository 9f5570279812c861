"""Networks that keep many results in memory for later nodes, so that their peak memory depends on the order of nodes.

The networks are U-Net, U-Net++, NASNet, DARTS, dense blocks, RandWire, HRNet and a training step, as graphs that
exporters write. The seed determines their random weights. They have few channels, because it matters which results are
kept and not how large they are. The largest results of each network take 0.5 MB or more, which is above the uncertainty
of measured memory, 0.25 MB.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np
import onnx

from rlflow.zoo.builder import Builder

SIZE, OUTPUTS = 128, 10  # height and width of the input image; number of output channels or classes


def unet(seed: int = 0, width: int = 16, depth: int = 4) -> onnx.ModelProto:
    """Return a U-Net (Ronneberger et al. 2015).

    Each level of the upward path concatenates the features of the same level of the downward path with its own.
    """
    b, skips = Builder("unet", seed), []
    x = b.input("x", [1, 3, SIZE, SIZE])
    for level in range(depth):
        with b.scope(f"down{level}"):
            x = _twice(b, x, width << level)
        if level < depth - 1:
            skips.append(x)
            x = b.max_pool(x, 2, 2)
    for level in reversed(range(depth - 1)):
        with b.scope(f"up{level}"):
            x = _twice(b, b.concat(skips[level], _larger(b, x, width << level)), width << level)
    b.output(b.conv(x, "head", OUTPUTS, 1, bias=True), "y", [1, OUTPUTS, SIZE, SIZE])
    return b.model()


def unetpp(seed: int = 0, width: int = 16, depth: int = 4) -> onnx.ModelProto:
    """Return a U-Net++ (Zhou et al. 2018), a grid of levels (resolutions) and columns.

    The node in column k of a level reads the nodes in columns 0 to k - 1 of its level and, enlarged, the node in column
    k - 1 of the next coarser level.
    """
    b, rows = Builder("unetpp", seed), []
    x = b.input("x", [1, 3, SIZE, SIZE])
    for level in range(depth):
        with b.scope(f"x{level}.0"):
            x = _twice(b, x, width << level)
        rows.append([x])
        x = b.max_pool(x, 2, 2)
    for column in range(1, depth):
        for level in range(depth - column):
            with b.scope(f"x{level}.{column}"):
                below = _larger(b, rows[level + 1][column - 1], width << level)
                rows[level].append(_twice(b, b.concat(*rows[level], below), width << level))
    b.output(b.conv(rows[0][-1], "head", OUTPUTS, 1, bias=True), "y", [1, OUTPUTS, SIZE, SIZE])
    return b.model()


def _twice(b: Builder, x: str, channels: int) -> str:
    for name in ("first", "second"):
        x = b.relu(b.conv(x, name, channels, 3, pad=1, bias=True))
    return x


def _larger(b: Builder, x: str, channels: int) -> str:
    """Add an enlargement to twice the height and width, a 1×1 convolution to `channels` channels and a ReLU."""
    return b.relu(b.conv(_enlarged(b, x, 2), "up", channels, 1, bias=True))


def _enlarged(b: Builder, x: str, times: int) -> str:
    return b.op("Resize", x, "", b.constant([1, 1, times, times]), mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip


def densenet(seed: int = 0, growth: int = 16, layers: tuple[int, ...] = (6, 8, 6)) -> onnx.ModelProto:
    """Return a DenseNet (Huang et al. 2017): each layer reads the results of all earlier layers of its block.

    Args:
        seed: seed of the weights.
        growth: number of channels that each layer adds.
        layers: number of layers of each block.
    """
    b = Builder("densenet", seed)
    x = b.relu(_normed(b, b.input("x", [1, 3, SIZE, SIZE]), "stem", 2 * growth, 3))
    for block, count in enumerate(layers):
        made = [x]
        for layer in range(count):
            with b.scope(f"block{block}.{layer}"):
                y = b.concat(*made) if layer else x
                y = b.conv(b.relu(b.batch_norm(y, "norm1")), "conv1", 4 * growth, 1)
                made.append(b.conv(b.relu(b.batch_norm(y, "norm2")), "conv2", growth, 3, pad=1))
        x = b.concat(*made)
        with b.scope(f"transition{block}"):
            x = b.conv(b.relu(b.batch_norm(x, "norm")), "conv", b.channels[x] // 2, 1)
            x = b.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return _classified(b, b.relu(x))


def darts(seed: int = 0, width: int = 16, cells: int = 6) -> onnx.ModelProto:
    """Return a chain of DARTS cells (Liu et al. 2019, second order); its dilated convolutions have no dilation here.

    A cell reads the outputs of the two previous cells and concatenates four sums of two operations each.
    """
    steps = [("sep3", 0, "sep3", 1), ("sep3", 0, "sep3", 1), ("sep3", 1, "skip", 0), ("skip", 0, "dil3", 2)]
    return _cells("darts", seed, width, cells, steps, joined=(2, 3, 4, 5))


def nasnet(seed: int = 0, width: int = 16, cells: int = 6) -> onnx.ModelProto:
    """Return a chain of normal cells of NASNet-A (Zoph et al. 2018).

    A cell concatenates one of its two inputs and five sums of two operations each.
    """
    steps = [("sep3", 1, "skip", 1), ("sep3", 0, "sep5", 1), ("avg", 1, "skip", 0), ("avg", 0, "avg", 0),
             ("sep5", 0, "sep3", 0)]  # fmt: skip
    return _cells("nasnet", seed, width, cells, steps, joined=(0, 2, 3, 4, 5, 6))


def _cells(name: str, seed: int, width: int, cells: int, steps: list[tuple], joined: tuple[int, ...]):
    """Return a network that is a chain of equal cells. Each cell reads the outputs of the two previous cells.

    Args:
        name: name of the graph.
        seed: seed of the weights.
        width: number of channels of each result in a cell.
        cells: number of cells.
        steps: (operation, operand, operation, operand) of each sum in a cell. An operation is a key of _OPERATIONS. The
            operands 0 and 1 are the outputs of the previous cells, and operand 2 + k is the result of sum k.
        joined: numbers of the operands that the cell concatenates to its output.
    """
    b = Builder(name, seed)
    before = last = _normed(b, b.input("x", [1, 3, SIZE, SIZE]), "stem", 3 * width, 3)
    for cell in range(cells):
        with b.scope(f"cell{cell}"):
            made = []
            for side, x in (("before", before), ("last", last)):
                made.append(_normed(b, b.relu(x), side, width, 1))
            for k, (one, first, other, second) in enumerate(steps):
                with b.scope(f"sum{k}"):
                    sides = _OPERATIONS[one](b, made[first], "a"), _OPERATIONS[other](b, made[second], "b")
                    made.append(b.op("Add", *sides))
            before, last = last, b.concat(*(made[k] for k in joined))
            b.channels[last] = width * len(joined)
    return _classified(b, b.relu(last))


def _separable(b: Builder, x: str, name: str, kernel: int, channels: int = 0, stride: int = 1) -> str:
    """Add a ReLU, a depthwise convolution, a 1×1 convolution and a batch normalisation.

    Args:
        b: the builder.
        x: name of the input tensor.
        name: scope of the new nodes.
        kernel: height and width of the depthwise convolution's kernel.
        channels: number of output channels; 0 for the number of channels of x.
        stride: stride of the depthwise convolution.
    """
    given = b.channels[x]
    with b.scope(name):
        y = b.conv(b.relu(x), "depth", given, kernel, stride, pad=kernel // 2, groups=given)
        return b.batch_norm(b.conv(y, "point", channels or given, 1), "norm")


_OPERATIONS: dict[str, Callable[[Builder, str, str], str]] = {
    "sep3": lambda b, x, name: _separable(b, x, name, 3),
    "sep5": lambda b, x, name: _separable(b, x, name, 5),
    "dil3": lambda b, x, name: _separable(b, x, name, 3),
    "avg": lambda b, x, name: b.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]),
    "skip": lambda b, x, name: x,
}


def randwire(seed: int = 0, width: int = 64, nodes: int = 32, stages: int = 3) -> onnx.ModelProto:
    """Return a RandWire network (Xie et al. 2019): each stage is a random Watts-Strogatz graph WS(4, 0.75).

    Each node of such a graph is a separable convolution of the sum of its inputs.
    """
    b = Builder("randwire", seed)
    x = b.relu(_normed(b, b.input("x", [1, 3, SIZE, SIZE]), "stem", width // 2, 3))
    for stage in range(stages):
        with b.scope(f"stage{stage}"):
            x = _wired(b, x, width << stage, watts_strogatz(b.weights.rng, nodes))
    return _classified(b, b.relu(x))


def watts_strogatz(rng: np.random.Generator, nodes: int, degree: int = 4, rewired: float = 0.75) -> list[list[int]]:
    """Return a random Watts-Strogatz graph (1998) as a list: node → the lower-numbered nodes that it reads.

    Args:
        rng: the random generator.
        nodes: number of nodes.
        degree: number of neighbours that a node has in the initial ring.
        rewired: probability that an edge of the ring gets another end.
    """
    ahead = [(node, (node + step) % nodes) for step in range(1, degree // 2 + 1) for node in range(nodes)]
    edges = {frozenset(edge) for edge in ahead}
    for node, other in ahead:
        if rng.random() < rewired:
            free = [end for end in range(nodes) if end != node and frozenset((node, end)) not in edges]
            edges ^= {frozenset((node, other)), frozenset((node, int(rng.choice(free))))}
    return [[source for source in range(node) if frozenset((source, node)) in edges] for node in range(nodes)]


def _wired(b: Builder, x: str, channels: int, sources: Sequence[Sequence[int]]) -> str:
    """Add a graph of separable convolutions and return the mean of the results that no other node reads.

    Nodes without sources read x and halve its height and width.

    Args:
        b: the builder.
        x: name of the input tensor.
        channels: number of output channels of each node.
        sources: for each node the numbers of the nodes whose sum it reads, see `watts_strogatz`.
    """
    made: list[str] = []
    for node, reads in enumerate(sources):
        given = _sum(b, [made[k] for k in reads]) if reads else x
        made.append(_separable(b, given, f"node{node}", 3, channels, 1 if reads else 2))
    ends = [made[k] for k in sorted(set(range(len(made))).difference(*sources))]
    return b.op("Mul", _sum(b, ends), b.constant(1 / len(ends)))


def _sum(b: Builder, terms: Sequence[str]) -> str:
    return reduce(lambda total, term: b.op("Add", total, term), terms)


def hrnet(
    seed: int = 0, width: int = 16, stages: int = 4, blocks: int = 2, joined: bool = False
) -> onnx.ModelProto:  # fmt: skip
    """Return an HRNet (Wang et al. 2019): each stage adds a coarser resolution and ends with sums over all resolutions.

    Args:
        seed: seed of the weights.
        width: number of channels at the finest resolution; it doubles with each coarser resolution.
        stages: number of stages, which equals the number of resolutions.
        blocks: number of residual blocks per resolution and stage.
        joined: False to compute the output from the finest resolution (HRNetV1), True to compute it from the
            concatenation of all resolutions (HRNetV2).
    """
    b = Builder("hrnet", seed)
    x = b.relu(_normed(b, b.input("x", [1, 3, SIZE, SIZE]), "stem", width, 3))
    with b.scope("stage0"):
        branches = [_residual(b, x, blocks)]
    for stage in range(1, stages):
        with b.scope(f"stage{stage}"):
            branches.append(b.relu(_normed(b, branches[-1], "new", width << stage, 3, 2)))
            for level, x in enumerate(branches):
                with b.scope(f"branch{level}"):
                    branches[level] = _residual(b, x, blocks)
            read = 1 if stage == stages - 1 and not joined else len(branches)
            branches = [_exchanged(b, branches, to, width) for to in range(read)]
    x, *coarser = branches
    if joined:
        x = b.concat(x, *(_enlarged(b, other, 2 << level) for level, other in enumerate(coarser)))
        x = b.relu(_normed(b, x, "joined", b.channels[x], 1))
    b.output(b.conv(x, "head", OUTPUTS, 1, bias=True), "y", [1, OUTPUTS, SIZE, SIZE])
    return b.model()


def _residual(b: Builder, x: str, blocks: int) -> str:
    for block in range(blocks):
        with b.scope(f"block{block}"):
            y = b.relu(_normed(b, x, "first", b.channels[x], 3))
            x = b.relu(b.op("Add", _normed(b, y, "second", b.channels[x], 3), x))
    return x


def _exchanged(b: Builder, branches: Sequence[str], to: int, width: int) -> str:
    """Add the sum of all branches at the resolution of branch `to`.

    Strided convolutions reduce the finer branches; the coarser branches are enlarged.
    """
    terms = []
    for level, x in enumerate(branches):
        with b.scope(f"from{level}.to{to}"):
            for step in range(level + 1, to):
                x = b.relu(_normed(b, x, f"down{step}", width << level, 3, 2))
            if level < to:
                x = _normed(b, x, f"down{to}", width << to, 3, 2)
            elif level > to:
                x = _enlarged(b, _normed(b, x, "up", width << to, 1), 1 << level - to)
            terms.append(x)
    return b.relu(_sum(b, terms))


def training(seed: int = 0, batch: int = 512, width: int = 256, layers: int = 8) -> onnx.ModelProto:
    """Return a model that computes the gradients of all weights and biases of an MLP classifier.

    The loss is the mean cross entropy with the input `target`, probabilities [batch, OUTPUTS]. The input of each layer
    is kept until the gradient of the layer's weight is computed, and the input of the first layer is kept longest.
    """
    b, sizes = Builder("training", seed), [width] * layers + [OUTPUTS]
    x, target, given, weights = b.input("x", [batch, width]), b.input("target", [batch, OUTPUTS]), [], []
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            given.append(x if layer == 0 else b.relu(x))
            weights.append(b.parameter("weight", b.weights.scaled(sizes[layer : layer + 2], fan_in=width)))
            bias = b.parameter("bias", b.weights.bias(sizes[layer + 1]))
            x = b.op("Add", b.op("MatMul", given[layer], weights[layer]), bias)
    gradient = b.op("Mul", b.op("Sub", b.op("Softmax", x, axis=1), target), b.constant(1 / batch))
    for layer in reversed(range(layers)):
        with b.scope(f"layer{layer}.backward"):
            of_weight = b.op("MatMul", b.op("Transpose", given[layer], perm=[1, 0]), gradient)
            of_bias = b.op("ReduceSum", gradient, b.constant([0], np.int64), keepdims=0)
            b.output(of_weight, f"layer{layer}.weight.gradient", sizes[layer : layer + 2])
            b.output(of_bias, f"layer{layer}.bias.gradient", sizes[layer + 1 : layer + 2])
            if layer:
                alive = b.op("Cast", b.op("Greater", given[layer], b.constant(0)), to=onnx.TensorProto.FLOAT)
                gradient = b.op("MatMul", gradient, b.op("Transpose", weights[layer], perm=[1, 0]))
                gradient = b.op("Mul", gradient, alive)
    return b.model()


def _normed(b: Builder, x: str, name: str, channels: int, kernel: int, stride: int = 1) -> str:
    return b.batch_norm(b.conv(x, name, channels, kernel, stride, kernel // 2), f"{name}.norm")


def _classified(b: Builder, x: str) -> onnx.ModelProto:
    b.output(b.gemm(b.pooled_features(x), "classifier", b.channels[x], OUTPUTS), "y", [1, OUTPUTS])
    return b.model()


NETWORKS = {  # name → function that returns the model
    "unet": unet, "unetpp": unetpp, "densenet": densenet, "darts": darts, "nasnet": nasnet, "randwire": randwire,
    "hrnet": hrnet, "hrnetv2": partial(hrnet, joined=True), "training": training,
}  # fmt: skip
