"""The blocks of benchmarks.idioms: every form gives what the block gives, and is the form that its name says."""

import numpy as np
import pytest

from benchmarks import idioms
from benchmarks.exporter_blocks import BLOCKS, model
from rlflow.graph.onnx_runtime import random_inputs, run, session

VIT, BERT, GPT2, LLAMA = BLOCKS
FORMS = {  # form → operators of ViT that are no more, and that are new
    "no mask that masks nothing": ({"Where": 1}, {}),
    "no guard": ({"IsNaN": 1, "Where": 2}, {}),  # the choice between stored numbers is folded
    "keys transposed where they are": ({"Reshape": 2, "Transpose": 1}, {}),
    "one scale, in the product": ({"Mul": 2, "MatMul": 1}, {"FusedMatMul": 1}),
    "one product for query, key and value": ({"MatMul": 2, "Add": 2}, {"Split": 1}),
    "BiasGelu": ({"Erf": 1, "Div": 1}, {"BiasGelu": 1}),
    "Sum before the normalisation": ({}, {"Sum": 1}),
}


def counts(graph) -> dict[str, int]:
    ops = [node.op_type for node in graph.node if node.op_type != "Constant"]
    return {op: ops.count(op) for op in ops}


def output(candidate) -> np.ndarray:
    return run(session(candidate, 1), random_inputs(candidate, 0))[0]


@pytest.fixture(scope="module")
def vit():
    made = model(BLOCKS[VIT])
    return made, output(made)


@pytest.mark.parametrize("form", idioms.RULED)
def test_rules_bring_a_block_to_the_form_and_it_gives_the_same(vit, form):
    original, wanted = vit
    candidate, rewrites = idioms.rewritten(original, [form])
    before, after = counts(original.graph), counts(candidate.graph)
    gone, new = FORMS[form]
    assert rewrites > 0
    assert {op: before[op] - after.get(op, 0) for op in gone} == gone
    assert {op: after[op] - before.get(op, 0) for op in new} == new
    np.testing.assert_allclose(output(candidate), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("block, form", [(VIT, "MultiHeadAttention, by hand"), (LLAMA, "RotaryEmbedding, by hand")])
def test_a_form_by_hand_gives_the_same(block, form):
    candidate = idioms.by_hand(block, form)
    assert form.partition(",")[0] in counts(candidate.graph)
    np.testing.assert_allclose(output(candidate), output(model(BLOCKS[block])), rtol=0, atol=1e-5)


@pytest.mark.parametrize("block", [BERT, GPT2])
def test_a_block_whose_mask_masks_something_has_no_form_without_it(block):
    assert all(idioms.by_hand(block, form) is None for form in idioms.BY_HAND)
    assert idioms.rewritten(model(BLOCKS[block]), ["no mask that masks nothing"])[1] == 0


def test_the_guard_of_a_mask_of_infinities_stays():
    assert idioms.rewritten(model(BLOCKS[LLAMA]), ["no guard"])[1] == 0


def test_a_figure_that_misses_its_bar_is_told():
    right = {"rewrites": 1, "ratio": 0.9, "interval": [0.8, 0.95], "error": 1e-7}
    wrong = right | {"interval": [0.9, 1.1], "error": 1e-2}
    made = {"a": {"no guard": right, idioms.TOGETHER: right}, "b": {"no guard": wrong, idioms.TOGETHER: wrong}}
    assert [bar["holds"] for bar in idioms.bars_of(made)] == [True, True, False, False]
    assert idioms.cell({"rewrites": 0}) == "–"
