"""Test validation at sizes that the user did not name: it catches rewrites that are right at the typical size only.

It raises no false alarm.
"""

import json
from dataclasses import replace

import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_json
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.receipt import make_receipt
from rlflow.optimisation.repair import repaired
from rlflow.optimisation.validate import Comparison, Findings, numerics, validate
from rlflow.optimisation.validate.findings import checks_text, equal_sizes_text, fixed_text
from rlflow.optimisation.validate.inputs import MORE_SIZES, elsewhere, ladders
from rlflow.optimisation.validate.known_faults import known_faults
from rlflow.rules.language import RuleSet, load_rules, parse
from tests.commands import in_process

BERT = {"batch": 1, "seq": 128}
LEAST = {"batch": 1, "seq": 1}


def model(body: str, x: str = "float[batch,seq,4]", y: str = "float[batch,seq,4]") -> onnx.ModelProto:
    """Return a model x → y around the nodes of `body`, with constants and with `shape`, the shape of x."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
g ({x} x) => ({y} y) <float w = {{1.5}}, int64[1] axis = {{1}}, int64[1] first = {{0}}, int64[3] baked = {{-1, 128, 4}},
  int64[3] both = {{1, 128, 4}}, int64[2] flat = {{-1, 4}}, float length = {{128.0}}, int64[3] kept = {{0, 0, 4}},
  int64[4] blocks = {{0, -1, 32, 4}}> {{
  shape = Shape (x)
{body}
}}""")


SCALED = model("  a = Mul (x, w)\n  b = Reshape (a, flat)\n  y = Reshape (b, shape)")
MEAN = "  m = ReduceMean <axes = [1], keepdims = 1> (x)\n  y = Sub (x, m)"
RIGHT = {
    "the same": SCALED,
    "a Reshape less": model("  y = Mul (x, w)"),
    "a Reshape with 0": model("  a = Mul (x, w)\n  y = Reshape (a, kept)"),
}
WRONG = {
    "a Reshape with 128 in it": (SCALED, model("  a = Mul (x, w)\n  y = Reshape (a, baked)"), "does not run"),
    "a batch of 1 in it": (SCALED, model("  a = Squeeze (x, first)\n  b = Mul (a, w)\n  y = Unsqueeze (b, first)"),
                           "does not run"),
    "the sum over 128": (
        model(MEAN),
        model("  s = ReduceSum <keepdims = 1> (x, axis)\n  m = Div (s, length)\n  y = Sub (x, m)"),
        "relative error",
    ),
    "batch for seq": (
        model("  n = Gather (shape, axis)\n  c = Cast <to = 1> (n)\n  y = Mul (x, c)"),
        model("  n = Gather (shape, first)\n  p = Cast <to = 1> (n)\n  c = Mul (p, length)\n  y = Mul (x, c)"),
        "relative error",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_candidate_equal_at_every_size_is_found_equal_at_six_sizes(name):
    result = validate(SCALED, RIGHT[name], shapes={"seq": 128})
    assert result.ok, result
    seen = result.to_dict()["sizes"]
    assert [each["verdict"] for each in seen] == ["ok"] * (1 + MORE_SIZES) and max(e["max_error"] for e in seen) == 0
    text = equal_sizes_text(result.to_dict()["findings"])
    assert text == "equal at 6 sizes (batch x seq): 1x128, 1x1, 5x13, 1x256, 3x128, 1x2"
    assert "runs at every size that the original runs at: 6 were tried" in str(result)


@pytest.mark.parametrize("name", WRONG)
def test_a_candidate_right_only_at_the_typical_size_is_caught(name):
    original, candidate, how = WRONG[name]
    result = validate(original, candidate, shapes={"seq": 128})
    there = {tuple(each["sizes"].values()): each["verdict"] for each in result.to_dict()["sizes"]}
    assert there[1, 128] == "ok", "the fault shows at the typical size already"
    assert "FAILED" in there.values() and any(how in finding.message for finding in result.failures())
    refused = [f for f in result.failures() if "does not run at every size" in f.message]
    assert bool(refused) == (how == "does not run")


def test_the_sizes_that_a_candidate_refuses_are_named():
    result = validate(SCALED, WRONG["a batch of 1 in it"][1], shapes={"seq": 128})
    as_written, optimised = [f.message for f in result.failures() if f.kind == "structure"]
    assert optimised.endswith("that the original runs at: batch = 5, seq = 13")
    assert as_written.endswith("that the original runs at: batch = 5, seq = 13; batch = 3, seq = 128")


def test_the_original_is_not_blamed_for_sizes_at_which_it_does_not_run():
    table = ", ".join(f"{k}.0" for k in range(32))  # a table of 32 positions
    original = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,seq,1] x) => (float[batch,seq,1] y) <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
   float[32,1] positions = {{{table}}}> {{
  shape = Shape (x)
  n = Slice (shape, one, two)
  p = Slice (positions, zero, n)
  y = Add (x, p)
}}""")
    result = validate(original, original, shapes={"seq": 24})
    seen = {tuple(each["sizes"].values()): each for each in result.to_dict()["sizes"]}
    assert result.ok and seen[1, 48]["verdict"] == "not compared" and seen[1, 48]["max_error"] is None
    assert "batch = 1, seq = 48: nothing was compared: ONNX Runtime cannot run the model" in str(result)
    assert [each["verdict"] for each in seen.values()].count("ok") == 1 + MORE_SIZES
    findings = result.to_dict()["findings"]
    assert "1x48" not in equal_sizes_text(findings) and equal_sizes_text(findings).endswith("not compared")
    assert "could not be compared" in checks_text(findings)


def test_a_candidate_may_do_anything_at_sizes_that_the_original_refuses():
    """Candidates are compared only at sizes at which the original runs.

    The candidate runs at any seq, but the original at multiples of 32 only.
    """
    x = {"x": "float[batch,seq,4]"}
    original = model("  a = Reshape (x, blocks)\n  b = Mul (a, w)\n  y = Reshape (b, shape)", **x)
    result = validate(original, RIGHT["a Reshape less"], shapes={"seq": 128})
    ran = [each["sizes"]["seq"] for each in result.to_dict()["sizes"] if each["verdict"] == "ok"]
    assert result.ok and len(ran) == 1 + MORE_SIZES and all(seq % 32 == 0 for seq in ran) and len(set(ran)) >= 4


def test_drawn_sizes_satisfy_the_relations_between_symbols():
    """Sizes are drawn so that symbols fit together: the mask has its own symbol, whose size must be past + seq."""
    original = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
g (float[past] x, float[seq] z, float[total] mask) => (float[total] y) {
  now = Relu (z)
  a = Concat <axis = 0> (x, now)
  y = Mul (a, mask)
}""")
    result = validate(original, original, shapes={"past": 32, "seq": 32, "total": 64})
    ran = [each["sizes"] for each in result.to_dict()["sizes"] if each["verdict"] == "ok"]
    assert result.ok and len(ran) == 1 + MORE_SIZES and all(s["past"] + s["seq"] == s["total"] for s in ran)
    assert {"past": 0, "seq": 1, "total": 1} in ran  # as in the first call, when the cache is empty
    with pytest.raises(RLFlowError, match="ONNX Runtime cannot run the model"):
        validate(original, original, shapes={"past": 32, "seq": 32, "total": 65})


# -- sizes that the user names ----------------------------------------------------------------------


def test_all_named_sizes_are_compared():
    result = validate(SCALED, SCALED, shapes={"seq": (16, 128, 512)})
    compared = [tuple(each["sizes"].values()) for each in result.to_dict()["sizes"]]
    assert compared[:3] == [(1, 16), (1, 128), (1, 512)] and len(compared) == 3 + MORE_SIZES
    baked = validate(SCALED, WRONG["a Reshape with 128 in it"][1], shapes={"seq": (128, 16)})
    assert any(f.message.startswith("batch = 1, seq = 16: ") for f in baked.failures())


def test_a_symbol_may_become_a_number_only_if_it_is_fixed_to_that_number():
    frozen = model("  a = Mul (x, w)\n  y = Reshape (a, both)", "float[1,128,4]")
    result = validate(SCALED, frozen, shapes={"batch": 1, "seq": 128}, fix=True)
    assert result.ok, result
    findings = result.to_dict()["findings"]
    assert fixed_text(findings) == "accepts only batch = 1, seq = 128"
    assert [tuple(each["sizes"].values()) for each in result.to_dict()["sizes"]] == [(1, 128)]
    assert equal_sizes_text(findings) == "equal at 1 size (batch x seq): 1x128"
    for shapes, fix in (({"batch": 1, "seq": 128}, False), ({"seq": 128}, True), ({"batch": 1, "seq": 64}, True)):
        kinds = {finding.kind for finding in validate(SCALED, frozen, shapes=shapes, fix=fix).failures()}
        assert "interface" in kinds


def test_names_of_dimensions_are_kept_on_inputs_and_outputs():
    for x, y in (("float[b,seq,4]", "float[batch,seq,4]"), ("float[batch,seq,4]", "float[batch,s,4]")):
        (failure,) = validate(SCALED, model("  y = Mul (x, w)", x, y), shapes=BERT).failures()
        assert failure.kind == "interface" and "was FLOAT[batch, seq, 4]" in failure.message


# -- which sizes -----------------------------------------------------------------------------------


def tried(typical: dict, runs=lambda sizes: True, least: dict | None = None, seconds: float = 60.0) -> list:
    def run(chosen: dict) -> str:
        if not runs(chosen):
            raise RLFlowError("it does not run")
        return "ran"

    symbols = least or dict.fromkeys(typical, 1)
    return list(elsewhere(ladders(symbols, typical), [typical], run, seconds))


IMAGE = {"b": 1, "h": 224, "w": 224}


@pytest.mark.parametrize("typical", [BERT, IMAGE, {"batch": 1}, {"seq": 128}, {"batch": 8, "seq": 7}])
def test_five_further_sizes_include_ones_larger_sizes_and_unequal_symbols(typical):
    chosen = [sizes for sizes, _, _ in tried(typical)]
    assert len(chosen) == MORE_SIZES and typical not in chosen
    assert all(chosen.count(each) == 1 for each in chosen)
    assert all(each.keys() == typical.keys() and min(each.values()) >= 1 for each in chosen)
    for name, size in typical.items():
        values = [each[name] for each in chosen]
        assert any(value != size for value in values) and (size == 1 or 1 in values)
        assert max(values) >= (2 * size if len(typical) == 1 or size > 1 else 3)
    if len(typical) > 1:  # no two symbols are always equal
        assert any(len(set(each.values())) == len(each) for each in chosen)
    assert tried({}) == []


def test_a_chosen_size_is_never_below_its_minimum():
    assert tried({"past": 128}, least={"past": 0})[0][0] == {"past": 0}
    assert min(sizes["k"] for sizes, _, _ in tried({"k": 128}, least={"k": 4})) == 4


def test_symbols_that_must_be_equal_get_prime_sizes_too():
    ran = [sizes for sizes, result, _ in tried({"a": 100, "b": 100}, lambda s: s["a"] == s["b"]) if result]
    assert len(ran) == MORE_SIZES and {"a": 13, "b": 13} in ran


def test_valid_sizes_are_found_for_images_of_whole_blocks():
    def runs(chosen):
        return chosen["h"] % 32 == chosen["w"] % 32 == 0

    ran = [sizes for sizes, result, _ in tried(IMAGE, runs) if result]
    assert len(ran) == MORE_SIZES and any(each["h"] != each["w"] for each in ran) and {"b": 1, "h": 32, "w": 32} in ran
    square = [sizes for sizes, result, _ in tried(IMAGE, lambda s: runs(s) and s["h"] == s["w"]) if result]
    assert len(square) == MORE_SIZES


def test_a_size_skipped_for_lack_of_time_is_reported_as_not_compared(monkeypatch):
    late = tried(BERT, seconds=-1.0)
    assert late and all(each[1:] == (None, "the time limit was reached") for each in late)
    monkeypatch.setattr(numerics, "elsewhere", lambda *given: elsewhere(*given[:-1], seconds=-1.0))
    result = validate(SCALED, WRONG["a Reshape with 128 in it"][1], shapes={"seq": 128})
    assert result.ok  # without time for other sizes, the fault is not found
    text = equal_sizes_text(result.to_dict()["findings"])
    assert text.startswith("equal at 1 size (batch x seq): 1x128; ") and text.endswith("not compared")


def test_a_size_that_needs_too_much_memory_is_reported_as_not_compared(monkeypatch):
    monkeypatch.setattr("rlflow.optimisation.validate.equality.MOST_BYTES", 4 * 4 * 256)
    result = validate(SCALED, SCALED, shapes={"seq": 128})
    verdicts = {tuple(each["sizes"].values()): each["verdict"] for each in result.to_dict()["sizes"]}
    assert result.ok and verdicts[1, 256] == "ok" and verdicts[3, 128] == "not compared"
    assert "batch = 3, seq = 128" in str(result) and "one of its tensors would need" in str(result)
    named = validate(SCALED, SCALED, shapes={"seq": 1024})  # the user named this size, so no memory limit excludes it
    assert named.to_dict()["sizes"][0]["verdict"] == "ok"


def test_results_of_earlier_versions_have_no_sizes():
    findings = [{"kind": "numerics", "ok": True, "message": "output 'y': equal", "value": None}]
    assert equal_sizes_text(findings) == "" and Findings().at_sizes() == []


# -- what reads the graph --------------------------------------------------------------------------


def test_known_faults_are_looked_for_at_every_given_size():
    graph = load_graph(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 15]>
g (float[n] x, float[n,2] z) => (float[2] y) <float[2] b = {1.0, 2.0}> {
  t = MatMul (x, z)
  y = Add (t, b)
}""")
    )
    assert not known_faults(graph, [{"n": 3}, {"n": 128}])
    assert known_faults(graph, [{"n": 3}, {"n": 0}]) == {"MatMulAddFusion": 1}


def test_the_validate_command_reports_the_sizes(capsys, tmp_path):
    a, b, out = tmp_path / "a.onnx", tmp_path / "b.onnx", tmp_path / "findings.json"
    onnx.save(SCALED, a)
    onnx.save(WRONG["a batch of 1 in it"][1], b)
    done = in_process(capsys, "validate", a, a, "--shape", "seq=16,128", "--json", out)
    assert done.code == 0 and "equal at 7 sizes (batch x seq): 1x16, 1x128, " in done.err + done.out
    assert len(json.loads(out.read_text())["sizes"]) == 2 + MORE_SIZES
    graph = load_graph(SCALED)
    receipt = make_receipt(graph, load_rules(), [], [], graph, {}, sizes=({"batch": 2, "seq": 24},))
    write_json(tmp_path / "receipt.json", receipt)
    assert in_process(capsys, "validate", a, a, "--receipt", tmp_path / "receipt.json", "--json", out).code == 0
    assert json.loads(out.read_text())["sizes"][0]["sizes"] == {"batch": 2, "seq": 24}
    onnx.save(model("  a = Mul (x, w)\n  y = Reshape (a, both)", "float[1,128,4]"), tmp_path / "frozen.onnx")
    sized = ("validate", a, tmp_path / "frozen.onnx", "--shape", "batch=1", "--shape", "seq=128")
    assert in_process(capsys, *sized).code == 1 and in_process(capsys, *sized, "--fix").code == 0
    done = in_process(capsys, "validate", a, b, "--shape", "seq=128", "--json", out)
    assert done.code == 1
    verdicts = {tuple(e["sizes"].values()): e["verdict"] for e in json.loads(out.read_text())["sizes"]}
    assert verdicts[1, 128] == "ok" and verdicts[3, 128] == "FAILED"


# -- receipts and repair ---------------------------------------------------------------------------

RULES = """
relu-twice: harmless
  Relu(x) => Relu(Relu(x))

sum-of-128: right where the axis is of 128 alone
  ReduceMean(x, a, keepdims=1) => Div(ReduceSum(x, a, keepdims=1), 128.0)
"""


def walk() -> tuple[onnx.ModelProto, Task, list[tuple[int, int]]]:
    """Return a model with symbols, its task, and three rewrites; the second rewrite is right at seq = 128 only."""
    original = model("  r = Relu (x)\n  m = ReduceMean <axes = [1], keepdims = 1> (r)\n  y = Sub (r, m)")
    rules = RuleSet(tuple([replace(rule, for_all_shapes=True) for rule in parse(RULES, "made-up")]), "made-up")
    task = Task(load_graph(original), rules, AnalyticCost(), sizes=(BERT,))
    return original, task, [(0, 0), (1, 0), (0, 0)]


def test_the_first_rewrite_that_is_wrong_at_another_size_is_named():
    original, task, actions = walk()
    state = task.initial
    for action in actions:
        state = state.apply(*action)
    receipt = make_receipt(task.graph, task.rules, [], actions, state.graph, {}, sizes=task.sizes)
    result = validate(original, to_model(state.graph), shapes={"seq": 128}, receipt=receipt, rules=task.rules)
    last = [finding for finding in result.findings if finding.kind == "receipt"][-1]
    assert not last.ok and "after step 1, rule sum-of-128 at location 0, outputs differ: batch = " in last.message
    assert not any(f.sizes == BERT for f in result.failures())


def test_a_rewrite_that_is_wrong_at_another_size_is_left_out():
    original, task, actions = walk()
    comparison = Comparison(original, [0], 1e-4, {"seq": 128})
    done = repaired(task, actions, lambda state: comparison.against(to_model(state.graph)))
    assert done.findings.ok and [each.rule for each in done.left_out] == ["sum-of-128"]
    assert done.left_out[0].blame == "rule" and len(done.actions) == 2


def test_sums_of_sizes_and_sizes_without_names_may_be_frozen():
    """The sum "past + seq" and a dimension without a name may become the bound numbers, as with the option --fix."""
    text = """<ir_version: 9, opset_import: ["": 20]>
        g (float[past, 2] c, float[seq, 2] x, float[n, 2] m, float[k] z) => (float[total, 2] y, float[rest] u)
        { t = Concat <axis = 0> (c, x) y = Add (t, m) u = Neg (z) }"""
    original = onnx.parser.parse_model(text)
    original.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "past + seq"
    original.graph.input[3].type.tensor_type.shape.dim[0].ClearField("dim_param")
    frozen = onnx.ModelProto()
    frozen.CopyFrom(original)
    for value, size in zip(frozen.graph.input, (3, 4, 7, 5), strict=True):
        value.type.tensor_type.shape.dim[0].dim_value = size
    sizes = {"past": 3, "seq": 4, "z_0": 5}
    assert validate(original, frozen, shapes=sizes, fix=True).ok
    frozen.graph.input[2].type.tensor_type.shape.dim[0].dim_value = 8
    assert not validate(original, frozen, shapes=sizes, fix=True).ok
