"""Test the language: parser, types, printing, equality up to renaming, cost, values and C code."""

import pickle

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.tasks.expressions.c_code import Library, c_source, compiler
from rlflow.tasks.expressions.cost import cost_of
from rlflow.tasks.expressions.evaluate import call, difference, evaluate, random_value, run
from rlflow.tasks.expressions.expr import FLOAT, INTEGER, make, shift, type_text, vec
from rlflow.tasks.expressions.syntax import parse_expression, parse_programs, program_text, to_text
from tests.suite import each_of
from tests.toys.expressions import KINDS, Generator

AXPY = """
(edef pow Float (Tuple Float Float))
(def cost$pow Float ((x : Float) (p : Float)) 10.0)
(def scal (Vec Float) ((a : Float) (v : Vec Float)) (build (size v) (lam (i : Integer) (mul a (index i v)))))
(def unused Float (x : Float) (pow x 2.0))
(def axpy (Vec Float) ((alpha : Float) (x : Vec Float) (y : Vec Float))
  (build (size x) (lam (i : Integer) (add (index i (scal alpha x)) (index i y)))))
"""


def expr(text: str):
    return parse_expression(text).expr


@pytest.mark.parametrize("one, other, equal", [
    ("(let (t x) (mul t t))", "(let (q x) (mul q q))", True),
    ("(let (t x) (let (s y) (mul t s)))", "(let (t x) (let (s y) (mul s t)))", False),
    ("(build 3 (lam (i : Integer) (build 2 (lam (j : Integer) (add i j)))))",
     "(build 3 (lam (a : Integer) (build 2 (lam (b : Integer) (add a b)))))", True),
    ("(build 3 (lam (i : Integer) (build 2 (lam (j : Integer) (add i j)))))",
     "(build 3 (lam (i : Integer) (build 2 (lam (j : Integer) (add j i)))))", False),
    ("(mul x y)", "(mul x z)", False), ("1", "1.0", False), ("true", "1", False),
    ("(let (x y) x)", "(let (z y) z)", True),
])  # fmt: skip
def test_equality_is_up_to_the_names_of_bound_variables(one, other, equal):
    assert (expr(one) == expr(other)) == equal == (hash(expr(one)) == hash(expr(other)))


@each_of(range(40))
def test_random_expressions_print_and_parse(seed):
    """Expressions print and parse if the parser knows their free variables; all expressions can be pickled."""
    generator = Generator(seed)
    drawn = generator.draw(generator.pick(KINDS), 4)
    names = {node.value.name for node in drawn.nodes() if node.op == "external"}
    if names <= set("ijkxyzabpuv"):
        assert parse_expression(to_text(drawn)).expr == drawn
    again = pickle.loads(pickle.dumps(drawn))
    assert again == drawn and again.type == drawn.type and again.size == drawn.size == sum(1 for _ in drawn.nodes())


def test_a_program_is_a_chain_of_the_functions_that_the_program_needs():
    programs = parse_programs(AXPY)
    assert list(programs) == ["scal", "unused", "axpy"]
    axpy = programs["axpy"].expr
    assert axpy.op == axpy.args[1].op == "let" and axpy.args[1].args[1].op == "variable"
    assert axpy.type == ("Lam", ("Tuple", FLOAT, vec(FLOAT), vec(FLOAT)), vec(FLOAT))
    again = parse_programs(program_text(programs["axpy"]))
    assert list(again) == ["scal", "axpy"] and again["axpy"].expr == axpy
    # Two lets of functions. scal: lets of 2 parameters, 2 + 1 + 16 · (2 + 1). The call costs scal + 2.
    scal = 0.2 + 2 + 1 + 16 * 3
    inner = 1 + 1 + 1 + (2 + 0.2 + scal)
    assert cost_of(axpy) == round(10_000 * (0.2 + 0.3 + 2 + 1 + 16 * inner))
    assert cost_of(programs["unused"].expr) == round(10_000 * (0.1 + 2 + 10 + 0.2))


@pytest.mark.parametrize("text, units", [
    ("(add x y)", 10_000), ("(mul x (div x y))", 40_000), ("(exp (log x))", 80_000), ("(let (t x) t)", 1_000),
    ("(if p (exp x) (mul x y))", 10_000 + 40_000 + 2), ("(tuple x y z)", 3_000), ("(get$1$2 (tuple x y))", 2_000),
    ("(build 3 (lam (i : Integer) (mul x x)))", 20_000 + 16 * 20_000), ("(add u v)", 160_000 + 20_000),
    ("(sumbuild 3 (lam (i : Integer) (mul x x)))", 15 * 10_000 + 16 * 20_000), ("(sum u)", 150_000),
    ("(sumbuild 3 (lam (i : Integer) u))", 15 * 16 * 10_000), ("(index i (constVec j x))", 30_000),
])  # fmt: skip
def test_an_expression_has_the_expected_cost(text, units):
    assert cost_of(expr(text)) == units


@pytest.mark.parametrize("text, value", [
    ("(div -7 2)", -4), ("(if (gt 2.0 1.0) 3 4)", 3), ("(sumbuild 4 (lam (i : Integer) i))", 6), ("(lt 1 2)", True),
    ("(let ((s 2.0) (t (mul s 3.0))) (add s t))", 8.0), ("(size (deltaVec 4 1 1.0))", 4), ("(or false true)", True),
    ("(get$2$2 (tuple 1 2.5))", 2.5), ("(index 1 (build 3 (lam (i : Integer) (to_float (mul i i)))))", 1.0),
    ("(sum (build 3 (lam (i : Integer) (tuple 1.0 (to_float i)))))", (3.0, 3.0)),
    ("(mul 2.0 (tuple 1.0 (constVec 2 3.0)))", (2.0, np.array([6.0, 6.0]))),
])  # fmt: skip
def test_an_expression_has_the_expected_value(text, value):
    assert difference(evaluate(expr(text)), value) == 0


@pytest.mark.parametrize("text, reason", [
    ("(add x)", "does not take 1 arguments"), ("(add x i)", "types Float, Integer"), ("(add x", "parentheses open"),
    ("(add x y))", "closes more"), ("(foo x)", "'foo' has no definition"), ("(get$3$2 (tuple x y))", "needs one tuple"),
    ("(let (t) x)", "is not .name value."), ("", "one expression is expected"), ("(lam y x)", "is not a parameter"),
])  # fmt: skip
def test_wrong_expressions_are_refused(text, reason):
    with pytest.raises(RLFlowError, match=reason):
        expr(text)


@pytest.mark.parametrize("text", ["(index 7 u)", "(div 1 0)", "(assert false x)", "(build 0 (lam (i : Integer) x))"])
def test_an_expression_without_a_value_is_refused(text):
    with pytest.raises(RLFlowError):
        run(expr(text), 0)


@pytest.mark.parametrize("listed, kind", [
    ("(Float)", FLOAT), ("(Float Float)", ("Tuple", FLOAT, FLOAT)), ("((Vec Float))", vec(FLOAT)),
    ("(Tuple Float Float)", ("Tuple", FLOAT, FLOAT)), ("((Vec Float) Float)", ("Tuple", vec(FLOAT), FLOAT)),
])  # fmt: skip
def test_declared_functions_take_one_argument_or_a_tuple(listed, kind):
    text = f"(edef g Float {listed}) (def f Float (x : {type_text(kind)}) (g x))"
    assert parse_programs(text)["f"].expr.type == ("Lam", kind, FLOAT)


def test_indices_shift_outside_their_binders():
    body = expr("(build 3 (lam (i : Integer) (build 2 (lam (j : Integer) (add i j)))))").args[1]
    assert body.free == 1 and shift(body, 2).free == 1 << 2 and shift(shift(body, 2), -2) == body
    assert shift(body, 5, start=1) == body


TEXTS = [
    "(def f Float ((x : Float) (y : Float)) (if (gt x y) (div x y) (log (add 2.0 (exp (mul x -1.5))))))",
    "(def f (Vec Float) ((a : Float) (v : Vec Float)) (mul a (add v (deltaVec (size v) 1 a))))",
    "(def f Float (m : Vec (Vec Float)) (sumbuild (size m) (lam (i : Integer) (sum (index i m)))))",
    "(def f (Tuple Integer Bool (Vec Float)) (v : Vec Float) (tuple (div (sub 0 (size v)) 2) (eq (size v) 3)"
    " (sumbuild 3 (lam (i : Integer) (mul (to_float i) v)))))",
    "(def f (Vec (Tuple Float Float)) (s : (Tuple Float Float))"
    " (build 2 (lam (i : Integer) (mul (to_float i) (add s (constVec_ s))))))".replace("(constVec_ s)", "s"),
    AXPY,
]


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("text", TEXTS)
def test_compiled_c_computes_the_same(text, tmp_path):
    program = list(parse_programs(text).values())[-1]
    library = Library(program, tmp_path)
    for seed in range(3):
        argument = random_value(program.expr.type[1], np.random.default_rng(seed))
        assert difference(call(evaluate(program.expr), argument), library(argument)) < 1e-12


def test_the_check_of_an_assertion_in_c_precedes_what_it_guards():
    body = "(assert (gt (size v) 5) (sumbuild 2 (lam (i : Integer) (index 5 v))))"
    text = c_source(parse_programs(f"(def f Float (v : Vec Float) {body})")["f"])
    assert text.index("> 5") < text.index(".at[5]")


@pytest.mark.parametrize("body", ["(index 9 v)", "(sum (deltaVec 3 9 1.0))"])
def test_a_place_in_c_is_checked_before_its_use(body):
    text = c_source(parse_programs(f"(def f Float (v : Vec Float) {body})")["f"])
    assert text.index("(uint64_t)(9) >=") < text.index(".at[9]")


def test_a_program_without_a_form_in_c_is_refused():
    with pytest.raises(RLFlowError, match="only a function"):
        c_source(parse_expression("(add x y)"))
    text = "(edef dotv Float ((Vec Float) (Vec Float)))\n(def f Float (v : Vec Float) (dotv v v))"
    with pytest.raises(RLFlowError, match="'dotv' has no form in C"):
        c_source(parse_programs(text)["f"])


def test_types_of_vectors_and_numbers_combine():
    u, m = expr("u"), expr("(build 2 (lam (i : Integer) u))")
    assert make("mul", expr("x"), m).type == vec(vec(FLOAT)) and make("add", u, u).type == vec(FLOAT)
    for wrong in ((u, m), (expr("i"), u), (expr("p"), expr("p"))):
        with pytest.raises(RLFlowError):
            make("add", *wrong)
    assert make("size", u).type == INTEGER
