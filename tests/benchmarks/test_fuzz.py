"""Test random rewrites of random graphs, the graphs themselves, and that planted wrong rules are found."""

from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.random_models.additions import DRAWS, with_additions
from benchmarks.random_models.random_model import ON_IMAGES, PLAIN, random_model, random_values
from benchmarks.random_models.sketch import BOUND, LARGEST, OPSETS, Sketch
from benchmarks.random_models.with_bodies import in_bodies
from rlflow.graph.onnx_runtime import run, session
from rlflow.rules.language import RuleSet, families, load_rules, parse
from rlflow.rules.locations import PREPARING_FAMILY
from tests.nightly.fuzzing import Original, fuzz, random_walk
from tests.suite import at_night, slow

# (graphs, graphs in one parametrised test); tests.nightly.fuzz draws many more
GRAPHS, GROUP = at_night((50, 50), (6, 6))
SKETCHES = 100  # largest number of sketches of each motif
RULES = load_rules(families())


@pytest.mark.parametrize("first", range(0, GRAPHS, GROUP))
def test_rewrites_keep_random_graphs_valid_and_equal(first):
    fired, compared = Counter(), Counter()
    for seed in range(first, first + GROUP):
        result = fuzz(seed, RULES)
        assert result.failure is None, f"\n{result.failure}"
        fired.update(result.rules)
        compared.update(result.compared)
    assert fired.total() > 10 * GROUP
    assert compared["optimised"] > compared.total() / 2, "too few graphs are compared as ONNX Runtime optimises them"
    assert len(fired) > at_night(0.3, 0.06) * len(RULES), "the graphs hold too little that rules are about"


# -- the graphs ------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_bytes_and_another_seed_others():
    first, again = ([random_model(seed).SerializeToString(deterministic=True) for seed in range(20)] for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first)


def test_random_graphs_are_small_and_have_bounded_values():
    for seed in range(60):
        model = random_model(seed)
        graph = model.graph
        assert 3 <= sum(node.op_type != "Constant" for node in graph.node) <= 25
        given = {value.name for value in graph.output}
        made = [node for node in graph.node if node.op_type != "Constant"]
        names = [name for node in made for name in node.output if name and name not in given]
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        for array in run(session(model, 1, optimise=False), random_values(model, seed)):
            assert array.size <= LARGEST
            assert np.abs(array).max(initial=0) <= BOUND  # excludes NaN and infinity


def test_random_graphs_moved_into_bodies_keep_their_outputs_and_can_be_rewritten():
    kinds, rewritten = Counter(), 0
    for seed in range(30):
        model = random_model(seed)
        moved = in_bodies(model, seed)
        kinds.update(node.op_type for node in moved.graph.node if node.op_type in ("If", "Loop", "Scan"))
        feeds = random_values(moved, seed)
        before = run(session(model, 1, optimise=False), {value.name: feeds[value.name] for value in model.graph.input})
        for a, b in zip(before, run(session(moved, 1, optimise=False), feeds), strict=True):
            # float16 is inexact, because ONNX Runtime joins casts within one graph
            np.testing.assert_allclose(a, b, rtol=1e-2, atol=2e-2)
        first, *_ = random_walk(moved, RULES, np.random.default_rng(seed), 0).states
        rewritten += any(first.graph.nodes[match.nodes[0]].body for match in first.matches)
    assert min(kinds.values()) >= 5 and len(kinds) == 3 and rewritten > 10


def test_draws_of_random_graphs_are_reproducible_and_a_merged_draw_is_noticed():
    seen = 0
    for seed in range(12):
        model = with_additions(random_model(seed), seed)
        draws = [node for node in model.graph.node if node.op_type in DRAWS]
        if draws:
            first, again = (run(session(model, 1, False), random_values(model, seed)) for _ in range(2))
            np.testing.assert_equal(first, again)
            draws[1].attribute[0].f = draws[0].attribute[0].f  # the result of merging the two draws
            merged = run(session(model, 1, False), random_values(model, seed))
            assert not all(np.array_equal(a, b) for a, b in zip(first, merged, strict=True))
            seen += 1
    assert seen > 3


def test_random_graphs_vary():
    """Random graphs vary in opsets, data types, ranks, sizes 0 and 1, constants, and the use of results.

    Constants are nodes or weights. Results are shared, inner or unused.
    """
    seen = Counter()
    for seed in range(400):
        model = random_model(seed)
        graph = model.graph
        seen[model.opset_import[0].version] += 1
        for value in graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            seen[helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name] += 1
            seen.update({f"rank {len(shape)}": 1, "empty": prod(shape) == 0, "size 1": 1 in shape})
        readers = Counter(name for node in graph.node for name in node.input)
        outputs = {value.name for value in graph.output}
        made = [name for node in graph.node if node.op_type != "Constant" for name in node.output]
        seen["constant nodes"] += any(node.op_type == "Constant" for node in graph.node)
        seen["weights"] += len(graph.initializer) > 0
        seen["several outputs"] += len(outputs) > 1
        seen["read twice"] += any(readers[name] > 1 for name in made)
        seen["inner outputs"] += any(readers[name] for name in outputs)
        seen["unused results"] += any(not readers[name] and name not in outputs for name in made)
    kinds = [
        *OPSETS, "float16", "float32", "float64", "int32", "int64", *(f"rank {n}" for n in range(6)), "empty", "size 1",
        "constant nodes", "weights", "several outputs", "read twice", "inner outputs", "unused results",
    ]  # fmt: skip
    assert not [kind for kind in kinds if not seen[kind]]


def drawn(motif, seed: int) -> onnx.ModelProto | None:
    """Return a model of what the motif draws on an empty sketch, or None if the motif draws nothing."""
    sketch = Sketch(seed)
    if sketch.float == np.float64 and motif in ON_IMAGES:
        return None
    sketch.attempt(motif)
    return sketch.model() if sketch.nodes else None


@pytest.mark.nightly
def test_every_rule_has_a_motif_that_the_rule_matches():
    """Some motif gives a match for every rule, directly or after two rewrites.

    Rules of shape arithmetic are tested with symbols in tests/benchmarks/test_fuzz_symbolic.py.
    """
    left = {rule.name for rule in RULES if rule.family != PREPARING_FAMILY}
    for seed in range(SKETCHES):
        for motif in PLAIN | ON_IMAGES:
            model = drawn(motif, seed) if left else None
            if model is not None:
                for state in random_walk(model, RULES, np.random.default_rng(seed), 2).states:
                    left -= {RULES[xfer_id].name for xfer_id in np.flatnonzero(state.counts)}
    assert not left


# -- mistakes on purpose ---------------------------------------------------------------------------

WRONG = [  # (equation, kind of the fault, operators of the smallest model with the fault)
    ("Mul(Mul(x, c), d) => Mul(x, c)\n  if constant(c, d)", "values", ["Mul", "Mul"]),  # a factor is dropped
    ("Transpose(x, perm=p) => x", "values", ["Transpose"]),  # a condition is dropped
    ("Sub(x, y) => Sub(y, x)", "values", ["Sub"]),
    ("Relu(x) => Sqrt(x)", "values", ["Relu"]),  # NaN instead of a number
    (
        "Relu(x) => Gather(x, [99] * dim(x, 0), axis=0)\n  if rank(x) > 0 and size(x) > 0",
        "raises RLFlowError",
        ["Relu"],
    ),
]


@pytest.mark.parametrize("equation, kind, operators", [*WRONG[1:2], *slow(*WRONG[:1], *WRONG[2:])], ids=str)
def test_a_wrong_rule_is_found_and_its_graph_shrunk(equation, kind, operators):
    """A wrong rule is found among correct rules; the report names seed and rule and shows a small graph."""
    wrong = parse(f"wrong: a mistake\n  {equation}", "wrong")
    rules = RuleSet((*load_rules(["layout"]), *wrong))
    # The seeds draw graphs without additions and bodies (WITH_ADDITIONS, WITH_BODIES), whose nodes could remain around
    # the fault.
    result = (fuzz(seed, rules).failure for seed in range(5, 1205, 6))
    failure = next(failure for failure in result if failure is not None and failure.fault.kind == kind)
    assert failure.rules == ["wrong"]
    assert f"seed {failure.seed}: after wrong: {kind}" in str(failure)
    assert failure.model in str(failure)
    shrunk = onnx.parser.parse_model(failure.model)
    computed = ("Constant", "Identity", "Neg")  # operators that make weights
    assert [node.op_type for node in shrunk.graph.node if node.op_type not in computed] == operators
    assert len(shrunk.graph.output) == 1
    assert fuzz(failure.seed, rules).failure == failure


def walked():
    """Return (a random model as `Original`, a walk of several rewrites over it)."""
    original = Original(random_model(0), 0)
    walk = random_walk(original.model, RULES, np.random.default_rng(0), 5)
    assert original.fault(walk.states[-1], last=True) is None
    return original, walk


def test_wrong_incremental_costs_and_locations_are_found():
    original, walk = walked()
    state = replace(walk.states[-1], graph_cost=replace(walk.states[-1].graph_cost, total=walk.states[0].cost))
    assert original.fault(state, last=True).kind == "cost"
    state = walk.states[-1]
    vars(state)["counts"] = state.counts + 1
    assert original.fault(state, last=True).kind == "locations"


def test_a_changed_interface_is_found():
    original, walk = walked()
    changed = onnx.ModelProto()
    changed.CopyFrom(original.model)
    changed.graph.output[0].doc_string = "something new"
    original.model = changed
    assert original.fault(walk.states[-1], last=False).kind == "interface"
