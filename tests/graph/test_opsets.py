"""The table of attributes that became inputs says what ONNX's own schemas say."""

import pytest
from onnx import defs

from rlflow.graph.opsets import MOVED


@pytest.mark.parametrize("op", MOVED)
def test_attributes_became_inputs_where_the_table_says(op):
    moved = MOVED[op]
    before, after = defs.get_schema(op, moved.version - 1, ""), defs.get_schema(op, moved.version, "")
    assert after.since_version == moved.version
    for name, slot, _ in moved.attributes:
        assert name in before.attributes and name not in after.attributes
        assert after.inputs[slot].name in (name, f"constant_{name}")
