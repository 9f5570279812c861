"""The table of attributes that became inputs says what ONNX's own schemas say."""

import onnx
import pytest
from onnx import defs

from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.graph.opsets import COUNTS_PARTS, MOVED


@pytest.mark.parametrize("op", MOVED)
def test_attributes_became_inputs_where_the_table_says(op):
    moved = MOVED[op]
    before, after = defs.get_schema(op, moved.version - 1, ""), defs.get_schema(op, moved.version, "")
    assert after.since_version == moved.version
    for name, slot, _ in moved.attributes:
        assert name in before.attributes and name not in after.attributes
        assert after.inputs[slot].name in (name, f"constant_{name}")


@pytest.mark.parametrize("opset", [MOVED["Split"].version, COUNTS_PARTS])
def test_a_split_of_equal_parts_says_their_sizes_inside_and_is_written_as_it_was(opset):
    counted = "<axis = 1, num_outputs = 2>" if opset >= COUNTS_PARTS else "<axis = 1>"
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2, 6] x) => (float[2, 3] y, float[2, 3] z)'
    model = onnx.parser.parse_model(f"{text} {{ y, z = Split {counted} (x) }}")
    graph = load_graph(model)
    (node,) = graph.nodes.values()
    assert graph.constants[node.inputs[1]].load().tolist() == [3, 3]
    assert list(to_model(graph).graph.node) == list(model.graph.node)


def test_a_split_of_parts_that_are_not_equal_says_how_many_there_are():
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[5] x) => (float[3] y, float[2] z)'
    (node,) = load_graph(onnx.parser.parse_model(f"{text} {{ y, z = Split <num_outputs = 2> (x) }}")).nodes.values()
    assert len(node.inputs) == 1
