"""Time kernels for the prior of kernels: of zoo models with random rewrites, of random models, and of random sizes.

    python -m benchmarks.kernel_timings --database kernels.sqlite --threads 1 --kernels 20000
    rlflow costs train --database kernels.sqlite

Every draw has a number, and equal numbers draw equal models. A timing is stored at once, and kernels.drawn-1.json holds
the next number, so a stopped command continues where it was. Nothing is published. The machine should do nothing else:
with several threads the clock is the wall time.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.random_models.random_model import random_model
from rlflow.common.files import read_json, write_json
from rlflow.common.messages import counted, progress_bar, say
from rlflow.costs import TimeIsUp, timing_until
from rlflow.costs.analytic import AnalyticCost
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.speeds import speeds_here
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.apply import apply
from rlflow.rules.language import load_rules
from rlflow.rules.locations import MatchTable
from rlflow.zoo import NAMES, load

ZOO = tuple(name for _, names in NAMES for name in names)
REWRITES, EVERY = 24, 6  # random rewrites of a zoo model, and the rewrites between two graphs whose kernels are timed
MOST_FLOPS = 2e9  # of an operator of random sizes, about 20 ms with one thread
MOST_ELEMENTS = 2**24  # of a tensor of random sizes: 64 MB
SOURCES = ("zoo", "motifs", "frequent", "frequent", "rare")  # sources of the models in turn


# -- models of random sizes ------------------------------------------------------------------------


class Sizes:
    """Draws of sizes; most are multiples of 4 or 8, as in real networks."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def channels(self, most: int = 1024) -> int:
        drawn = 2 ** self.rng.uniform(1, math.log2(most))
        step = int(self.rng.choice([1, 4, 8, 8, 16]))
        return max(round(drawn / step) * step, 1)

    def side(self, most: int = 128) -> int:
        return max(round(2 ** self.rng.uniform(1, math.log2(most))), 1)

    def one_of(self, *values):
        return values[int(self.rng.integers(len(values)))]


def convolution(draw: Sizes) -> tuple[list, dict, dict]:
    """Return a pointwise convolution and a second convolution behind it, which reads blocks of channels if it can."""
    batch, inner, channels, side = draw.one_of(1, 1, 1, 2, 4), draw.channels(512), draw.channels(512), draw.side()
    window, stride = draw.one_of(1, 3, 3, 3, 5, 7), draw.one_of(1, 1, 2)
    group = draw.one_of(1, 1, 1, inner, 2 if inner % 2 == channels % 2 == 0 else 1)
    channels = inner if group == inner else channels
    nodes = [
        helper.make_node("Conv", ["x", "point"], ["a"]),
        helper.make_node("Conv", ["a", "w", "b"], ["c"], group=group, strides=[stride] * 2, pads=[window // 2] * 4),
    ]
    weights = {"point": (inner, draw.one_of(3, 16, inner), 1, 1), "w": (channels, inner // group, window, window)}
    act = draw.one_of("", "Relu", "Relu", "Sigmoid", "HardSwish")
    if act:
        nodes.append(helper.make_node(act, ["c"], ["y"]))
    return nodes, {"x": (batch, weights["point"][1], side, side)}, weights | {"b": (channels,)}


def product(draw: Sizes) -> tuple[list, dict, dict]:
    """Return a product with a constant or with two varying sides, and what often follows."""
    rows, inner, columns = draw.side(512), draw.channels(4096), draw.channels(4096)
    batch = draw.one_of((), (1,), (1,), (4,), (1, 12), (8, 16))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"])]
    inputs, weights = {"x": (*batch, rows, inner)}, {}
    if len(batch) < 2 and draw.rng.random() < 0.8:
        weights["w"] = (inner, columns)
        nodes.append(helper.make_node("Add", ["a", "b"], ["c"]))
        weights["b"] = (columns,)
        nodes.append(helper.make_node(draw.one_of("Relu", "Gelu", "Tanh"), ["c"], ["y"]))
    else:
        inputs["w"] = (*batch, inner, columns)
        nodes.append(helper.make_node("Softmax", ["a"], ["y"], axis=-1))
    return nodes, inputs, weights


UNARY = ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Neg", "Abs", "Gelu", "HardSwish", "LeakyRelu", "Clip")
BINARY = ("Add", "Mul", "Sub", "Div")


def shape_of(draw: Sizes) -> tuple[int, ...]:
    if draw.rng.random() < 0.5:
        return (draw.one_of(1, 1, 4), draw.channels(512), *(draw.side(),) * 2)
    return (draw.one_of(1, 1, 8), draw.side(512), draw.channels(4096))


def elementwise(draw: Sizes) -> tuple[list, dict, dict]:
    """Return a sum or product of tensors of equal or broadcast sizes, and a function of it."""
    shape = shape_of(draw)
    other = draw.one_of(shape, shape, shape[-1:], (1,), (shape[1], *(1,) * (len(shape) - 2)))
    nodes = [
        helper.make_node(draw.one_of(*BINARY), ["x", "z"], ["a"]),
        helper.make_node(draw.one_of(*UNARY), ["a"], ["y"]),
    ]
    return nodes, {"x": shape, "z": other}, {}


def movement(draw: Sizes) -> tuple[list, dict, dict]:
    """Return a transposition, a concatenation, a split, a pooling or an enlargement."""
    shape = shape_of(draw)
    kind = draw.one_of("Transpose", "Concat", "Split", "MaxPool", "AveragePool", "Resize", "Pad")
    image = (shape[0], draw.channels(256), draw.side(), draw.side())
    if kind == "Transpose":
        perm = [int(k) for k in draw.rng.permutation(len(shape))]
        return [helper.make_node(kind, ["x"], ["y"], perm=perm)], {"x": shape}, {}
    if kind in ("Concat", "Split"):
        axis = int(draw.rng.integers(1, len(shape)))
        shape = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
        if kind == "Split":
            return [helper.make_node(kind, ["x"], ["y", "y2"], axis=axis, num_outputs=2)], {"x": shape}, {}
        names = [f"x{k}" for k in range(draw.one_of(2, 2, 3, 4))]
        return [helper.make_node(kind, names, ["y"], axis=axis)], dict.fromkeys(names, shape), {}
    if kind.endswith("Pool"):
        window = draw.one_of(2, 3)
        node = helper.make_node(
            kind, ["x"], ["y"], kernel_shape=[window] * 2, strides=[draw.one_of(1, 2)] * 2, pads=[1] * 4
        )
        return [node], {"x": image}, {}
    if kind == "Resize":
        scale = helper.make_node("Constant", [], ["s"], value_floats=[1.0, 1.0, 2.0, 2.0])
        mode = draw.one_of("nearest", "linear")
        return [scale, helper.make_node(kind, ["x", "", "s"], ["y"], mode=mode)], {"x": image}, {}
    widths = helper.make_node("Constant", [], ["s"], value_ints=[0, 0, 1, 1, 0, 0, 1, 1])
    return [widths, helper.make_node(kind, ["x", "s"], ["y"])], {"x": image}, {}


def reduction(draw: Sizes) -> tuple[list, dict, dict]:
    """Return a normalisation, a Softmax or a reduction along the last axis."""
    shape = shape_of(draw)
    kind = draw.one_of("LayerNormalization", "Softmax", "ReduceMean", "ReduceMax", "GlobalAveragePool", "ReduceSum")
    if kind == "LayerNormalization":
        return [helper.make_node(kind, ["x", "w"], ["y"], axis=-1)], {"x": shape}, {"w": shape[-1:]}
    if kind == "GlobalAveragePool":
        return [helper.make_node(kind, ["x"], ["y"])], {"x": (1, draw.channels(512), draw.side(), draw.side())}, {}
    if kind == "Softmax":
        return [helper.make_node(kind, ["x"], ["y"], axis=-1)], {"x": shape}, {}
    axes = helper.make_node("Constant", [], ["s"], value_ints=[draw.one_of(1, -1)])
    return [axes, helper.make_node(kind, ["x", "s"], ["y"])], {"x": shape}, {}


def other_convolution(draw: Sizes) -> tuple[list, dict, dict]:
    """Return a transposed convolution, or one over one or three axes."""
    batch, inner, channels, window = draw.one_of(1, 1, 2), draw.channels(256), draw.channels(256), draw.one_of(3, 3, 5)
    axes = draw.one_of(1, 1, 2, 3)
    side, pads = {1: 1024, 2: 96, 3: 24}[axes], [window // 2] * 2 * axes
    image, weight = (batch, inner, *(draw.side(side),) * axes), (channels, inner, *(window,) * axes)
    if axes == 2:
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[draw.one_of(1, 2)] * 2, pads=pads)
        return [node], {"x": image}, {"w": (inner, channels, window, window)}
    group = draw.one_of(1, 1, inner) if axes == 1 else 1
    weight = weight if group == 1 else (inner, 1, window)
    return [helper.make_node("Conv", ["x", "w"], ["y"], pads=pads, group=group)], {"x": image}, {"w": weight}


def recurrence(draw: Sizes) -> tuple[list, dict, dict]:
    """Return an LSTM or a GRU in one or both directions."""
    kind, gates = draw.one_of(("LSTM", 4), ("GRU", 3))
    inner, hidden, directions = draw.channels(512), draw.channels(256), draw.one_of(1, 2)
    direction = "forward" if directions == 1 else "bidirectional"
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=hidden, direction=direction)
    weights = {"w": (directions, gates * hidden, inner), "r": (directions, gates * hidden, hidden)}
    return [node], {"x": (draw.side(64), draw.one_of(1, 1, 4), inner)}, weights


def other_normalisation(draw: Sizes) -> tuple[list, dict, dict]:
    """Return a normalisation of an image, or an operation along an axis that few networks have."""
    kind = draw.one_of("LRN", "InstanceNormalization", "GlobalMaxPool", "LogSoftmax", "ArgMax", "TopK", "Softmax")
    image, shape = (draw.one_of(1, 1, 4), draw.channels(512), *(draw.side(),) * 2), shape_of(draw)
    if kind == "LRN":
        return [helper.make_node(kind, ["x"], ["y"], size=draw.one_of(3, 5))], {"x": image}, {}
    if kind == "InstanceNormalization":
        return [helper.make_node(kind, ["x", "w", "b"], ["y"])], {"x": image}, dict.fromkeys("wb", image[1:2])
    if kind == "GlobalMaxPool":
        return [helper.make_node(kind, ["x"], ["y"])], {"x": image}, {}
    if kind == "TopK":
        count = helper.make_node("Constant", [], ["s"], value_ints=[1])
        return [count, helper.make_node(kind, ["x", "s"], ["y", "y2"])], {"x": shape}, {}
    return [helper.make_node(kind, ["x"], ["y"], axis=draw.one_of(1, -1))], {"x": shape}, {}


def other_movement(draw: Sizes) -> tuple[list, dict, dict]:
    """Return a comparison, a choice, a repetition, an enlargement or an Einsum."""
    kind = draw.one_of("Where", "Min", "Max", "PRelu", "Sin", "Tile", "Expand", "Resize", "Einsum")
    shape = shape_of(draw)
    if kind == "Where":
        test = helper.make_node("Greater", ["x", "z"], ["a"])
        return [test, helper.make_node(kind, ["a", "x", "z"], ["y"])], dict.fromkeys("xz", shape), {}
    if kind in ("Min", "Max"):
        return [helper.make_node(kind, ["x", "z"], ["y"])], dict.fromkeys("xz", shape), {}
    if kind == "PRelu":
        return [helper.make_node(kind, ["x", "w"], ["y"])], {"x": shape}, {"w": (shape[1], *(1,) * (len(shape) - 2))}
    if kind == "Sin":
        return [helper.make_node(kind, ["x"], ["y"])], {"x": shape}, {}
    if kind == "Einsum":
        first, second = (draw.one_of(1, 2), draw.side(256), draw.one_of(4, 8), 64), draw.side(256)
        node = helper.make_node(kind, ["x", "z"], ["y"], equation="bihd,bjhd->bhij")
        return [node], {"x": first, "z": (first[0], second, *first[2:])}, {}
    if kind == "Resize":
        scale = helper.make_node("Constant", [], ["s"], value_floats=[1.0, 1.0, *[draw.one_of(0.5, 2.0, 4.0)] * 2])
        image = (1, draw.channels(256), *(2 * draw.side(64),) * 2)
        return [scale, helper.make_node(kind, ["x", "", "s"], ["y"], mode="linear")], {"x": image}, {}
    times = [draw.one_of(1, 2), *[1] * (len(shape) - 2), 2]
    if kind == "Expand":
        times, shape = list(shape), (*shape[:-1], 1)
    constant = helper.make_node("Constant", [], ["s"], value_ints=times)
    return [constant, helper.make_node(kind, ["x", "s"], ["y"])], {"x": shape}, {}


FAMILIES: dict[str, tuple[Callable, ...]] = {
    "frequent": (convolution, convolution, convolution, product, product, elementwise, movement, reduction),
    "rare": (other_convolution, recurrence, *[other_normalisation, other_movement] * 2),
}


def of_random_sizes(number: int, source: str) -> onnx.ModelProto | None:
    """Return a model of one to three operators of random sizes; None if the draw is larger than MOST_ELEMENTS.

    Args:
      number: the number of the draw.
      source: key of FAMILIES.
    """
    draw = Sizes(number)
    nodes, inputs, weights = draw.one_of(*FAMILIES[source])(draw)
    shapes = (*inputs.values(), *weights.values())
    if max(map(math.prod, shapes)) > MOST_ELEMENTS:
        return None
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    made = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    held = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, np.full(math.prod(shape), 0.5, np.float32))
        for name, shape in weights.items()
    ]
    graph = helper.make_graph(nodes, "sizes", given, made, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


# -- drawing and timing ----------------------------------------------------------------------------


def graphs(number: int, rules) -> list[Graph]:
    """Return the graphs of a draw; their kernels are to be timed. Equal numbers give equal graphs.

    Args:
      number: the number of the draw.
      rules: the rule set whose rewrites are applied to models of the zoo.
    """
    source = SOURCES[number % len(SOURCES)]
    if source == "zoo":
        place = number // len(SOURCES)
        return walk(load_graph(load(ZOO[place % len(ZOO)])), rules, number)
    model = random_model(number) if source == "motifs" else of_random_sizes(number, source)
    return [] if model is None else [load_graph(model)]


def walk(graph: Graph, rules, seed: int) -> list[Graph]:
    """Return a graph, and graphs on a random sequence of REWRITES rewrites that begins there."""
    rng, result, table = np.random.default_rng(seed), [graph], MatchTable(rules, graph)
    for step in range(1, REWRITES + 1):
        able = np.flatnonzero(table.counts)  # a rule first, then a place, so that frequent rules do not prevail
        if not able.size:
            break
        rule = int(rng.choice(able))
        match = table.location(rule, int(rng.integers(table.counts[rule])))
        graph = apply(graph, rules[rule], match)
        table = MatchTable(rules, graph, table)
        if step % EVERY == 0:
            result.append(graph)
    return result


def drawn_file(database: Path | str, threads: int) -> Path:
    """Return the file beside a database of timings that holds the number of the next draw."""
    return Path(database).with_suffix(f".drawn-{threads}.json")


def drawn(database: Path | str, threads: int) -> int:
    """Return the number of draws whose kernels a database of timings holds; 0 if this command did not fill it."""
    file = drawn_file(database, threads)
    return read_json(file)["next"] if file.exists() else 0


def time_kernels(cost: ProfiledCost, graph: Graph, end: float) -> None:
    """Time all kernels of a graph that are not too large. Raise TimeIsUp after the value `end` of time.monotonic()."""
    analytic = AnalyticCost()
    with timing_until(cost, end):
        for node in graph.nodes.values():
            if not node.constant and analytic.node_cost(graph, node).flops <= MOST_FLOPS:
                cost.node_cost(graph, node)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True, metavar="FILE", help="SQLite file for the timings")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of ONNX Runtime (default: 1)")
    parser.add_argument(
        "--kernels", type=int, default=20_000, metavar="N", help="end with N timed kernels (default: 20000)"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="S", help="end after S seconds")
    parsed = parser.parse_args()
    cost, rules = ProfiledCost(parsed.database, parsed.threads), load_rules()
    speeds_here(cost.database, parsed.threads)
    number = drawn(parsed.database, parsed.threads)
    end, begun = time.monotonic() + parsed.seconds, len(cost.database.timings(parsed.threads))
    known = begun
    with progress_bar(parsed.kernels, "kernels", " kernels") as bar:
        bar.update(known)
        while known < parsed.kernels:
            try:
                for graph in graphs(number, rules):
                    time_kernels(cost, graph, end)
            except TimeIsUp:
                break
            number += 1
            write_json(drawn_file(parsed.database, parsed.threads), {"next": number})
            bar.update(len(cost.database.timings(parsed.threads)) - known)
            known = len(cost.database.timings(parsed.threads))
    each = 1e3 * cost.timing_seconds / max(known - begun, 1)
    say(f"{counted(known - begun, 'kernel')} timed, {each:.0f} ms each; {known} are known")
    return 0


if __name__ == "__main__":
    sys.exit(main())
