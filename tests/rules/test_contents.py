"""Test what rules read from the elements of weights: rows of zeros, and whether all elements are finite."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import apply
from rlflow.rules.contents import zero_positions
from rlflow.rules.language import load_rules
from rlflow.rules.locations import MatchTable, explain
from rlflow.rules.rule import RuleSet
from tests.rules.instances import assert_same

RULES = load_rules()
PRUNED = 0.3  # The share of zero rows in a weight.


def model_of(nodes: list, weights: dict, inputs: dict, output: str = "y") -> onnx.ModelProto:
    """Return a model of float64 tensors whose output has the shape of its first input."""
    given = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, shape) for n, shape in inputs.items()]
    result = helper.make_tensor_value_info(output, TensorProto.DOUBLE, next(iter(inputs.values())))
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "pruned", given, [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def pruned(random, shape: tuple, axis: int) -> np.ndarray:
    """Return a random weight with the share PRUNED of zeros among its rows along an axis."""
    weight = random.standard_normal(shape)
    np.moveaxis(weight, axis, 0)[random.permutation(shape[axis])[: round(PRUNED * shape[axis])]] = 0
    return weight


def rewritten(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """Apply the named rules, in this order, wherever they match."""
    graph = load_graph(model)
    for name in names:
        rules = RuleSet((RULES[RULES.index(name)],))
        while (table := MatchTable(rules, graph)).counts[0]:
            graph = apply(graph, rules[0], table.location(0, 0))
    return to_model(graph)


def products(model: onnx.ModelProto) -> int:
    """Return the number of elements of all weights that a convolution or product multiplies."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    return sum(sizes[node.input[1]] for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul"))


def test_residual_blocks_lose_their_zero_filters_behind_folded_normalisations():
    """The convolutions of a block lose the zero filters and channels between them, and keep the channels of the sum."""
    random, nodes, weights, channels = np.random.default_rng(0), [], {}, 20
    x = "x"
    for block in range(2):
        for k, source in enumerate((x, f"r{block}")):
            name = f"{block}{k}"
            weights[f"w{name}"] = pruned(random, (channels, channels, 3, 3), 0)
            statistics = [f"{part}{name}" for part in "sbmv"]
            weights |= {part: random.uniform(0.5, 1.5, channels) for part in statistics}
            nodes.append(helper.make_node("Conv", [source, f"w{name}"], [f"c{name}"], pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("BatchNormalization", [f"c{name}", *statistics], [f"n{name}"]))
            if k == 0:
                nodes.append(helper.make_node("Relu", [f"n{name}"], [f"r{block}"]))
        nodes.append(helper.make_node("Add", [f"n{block}1", x], [f"y{block}"]))
        x = f"y{block}"
    model = model_of(nodes, weights, {"x": ("N", channels, 5, 5)}, x)
    after = rewritten(model, "conv-batchnorm", "zero-filters-with-bias")
    assert_same(model, after)
    assert products(after) == 0.8 * products(model)  # 14 filters remain, and two channels of ones.


def test_a_multilayer_perceptron_loses_its_zero_columns_exactly():
    random, nodes, weights = np.random.default_rng(0), [], {}
    for layer in range(4):
        weights |= {f"w{layer}": pruned(random, (10, 10), 0) if layer % 2 == 0 else random.standard_normal((10, 10))}
        weights |= {f"b{layer}": random.standard_normal(10)}
        names = [f"w{layer}", f"b{layer}"]
        source, result = "x" if layer == 0 else f"r{layer - 1}", "y" if layer == 3 else f"g{layer}"
        nodes.append(helper.make_node("Gemm", [source, *names], [result], transB=1))
        nodes.append(helper.make_node("Relu", [result], [f"r{layer}"]))
    model = model_of(nodes[:-1], weights, {"x": ("N", 10)})
    after = rewritten(model, "zero-columns-of-gemm")
    assert_same(model, after)
    assert products(after) == round(0.7 * products(model))


def test_weights_of_one_shape_with_different_zeros_have_separate_plans():
    """Plans are shared by signature. The signature of these rules must contain the zeros, because the rules read
    them."""
    random = np.random.default_rng(0)
    weights = {name: pruned(random, (10, 10), 0) for name in "wv"}
    weights |= {"u": random.standard_normal((10, 10)), "b": random.standard_normal(10)}
    nodes = []
    for name in "wv":
        nodes.append(helper.make_node("Gemm", ["x", name, "b"], [f"g{name}"], transB=1))
        nodes.append(helper.make_node("Relu", [f"g{name}"], [f"r{name}"]))
        nodes.append(helper.make_node("Gemm", [f"r{name}", "u", "b"], [f"o{name}"]))
    model = model_of([*nodes, helper.make_node("Add", ["ow", "ov"], ["y"])], weights, {"x": (3, 10)})
    assert_same(model, rewritten(model, "zero-columns-of-gemm"))


def test_each_mask_is_checked_for_finite_values():
    """Two masks have one shape, and only the first is finite: the guard of the second one stays."""
    nodes = []
    for k in "01":
        nodes += [
            helper.make_node("MatMul", ["x", "x"], [f"m{k}"]),
            helper.make_node("Add", [f"m{k}", f"mask{k}"], [f"s{k}"]),
            helper.make_node("Softmax", [f"s{k}"], [f"p{k}"]), helper.make_node("IsNaN", [f"p{k}"], [f"n{k}"]),
            helper.make_node("Where", [f"n{k}", "zero", f"p{k}"], [f"w{k}"]),
        ]  # fmt: skip
    masks = {"mask0": np.zeros((1, 1, 3, 3)), "mask1": np.full((1, 1, 3, 3), -np.inf), "zero": np.float64(0)}
    nodes.append(helper.make_node("Add", ["w0", "w1"], ["y"]))
    graph = load_graph(model_of(nodes, masks, {"x": (1, 1, 3, 3)}))
    name = "guard-of-stored-mask"
    matches, refusals = explain(graph, RULES, name)
    assert len(matches) == 1 and [r.reason for r in refusals] == ["the mask is not of finite numbers"]
    assert MatchTable(RULES, graph).counts[RULES.index(name)] == 1


def test_rows_of_zeros_are_found_in_weights_and_in_values_computed_from_weights():
    weight = np.array([[0.0, 1, 0, 0], [0, 0, 0, 0], [-0.0, np.nan, 0, 2]])
    nodes = [helper.make_node("Mul", ["w", "k"], ["v"]), helper.make_node("MatMul", ["v", "x"], ["y"])]
    graph = load_graph(model_of(nodes, {"w": weight, "k": np.array([[2.0], [2], [0]])}, {"x": (4, 4)}))
    (product,) = [node for node in graph.nodes.values() if node.op == "MatMul"]
    (scaled,) = [node for node in graph.nodes.values() if node.op == "Mul"]
    assert zero_positions(graph, scaled.inputs[0], 0) == (1,)
    assert zero_positions(graph, scaled.inputs[0], 1) == (0, 2)
    assert zero_positions(graph, product.inputs[0], 0) == (1,)  # 0 · NaN is not 0
    assert zero_positions(graph, product.inputs[1], 0) is None
