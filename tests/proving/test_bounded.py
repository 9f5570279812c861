"""Test bounded proofs: the laws of normal forms, the coverage of cases, and the rejection of wrong rules."""

import itertools
from fractions import Fraction

import pytest

from rlflow.proving import bounded
from rlflow.proving.bounded import Bound, Refuted, prove_bounded, walk
from rlflow.proving.decisions import Unprovable
from rlflow.proving.formal import Formal
from rlflow.proving.numbers import Invalid
from rlflow.rules.language import families, load_rules, parse
from tests.proving.test_mutations import mutated
from tests.suite import slow

SMALL = 300_000  # work that suffices for the smallest bounds of the rules below


@pytest.fixture
def m():
    return Formal({}, lambda work: None)


@pytest.fixture
def abc(m):
    return tuple(m.element(name, ()) for name in "abc")


def is_one(m, p) -> bool:
    return m.same(p, m.number(1))


# -- laws ------------------------------------------------------------------------------------------


def test_sums_and_products_have_one_canonical_form(m, abc):
    a, b, c = abc
    assert ((a + b) * (a - b)).key == (a * a - b * b).key
    assert (a * (b + c)).key == (c * a + b * a).key
    assert m.total((3,), lambda k: a).key == (m.number(3) * a).key


def test_fractions_are_exact_and_floats_are_read_as_the_numbers_that_they_approximate(m, abc):
    assert (m.number("1/3") * m.number(3)).number == 1
    assert m.number(0.1).number == Fraction(1, 10)
    assert (m.number(1.4142135623730951) * m.number(1.4142135623730951)).number == 2
    assert (m.number(1.4142135623730951) * m.number(0.7071067811865476)).number == 1


def test_exponentials_follow_their_laws(m, abc):
    a, b, _ = abc
    exp = lambda p: m.apply("exp", p)  # noqa: E731
    assert exp(a + b).key == (exp(a) * exp(b)).key
    assert is_one(m, exp(a) * exp(-a)) and exp(-a).key == m.inverse(exp(a)).key
    assert exp(a + a).key == (exp(a) * exp(a)).key
    half = exp(a * m.number("1/2"))
    assert (half * half).key == exp(a).key
    assert exp(m.number(0)).number == 1


def test_divisors_follow_the_laws_of_division(m, abc):
    a, b, c = abc
    assert is_one(m, a * m.inverse(a))
    assert m.inverse(a * b).key == (m.inverse(a) * m.inverse(b)).key
    assert m.inverse(m.inverse(a)).key == a.key
    assert m.inverse(a + a + b + b).key == (m.inverse(a + b) * m.number("1/2")).key
    assert is_one(m, (a + b) * m.inverse(a + b))
    assert m.same(m.quotient(a, a + b) + m.quotient(b, a + b), m.number(1))
    assert m.same(m.inverse(a) + m.inverse(b), m.quotient(a + b, a * b))
    assert m.same(m.quotient(a, a + b) - m.quotient(a, a + c), m.quotient(a * (c - b), (a + b) * (a + c)))
    with pytest.raises(Invalid):
        m.inverse(a - a)


def test_roots_follow_their_laws(m, abc):
    a, b, _ = abc
    sqrt = lambda p: m.apply("sqrt", p)  # noqa: E731
    assert sqrt(m.number(9)).number == 3 and (sqrt(m.number(2)) * sqrt(m.number(3))).key == sqrt(m.number(6)).key
    assert (sqrt(a + b) * sqrt(a + b)).key == (a + b).key
    assert (m.inverse(sqrt(a)) * a).key == sqrt(a).key
    assert sqrt(m.number(4) * a).key == (m.number(2) * sqrt(a)).key
    assert not m.same(sqrt(a * a), a)  # the root is |a|
    with pytest.raises(Invalid):
        sqrt(m.number(-1))


def test_maxima_follow_their_laws(m, abc):
    a, b, c = abc
    one, two, larger = m.number(1), m.number(2), m.larger
    least = lambda p, q: -larger(-p, -q)  # noqa: E731
    assert larger(a, larger(b, c)).key == larger(larger(c, a), b).key
    assert larger(a, a).key == a.key and larger(one, two).number == 2
    assert larger(larger(a, one), two).key == larger(a, two).key
    assert larger(a + c, b + c).key == (larger(a, b) + c).key
    assert larger(two * a, two * b).key == (two * larger(a, b)).key
    assert (least(a, b) + larger(a, b)).key == (a + b).key
    assert m.same(larger(least(a, b), c), least(larger(a, c), larger(b, c)))
    nothing = m.greatest((2,), lambda k: a, lambda k: [(-1, 1)])
    assert larger(nothing, a).key == a.key and nothing.key != a.key


def test_functions_of_equal_numbers_are_equal(m, abc):
    a, b, _ = abc
    one, other = m.quotient(a, a + b) + m.quotient(b, a + b), m.number(1)
    assert m.apply("erf", one * a).key == m.apply("erf", other * a).key


def test_distinct_numbers_stay_distinct(m, abc):
    a, b, c = abc
    exp, sqrt, erf = (lambda p, name=name: m.apply(name, p) for name in ("exp", "sqrt", "erf"))
    numbers = [
        a, b, a + b, a * b, a * a, -a, m.number(1), m.number(0), m.inverse(a), m.inverse(a + b), exp(a), exp(b),
        exp(-a), exp(a * b),
        sqrt(a), sqrt(a + b), sqrt(m.number(2)), erf(a), erf(-a), m.larger(a, b), m.larger(a, c), m.larger(a, -a),
        m.larger(a, m.number(0)),
        -m.larger(-a, -b), m.quotient(a, b), m.quotient(b, a), m.quotient(a, a + b), m.element("a", (0,)),
        m.element("a", (1,)),
    ]  # fmt: skip
    for one, other in itertools.combinations(numbers, 2):
        assert not m.same(one, other)


def test_the_right_side_may_divide_only_by_divisors_of_the_left_side(m, abc):
    a, b, _ = abc
    m.inverse(a * (a + b))
    m.closed = True
    m.inverse(a), m.inverse(b + a), m.inverse(m.apply("exp", b))
    for wrong in (
        lambda: m.inverse(b),
        lambda: m.inverse(a - b),
        lambda: m.apply("sqrt", a),
        lambda: m.apply("log", b),
    ):
        with pytest.raises(Unprovable):
            wrong()


# -- coverage --------------------------------------------------------------------------------------


def cases_of(text: str, bound: Bound) -> list[dict]:
    """Return the decisions of every case within a bound in which a rule fires."""
    (rule,) = parse(f"covered: counted\n  {text}\n", "counted")
    result: list[dict] = []
    walk(rule, True, bound, lambda work: None, lambda world, case, source: result.append(world.picks))
    assert len({tuple(picks.items()) for picks in result}) == len(result)
    return result


def test_every_combination_of_shapes_is_tried():
    """Compare the cases of MatMul with a brute-force count of the shapes that it accepts."""
    result = cases_of(
        "MatMul(x, y) => MatMul(x, y)\n  if rank(x) == 2 and dim(x, 0) != dim(y, rank(y) - 1)",
        Bound(3, (2, 3), 8, 1, 1),
    )
    shapes = [s for rank in (1, 2, 3) for s in itertools.product(*([range(1, 3)] * 2 + [range(1, 4)])[:rank])]
    shapes = [s for s in shapes if len(s) < 3 or s[0] * s[1] * s[2] <= 8]
    pairs = [
        (x, y) for x in shapes for y in shapes if len(x) == 2 and x[1] == y[-2 if len(y) > 1 else 0] and x[0] != y[-1]
    ]
    assert {tuple(tuple(p[f"{t}.{k}"] for k in range(p[f"rank of {t}"])) for t in "xy") for p in result} == set(pairs)
    assert len(result) == len(pairs)


def test_every_window_of_a_pool_is_tried():
    result = cases_of(
        "MaxPool(x, kernel_shape=k, strides=s, pads=p) => MaxPool(x, kernel_shape=k, strides=s, pads=p)",
        Bound(3, (2, 3), 99, 1, 1),
    )
    brute = [
        (n, c, size, k, s, p, q)
        for n, c, size, k, s, p, q in itertools.product((1, 2), (1, 2), (1, 2, 3), (1, 2), (1, 2), (0, 1), (0, 1))
        if size + p + q >= k > max(p, q)  # pads must be smaller than the window
    ]
    names = ("x.0", "x.1", "x.2", "k.0", "s.0", "p.0", "p.1")
    assert sorted(tuple(p[name] for name in names) for p in result) == brute


def test_numbers_that_a_condition_compares_are_tried_too():
    bound, _ = prove_within_work("Clip(Clip(x, a, b), a, b) => Clip(x, a, b)\n  if scalar(a) <= scalar(b)")
    assert "numbers that conditions compare: -1, 0, 1/2, 1, 2" in bound


def prove_within_work(text: str) -> tuple[str, int]:
    (rule,) = parse(f"tried: for a test\n  {text}\n", "tried")
    return prove_bounded(rule, work=SMALL)


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reducesum-of-mul", *slow("relu-transpose", "matmul-merge")])
def test_a_true_rule_is_proved(name):
    rules = load_rules(families())
    bound, cases = prove_bounded(rules[rules.index(name)], work=SMALL)
    assert cases > 20 and "sizes to 3, 3 elements" in bound and "pads to 1" in bound


@pytest.mark.parametrize(
    "name, old, new",
    [
        (
            "concat-conv-merge",
            'if attributes(a, "group", 1) == 1 else "the convolutions are grouped"',
            "if rank(x) > 0",
        ),
        ("conv-enlarge", "[0, 0, 1, 1, 0, 0, 1, 1]", "[0, 0, 2, 2, 0, 0, 0, 0]"),
        ("conv-averagepool", ' and attributes(a, "pads") is None and', " and"),
        ("layer-normalization", "epsilon=scalar(e)", "epsilon=0.001"),
        ("gelu-tanh", 'Gelu(x, approximate="tanh")', "Gelu(x)"),
        ("div-by-constant", 'if is_float(c) else "integers do not divide exactly"', "if rank(c) > -1"),
        ("mean-as-sum", "full(1 / prod(", "full(prod("),
        ("transpose-transpose", "compose(p, q)", "compose(q, p)"),
        *slow(
            ("conv-of-gather", "inverse(value(i))", "value(i)"),
            ("relu-maxpool", 'if attributes(a, "dilations") is None else', "if True else"),
        ),
    ],
    ids=lambda text: text[:20],
)
def test_a_false_rule_is_refuted_by_numbers(name, old, new):
    rules = mutated(name, old, new)
    with pytest.raises(Refuted, match="left .* right"):
        prove_bounded(rules[rules.index(name)], (True, False) if name == "div-by-constant" else (True,), work=3 * SMALL)


def test_an_equality_that_is_not_recognised_is_not_proved(monkeypatch):
    """Check that a missing law makes a rule unprovable and never refuted."""
    monkeypatch.setattr(bounded.World, "same", lambda self, one, other: False)
    with pytest.raises(Unprovable):
        prove_within_work("Relu(Relu(x)) => Relu(x)")


def test_a_proof_that_exceeds_its_work_limit_fails():
    rules = load_rules(families())
    with pytest.raises(TimeoutError):
        prove_bounded(rules[rules.index("conv-averagepool")], work=50_000)


def test_a_rule_without_cases_is_not_proved():
    with pytest.raises(Unprovable, match="no case"):
        prove_within_work("Relu(x) => Neg(x)\n  if rank(x) < 0")


def test_the_same_work_gives_the_same_answer():
    text = "ReduceSum(Mul(x, k), r, keepdims=1) => Mul(ReduceSum(x, r, keepdims=1), k)\n  if rank(k) == 0"
    assert prove_within_work(text) == prove_within_work(text)
