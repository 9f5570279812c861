"""Models whose inputs must have certain values: indices of tables, shapes, counts, lengths, sizes that agree."""

from functools import partial

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from tests.field import Case

N = helper.make_node
PROJECT = [N("MatMul", ["e", "w"], ["p"]), N("MatMul", ["p", "u"], ["y"])]


def port(name, shape, kind=T.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def built(nodes, inputs, outputs, **constants) -> onnx.ModelProto:
    """Return a model with two weights [16, 16], a table [10, 16] and further constants, as far as nodes read them."""
    r = np.random.default_rng(0)
    held = {
        "w": r.normal(size=(16, 16)).astype("f"), "u": r.normal(size=(16, 16)).astype("f"),
        "table": r.normal(size=(10, 16)).astype("f"), "first": np.array([0]), "one": np.int64(1), "nil": np.int64(0),
        **constants,
    }  # fmt: skip
    bodies = [a.g for node in nodes for a in node.attribute if a.g.node]
    read = {name for node in [*nodes, *(inner for body in bodies for inner in body.node)] for name in node.input}
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items() if name in read]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def embedded(*before, inputs=None, shape=("b", "s", 16), **constants) -> onnx.ModelProto:
    """Return a model that looks up rows of the table by the tensor `i` of the nodes `before`, and projects the rows."""
    nodes = [*before, N("Gather", ["table", "i"], ["e"]), *PROJECT]
    return built(nodes, inputs or [port("ids", ["b", "s"], T.INT64)], [port("y", shape)], **constants)


def shaped(*before, inputs, outputs=("r",), shape=(None, None), **constants) -> onnx.ModelProto:
    """Return a model with a projection of the input e [4, 16] beside other nodes."""
    ports = [port("e", [4, 16]), *inputs]
    made = [port(name, shape) for name in outputs]
    return built([*before, *PROJECT], ports, [port("y", [4, 16]), *made], **constants)


def tokens_and_cache():
    nodes = [
        N("Gather", ["table", "ids"], ["e"]), *PROJECT[:1], N("MatMul", ["p", "u"], ["q"]),
        N("Concat", ["past", "q"], ["now"], axis=1), N("Cast", ["mask"], ["mf"], to=T.FLOAT),
        N("Unsqueeze", ["mf", "last"], ["m3"]), N("Mul", ["now", "m3"], ["y"]),
    ]  # fmt: skip
    mask = port("mask", ["b", "past_len + s"], T.INT64)
    inputs = [port("ids", ["b", "s"], T.INT64), port("past", ["b", "past_len", 16]), mask]
    outputs = [port(name, ["b", "past_len + s", 16]) for name in ("y", "now")]
    return built(nodes, inputs, outputs, last=np.array([-1]))


def boxes():
    nodes = [
        N("MatMul", ["boxes", "bw"], ["b1"]), N("Identity", ["b1"], ["b2"]),
        N("NonMaxSuppression", ["b2", "scores", "count", "iou", "score"], ["picked"]),
        N("NonZero", ["scores"], ["nz0"]), N("Transpose", ["nz0"], ["nz"], perm=[1, 0]),
    ]  # fmt: skip
    inputs = [port("boxes", [1, "k", 4]), port("scores", [1, 2, "k"]), port("count", [1], T.INT64)]
    outputs = [port("picked", ["d", 3], T.INT64), port("nz", ["m", 3], T.INT64)]
    bw = np.random.default_rng(1).normal(size=(4, 4)).astype("f")
    return built(nodes, inputs, outputs, bw=bw, iou=np.float32(0.5), score=np.float32(0.1))


def counts_and_sizes():
    nodes = [
        N("TopK", ["e", "k"], ["top", "at"], axis=1), N("Reshape", ["e", "size"], ["r0"]),
        N("Identity", ["r0"], ["r1"]), N("Range", ["nil", "limit", "one"], ["range"]), *PROJECT,
    ]  # fmt: skip
    inputs = [port("e", [4, 16]), port("k", [1], T.INT64), port("size", [2], T.INT64), port("limit", [], T.INT64)]
    outputs = [
        port("top", [4, "k"]), port("at", [4, "k"], T.INT64), port("r1", ["a", "b"]), port("range", ["l"], T.INT64),
        port("y", [4, 16]),
    ]  # fmt: skip
    return built(nodes, inputs, outputs)


def positions_of_a_length():
    """Return a model that adds rows of a table for 0 … limit − 1 to an input of `limit` rows."""
    nodes = [
        N("Range", ["nil", "limit", "one"], ["at"]), N("Gather", ["places", "at"], ["rows"]),
        N("Add", ["x", "rows"], ["e"]), *PROJECT,
    ]  # fmt: skip
    places = np.random.default_rng(2).normal(size=(200, 16)).astype("f")
    return built(nodes, [port("x", [24, 16]), port("limit", [], T.INT64)], [port("y", [24, 16])], places=places)


def lengths_of_sequences():
    r = np.random.default_rng(3)
    read = N("GRU", ["x", "gw", "gr", "", "lengths"], ["all", "h"], hidden_size=16)
    nodes = [read, N("Squeeze", ["h", "first"], ["e"])]
    inputs = [port("x", [7, "b", 3]), port("lengths", ["b"], T.INT32)]
    gates = {"gw": r.normal(size=(1, 48, 3)).astype("f"), "gr": r.normal(size=(1, 48, 16)).astype("f")}
    return built([*nodes, *PROJECT], inputs, [port("y", ["b", 16])], **gates)


def index_in_a_branch():
    def branch(name, table):
        return helper.make_graph([N("Gather", [table, "i"], [name])], name, [], [port(name, ["s", 16])])

    nodes = [
        N("Sub", ["ids", "base"], ["i"]),
        N("If", ["c"], ["e"], then_branch=branch("yes", "table"), else_branch=branch("no", "other")), *PROJECT,
    ]  # fmt: skip
    other = np.random.default_rng(4).normal(size=(6, 16)).astype("f")
    inputs = [port("ids", ["s"], T.INT64), port("c", [], T.BOOL)]
    return built(nodes, inputs, [port("y", ["s", 16])], base=np.int64(500), other=other)


def factors():
    """Return a model that reshapes 64 elements to [a · b]: no pair a, b is drawn that fits."""
    nodes = [N("Mul", ["a", "b"], ["target"]), N("Reshape", ["e", "target"], ["r"])]
    return shaped(*nodes, inputs=[port("a", [1], T.INT64), port("b", [1], T.INT64)], shape=[None])


def ids(*before, **more):
    return partial(embedded, *before, **more)


E = np.random.default_rng(5).normal(size=(4, 16)).astype("f")
EIGHT = {"e": E, "a": np.array([8]), "b": np.array([8])}
SHIFTED = ids(N("Sub", ["ids", "base"], ["i"]), base=np.int64(1000))
FLOATS = [port("ids", ["b", "s"])]
HW = [port("h", [], T.INT64), port("v", [], T.INT64)]
TARGET = [
    N("Unsqueeze", ["h", "first"], ["h1"]), N("Unsqueeze", ["v", "first"], ["v1"]),
    N("Concat", ["h1", "v1", "two"], ["target"], axis=0), N("Reshape", ["e", "target"], ["r"]),
]  # fmt: skip

CASES = {
    "a": Case(tokens_and_cache),
    "b": Case(boxes),
    "c": Case(counts_and_sizes),
    "d": Case(SHIFTED),
    "given in place of drawn": Case(factors, inputs=EIGHT),
    "neither drawn nor given": Case(factors, 1, r"for 'a', 'b' on which the model runs.*--inputs DATA\.npz"),
    "another name": Case(SHIFTED, 1, "no input 'id'; it has ids", {"id": np.full((2, 3), 1001)}),
    "another type": Case(SHIFTED, 1, "is int32, the model takes int64", {"ids": np.full((2, 3), 1001, np.int32)}),
    "another rank": Case(SHIFTED, 1, r"the shape \[3\], the model takes 2 dimensions", {"ids": np.full(3, 1001)}),
    "out of the table": Case(SHIFTED, 1, "does not run on the inputs data.npz.*out of", {"ids": np.full((2, 3), 7)}),
    "sizes that contradict": Case(
        tokens_and_cache, 1, r"axis 1 of input 'mask' has size 6, it must be 7 ",
        {"ids": np.zeros((1, 3), int), "past": np.zeros((1, 4, 16), "f"), "mask": np.ones((1, 6), int)},
    ),
    "given with an empty cache": Case(
        tokens_and_cache,
        inputs={"ids": np.zeros((1, 3), int), "past": np.zeros((1, 0, 16), "f"), "mask": np.ones((1, 3), int)},
    ),
    "fields with offsets": Case(ids(N("Add", ["ids", "o"], ["i"]), shape=("b", 2, 16), o=np.array([0, 6]),
                                    inputs=[port("ids", ["b", 2], T.INT64)])),
    "clipped": Case(ids(N("Clip", ["ids", "two", "nine"], ["i"]), two=np.int64(2), nine=np.int64(9))),
    "negated": Case(ids(N("Neg", ["ids"], ["n"]), N("Add", ["n", "nine"], ["i"]), nine=np.int64(1009))),
    "floats as an index": Case(ids(N("Cast", ["ids"], ["c"], to=T.INT64), N("Sub", ["c", "base"], ["i"]),
                                   base=np.int64(1000), inputs=FLOATS)),
    "a constant node": Case(ids(N("Constant", [], ["base"], value_int=300), N("Sub", ["ids", "base"], ["i"]))),
    "an index in a branch": Case(index_in_a_branch),
    "two scalars and a constant": Case(partial(shaped, *TARGET, inputs=HW, shape=[None, None, 2], two=np.array([2]))),
    "the end of a slice": Case(partial(shaped, N("Slice", ["e", "first", "end"], ["r"]),
                                       inputs=[port("end", [1], T.INT64)])),
    "a padding": Case(partial(shaped, N("Pad", ["e", "pads"], ["r"]), inputs=[port("pads", [4], T.INT64)])),
    "an expansion and repeats": Case(partial(
        shaped, N("Expand", ["e", "more"], ["x"]), N("Tile", ["x", "times"], ["r"]), shape=[None] * 3,
        inputs=[port("more", [3], T.INT64), port("times", [3], T.INT64)],
    )),
    "an axis": Case(partial(shaped, N("ReduceSum", ["e", "axis"], ["r"]), inputs=[port("axis", [1], T.INT64)])),
    "lengths": Case(lengths_of_sequences),
    "a size that must agree": Case(positions_of_a_length),
}  # fmt: skip
