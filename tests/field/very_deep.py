"""Very deep and very wide graphs: tools recurse once for each node, or take time quadratic in the size of the graph.

`make test` runs small models of the same shapes; the sizes of the complaints run at night.
"""

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from benchmarks import shapes
from tests.field import Case
from tests.suite import at_night

ENDS = r"No gain|Estimated|Measured"


def model(nodes: list, last: str | list[str], weights: dict[str, object], opset: int = 17) -> onnx.ModelProto:
    """Return a model that reads x, float32 [8, 8]."""
    lasts = [last] if isinstance(last, str) else last
    names = ["y"] if isinstance(last, str) else [f"y{k}" for k in range(len(lasts))]
    nodes = nodes + [h.make_node("Identity", [name], [y]) for name, y in zip(lasts, names, strict=True)]
    ends = [h.make_tensor_value_info(name, T.FLOAT, [8, 8]) for name in ("x", *names)]
    given = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = h.make_graph(nodes, "g", ends[:1], ends[1:], given)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)


def chain(steps: list[tuple], times: int, weights: dict[str, object]) -> onnx.ModelProto:
    """Return a chain that repeats operators. A step is (operator, further inputs, attributes)."""
    nodes, last = [], "x"
    for op, more, attributes in steps * times:
        nodes.append(h.make_node(op, [last, *more], [f"v{len(nodes)}"], **attributes))
        last = nodes[-1].output[0]
    return model(nodes, last, weights)


TURN = ("Transpose", [], {"perm": [1, 0]})
NUMBERS = {"bit": np.float32(0.001), "one": np.float32(1), "w": np.eye(8, dtype=np.float32)}


def long_chain() -> onnx.ModelProto:
    steps = [("Add", ["bit"], {}), ("Mul", ["one"], {}), TURN, ("Relu", [], {}), TURN]
    return chain(steps, at_night(2000, 40), NUMBERS)


def blocks_into_one_concat(count: int) -> onnx.ModelProto:
    nodes, weights = [], {}
    for k in range(count):
        weights[f"k{k}"] = np.float32(k % 7 / 7)
        nodes += [h.make_node("Mul", ["x", f"k{k}"], [f"m{k}"]), h.make_node("Relu", [f"m{k}"], [f"r{k}"])]
    nodes.append(h.make_node("Concat", [f"r{k}" for k in range(count)], ["all"], axis=0))
    nodes += [h.make_node("ReduceMean", ["all"], ["mean"], axes=[0]), h.make_node("Add", ["x", "mean"], ["s"])]
    return model(nodes, "s", weights)


def nested_ifs(depth: int) -> onnx.ModelProto:
    nodes = [
        h.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), h.make_node("Cast", ["sum"], ["cond"], to=T.BOOL),
        h.make_node("MatMul", ["x", "w"], ["p"]), h.make_node("MatMul", ["p", "w"], ["deep"]),
    ]  # fmt: skip
    inner = h.make_node("Neg", ["deep"], ["d0"])
    for k in range(depth):
        value = lambda name: h.make_tensor_value_info(name, T.FLOAT, [8, 8])  # noqa: E731
        other = h.make_graph([h.make_node("Identity", ["x"], [f"e{k}"])], "e", [], [value(f"e{k}")])
        branch = h.make_graph([inner], "t", [], [value(f"d{k}")])
        inner = h.make_node("If", ["cond"], [f"d{k + 1}"], then_branch=branch, else_branch=other)
    return model([*nodes, inner], f"d{depth}", {"w": NUMBERS["w"]})


def products_of_one_tensor(count: int) -> onnx.ModelProto:
    """Return many products with one left side; each of the count² / 2 pairs can be merged."""
    nodes = [h.make_node("MatMul", ["x", "w"], [f"p{k}"]) for k in range(count)]
    return model([*nodes, h.make_node("Sum", [f"p{k}" for k in range(count)], ["s"])], "s", {"w": NUMBERS["w"]})


def many_outputs(count: int) -> onnx.ModelProto:
    nodes = [h.make_node("Mul", ["x", "one"], [f"m{k}"]) for k in range(count)]
    return model(nodes, [f"m{k}" for k in range(count)], NUMBERS)


def concats_of_concats(count: int) -> onnx.ModelProto:
    nodes = [h.make_node("Concat", ["x", "x"], [f"c{k}"], axis=0) for k in range(count)]
    nodes.append(h.make_node("Concat", [f"c{k}" for k in range(count)], ["all"], axis=0))
    nodes += [h.make_node("ReduceMean", ["all"], ["mean"], axes=[0]), h.make_node("Add", ["x", "mean"], ["s"])]
    return model(nodes, "s", {})


def split_into_many(count: int) -> onnx.ModelProto:
    """Return a Split with many outputs; a Relu follows each output, and a Concat joins the results."""
    weights = {"tall": np.ones((8 * count, 8), np.float32), "parts": np.full(count, 8, np.int64)}
    nodes = [
        h.make_node("ReduceMean", ["x"], ["mean0"], axes=[0]), h.make_node("Mul", ["tall", "mean0"], ["big"]),
        h.make_node("Split", ["big", "parts"], [f"s{k}" for k in range(count)], axis=0),
        *(h.make_node("Relu", [f"s{k}"], [f"r{k}"]) for k in range(count)),
        h.make_node("Concat", [f"r{k}" for k in range(count)], ["all"], axis=0),
        h.make_node("ReduceMean", ["all"], ["mean"], axes=[0]), h.make_node("Add", ["x", "mean"], ["s"]),
    ]  # fmt: skip
    return model(nodes, "s", weights)


def branch_of_many_nodes(count: int) -> onnx.ModelProto:
    inside, last = [], "x"
    for k in range(count):
        inside.append(h.make_node("Mul", [last, "one"], [f"i{k}"]))
        last = inside[-1].output[0]
    value = h.make_tensor_value_info(last, T.FLOAT, [8, 8])
    other = h.make_tensor_value_info("n", T.FLOAT, [8, 8])
    nodes = [
        h.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), h.make_node("Cast", ["sum"], ["cond"], to=T.BOOL),
        h.make_node(
            "If", ["cond"], ["s"], then_branch=h.make_graph(inside, "t", [], [value]),
            else_branch=h.make_graph([h.make_node("Neg", ["x"], ["n"])], "e", [], [other]),
        ),
    ]  # fmt: skip
    return model(nodes, "s", NUMBERS)


CASES = {
    "a": Case(long_chain, says=ENDS),
    "b": Case(lambda: blocks_into_one_concat(at_night(1500, 60)), says=ENDS),
    "c": Case(lambda: nested_ifs(12), says=ENDS),
    "products of one tensor": Case(lambda: products_of_one_tensor(at_night(600, 40)), says=ENDS),
    "chain without rewrites": Case(lambda: chain([("Exp", [], {}), ("Neg", [], {})], 5000, {}), says="No gain"),
    "chain of transposes": Case(lambda: chain([TURN], 4000, {}), says=ENDS),
    "chain of one constant": Case(lambda: chain([("Mul", ["one"], {})], 6000, NUMBERS), says=ENDS),
    "fan into one sum": Case(lambda: shapes.MODELS["fan-sum"](3000), says=ENDS),
    "grid": Case(lambda: shapes.MODELS["grid"](10000), says=ENDS),
    "tower": Case(lambda: shapes.MODELS["tower"](8000), says=ENDS),
    "many outputs": Case(lambda: many_outputs(1500), says=ENDS),
    "concats of concats": Case(lambda: concats_of_concats(1500), says=ENDS),
    "split into many": Case(lambda: split_into_many(1000), says=ENDS),
    # protobuf reads 100 nested messages, and each If takes three of them
    "ifs nested 25 deep": Case(lambda: nested_ifs(25), says=ENDS),
    "branch of many nodes": Case(lambda: branch_of_many_nodes(2000), says=ENDS),
}
