"""Test random rewrites of random graphs with symbolic sizes, and that a rule that relies on typical sizes is found."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.random_models.open_model import TYPICAL, random_open_model
from benchmarks.random_models.random_model import random_values
from rlflow.graph import dims
from rlflow.graph.onnx_runtime import run, session
from rlflow.rules.language import families, load_rules
from tests.nightly.fuzzing import fuzz
from tests.suite import at_night

# (graphs, graphs in one parametrised test); tests.nightly.fuzz draws many more
GRAPHS, GROUP = at_night((20, 20), (6, 6))
RULES = load_rules(families())


@pytest.mark.parametrize("first", range(0, GRAPHS, GROUP))
def test_rewrites_keep_symbolic_graphs_equal_at_every_size(first):
    fired, compared = Counter(), Counter()
    for seed in range(first, first + GROUP):
        result = fuzz(seed, RULES, symbolic=True)
        assert result.failure is None, f"\n{result.failure}"
        fired.update(result.rules)
        compared.update(result.compared)
    assert fired.total() > 5 * GROUP
    assert compared["optimised"] > compared.total() / 2, "too few graphs are compared as ONNX Runtime optimises them"
    of_shapes = {rule.name for rule in RULES if rule.family == "shape_arithmetic"}
    assert fired.keys() & of_shapes
    assert len(fired.keys() - of_shapes) > 20, "hardly a rule applies where sizes are symbols"


def test_symbolic_models_vary_and_run_at_sizes_other_than_the_typical_ones():
    seen = Counter()
    for seed in range(60):
        model, sizes = random_open_model(seed)
        assert model.SerializeToString() == random_open_model(seed).model.SerializeToString()
        assert sizes[0].items() <= TYPICAL.items()
        assert len(sizes) == 3
        running = session(model, 1, optimise=False)
        for each in sizes:
            for value, array in zip(model.graph.output, run(running, random_values(model, seed, each)), strict=True):
                named = [each.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
                assert [given or size for given, size in zip(named, array.shape, strict=True)] == list(array.shape)
                assert np.isfinite(array).all()
        seen[f"{len(sizes[0])} symbols"] += 1
        seen["a size of 1"] += any(1 in each.values() for each in sizes)
        seen["nothing in a cache"] += any(each.get("past") == 0 for each in sizes)
        seen.update(node.op_type for node in model.graph.node)
    wanted = ["Shape", "Gather", "Concat", "Reshape", "Expand", "Range", "ConstantOfShape", "Slice", "Where", "Equal"]
    assert not [kind for kind in ("1 symbols", "2 symbols", "3 symbols", "a size of 1", *wanted) if not seen[kind]]


def test_a_rule_that_takes_a_size_for_its_typical_value_is_found(monkeypatch):
    """Rules must not rely on properties of a batch of 1: comparisons at another size find such a rule."""
    typical = dict.fromkeys(TYPICAL, 1)
    monkeypatch.setattr(dims, "least", lambda size: dims.at(size, typical))
    monkeypatch.setattr(dims, "equal", lambda a, b: dims.at(a, typical) == dims.at(b, typical))
    results = (fuzz(seed, RULES, symbolic=True) for seed in range(60))
    failure = next(result.failure for result in results if result.failure is not None)
    assert failure.rules
