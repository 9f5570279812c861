"""Test the command `expr`: its output file, its checks and its refusals."""

import itertools

import pytest

from rlflow.cli.expr_delivery import check, is_equal, replay
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.tasks.expressions.c_code import compiler
from rlflow.tasks.expressions.cost import cost_of
from rlflow.tasks.expressions.syntax import Program, parse_expression, parse_programs
from rlflow.tasks.expressions.task import named_program
from tests.commands import in_process

TEXT = """
(def scal (Vec Float) ((a : Float) (v : Vec Float)) (build (size v) (lam (i : Integer) (mul a (index i v)))))
(def twice (Vec Float) (v : Vec Float) (scal 1.0 (scal 2.0 v)))
"""


def test_a_program_becomes_cheaper_and_its_receipt_makes_the_same_file(tmp_path, capsys):
    (tmp_path / "twice.ks").write_text(TEXT)
    options = ("expr", tmp_path / "twice.ks", "--seconds", "1000", "--method", "greedy", "--json", tmp_path / "json")
    done = in_process(capsys, *options, "--out", tmp_path / "cheaper.ks")
    assert done.code == 0, done.err
    results = read_json(tmp_path / "json")
    before, after = (
        parse_programs((tmp_path / f"{name}.ks").read_text())["twice"].expr for name in ("twice", "cheaper")
    )
    # `let_recover` can drop the name of the function, at a gain of 0.1; the file names it again.
    assert (
        results["after"] == pytest.approx(cost_of(after) / 1e4, abs=0.11) and results["after"] <= cost_of(after) / 1e4
    )
    assert results["after"] < results["before"] == cost_of(before) / 1e4
    assert results["check"]["difference"] < 1e-12 and (compiler() is None or results["check"]["c"] < 1e-12)
    assert "void run(" in (tmp_path / "cheaper.c").read_text()
    assert (tmp_path / "cheaper.png").read_bytes().startswith(b"\x89PNG")
    assert set(done.ending) == {"result", "sure", "program", "receipt", "picture", "c", "next"}
    options = ("expr", tmp_path / "twice.ks", "--receipt", tmp_path / "cheaper.receipt.json")
    assert in_process(capsys, *options, "--out", tmp_path / "again.ks").code == 0
    for suffix in (".ks", ".c", ".receipt.json"):
        assert (tmp_path / f"again{suffix}").read_bytes() == (tmp_path / f"cheaper{suffix}").read_bytes()


def test_a_receipt_of_something_else_is_refused(tmp_path, capsys):
    done = in_process(capsys, "expr", "(mul (div x x) x)", "--method", "greedy", "--out", tmp_path / "one.ks")
    assert done.code == 0 and parse_expression((tmp_path / "one.ks").read_text()).expr == parse_expression("x").expr
    receipt = read_json(tmp_path / "one.receipt.json")
    changes = {
        "another program": {"program": "0" * 32}, "lead to another result": {"result": "0" * 32},
        "no rule is named": {"steps": [["magic", 0]]}, "has no location 9": {"steps": [["mul_one", 9]]},
        "not a receipt": {"kind": "model"},
    }  # fmt: skip
    for reason, change in changes.items():
        write_json(tmp_path / "wrong.json", receipt | change)
        with pytest.raises(RLFlowError, match=reason):
            replay(read_json(tmp_path / "wrong.json"), named_program("(mul (div x x) x)"))
    for key, value in itertools.product(("steps", "cost"), (None, 3, [3], [[]], {"after": float("inf")}, [["x", "y"]])):
        with pytest.raises(RLFlowError, match="not a receipt"):
            replay(receipt | {key: value}, named_program("(mul (div x x) x)"))
    with pytest.raises(RLFlowError, match="not a receipt"):
        replay([receipt], named_program("(mul (div x x) x)"))


def test_a_wrong_result_is_noticed():
    one, other = parse_programs(TEXT)["twice"], parse_programs(TEXT.replace("2.0", "3.0"))["twice"]
    assert is_equal(check(one, one)) and not is_equal(check(one, other))
    unknown = Program("f", parse_programs("(edef g Float (Float)) (def f Float (x : Float) (g x))")["f"].expr)
    assert "'g' has no value" in check(unknown, unknown)["reason"]


@pytest.mark.parametrize("words, reason", [
    (("(mul x y)", "--method", "beem"), "did you mean 'beam'"), (("(mul x y)", "--rules", "all"), "no rule set 'all'"),
    (("(mul x y)", "--seconds", "0"), "--seconds above 0"), (("FILE:nothing",), "no definition is named 'nothing'"),
    (("(mul x y)", "--method", "taso"), "taso searches graphs"),
    (("(mul x q)",), "'q' has no definition"), (("gelo/gelu",), "did you mean 'gelu'"),
])  # fmt: skip
def test_wrong_arguments_are_refused(tmp_path, capsys, words, reason):
    (tmp_path / "f.ks").write_text(TEXT)
    words = [word.replace("FILE", str(tmp_path / "f.ks")) for word in words]
    assert reason in in_process(capsys, "expr", *words, "--out", tmp_path / "out.ks").error
    assert not (tmp_path / "out.ks").exists()


def test_the_program_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "f.ks").write_text(TEXT)
    assert "pass another file" in in_process(capsys, "expr", tmp_path / "f.ks", "--out", tmp_path / "f.ks").error


def test_values_that_are_not_finite_do_not_make_a_program_wrong():
    program = named_program("(log (sub x 3.0))")
    checked = check(program, program)
    assert is_equal(checked) and checked["reason"] == "the program has no finite value at random inputs"


def test_a_long_expression_is_no_path():
    assert named_program("(add x " * 120 + "y" + ")" * 120).expr


@pytest.mark.parametrize("text, reason", [
    ("(neg x y)", "neg takes 1 argument, not 2"), ("(lt x)", "lt takes 2 arguments, not 1"), ("(lam)", "a lam is"),
    ("(get$0$2 (tuple x y))", "needs one tuple"),
])  # fmt: skip
def test_malformed_expressions_are_named(text, reason):
    with pytest.raises(RLFlowError, match=reason):
        named_program(text)


@pytest.mark.parametrize("text", ["(edef f Float ())", "(def (f) Float (x : Float) x)"])
def test_malformed_definitions_are_named(text):
    with pytest.raises(RLFlowError, match="an edef"):
        parse_programs(text)


def test_a_bound_that_does_not_exist_is_refused_before_the_search(tmp_path, capsys):
    done = in_process(capsys, "expr", "(build 3 (lam (i : Integer) x))", "--bound", "--out", tmp_path / "x.ks")
    assert "arithmetic on numbers only" in done.error and not (tmp_path / "x.ks").exists()
