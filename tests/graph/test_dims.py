"""Test symbolic sizes (polynomials): arithmetic agrees with numbers, equal sizes are one object, answers are right."""

import operator
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlflow.graph.dims import (
    MAX_ATOMS,
    MAX_DEGREE,
    Dim,
    Undecided,
    at,
    equal,
    larger,
    least,
    multiple,
    parse,
    smaller,
    symbol,
    symbols_of,
)

LEAST = {"batch": 1, "seq": 1, "past": 0}
SYMBOLS = {name: symbol(name, lowest) for name, lowest in LEAST.items()}

# An expression is a number, a name, or (operation, left, right). A divisor is a number of at least 1.
SMALL = st.integers(-8, 8) | st.sampled_from(sorted(LEAST))
DIVISORS = st.integers(1, 6)


def expressions(most_leaves: int):
    return st.recursive(
        SMALL,
        lambda inner: (
            st.tuples(st.sampled_from("+-*"), inner, inner) | st.tuples(st.sampled_from(["//", "%"]), inner, DIVISORS)
        ),
        max_leaves=most_leaves,
    )


EXPRESSIONS = expressions(8)
POLYNOMIALS = st.recursive(SMALL, lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner), max_leaves=6)
SIZES = st.fixed_dictionaries({name: st.integers(lowest, 40) for name, lowest in LEAST.items()})
SEVERAL = st.lists(SIZES, min_size=1, max_size=6)
OPERATIONS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


def value(expression, leaves):
    """Return the value of an expression whose names stand for `leaves`, which are Dims or numbers."""
    if isinstance(expression, tuple):
        operation, left, right = expression
        return OPERATIONS[operation](value(left, leaves), value(right, leaves))
    return leaves.get(expression, expression)


def written(expression) -> str:
    if isinstance(expression, tuple):
        operation, left, right = expression
        return f"({written(left)} {operation} {written(right)})"
    return str(expression)


# -- arithmetic ------------------------------------------------------------------------------------


@given(EXPRESSIONS, SEVERAL)
def test_symbolic_arithmetic_equals_the_arithmetic_of_numbers_at_every_size(expression, several):
    dim = value(expression, SYMBOLS)
    for sizes in several:
        assert at(dim, sizes) == value(expression, sizes)


@given(POLYNOMIALS, POLYNOMIALS, SEVERAL)
def test_a_quotient_of_sizes_is_exact_or_refused(left, right, several):
    """Dividing a product by one factor gives the other factor.

    Any other quotient equals the quotient of the numbers, or is undecided.
    """
    a, b = value(left, SYMBOLS), value(right, SYMBOLS)
    if type(b) is Dim and a != 0:
        assert a * b // b is a or type(a) is int
        assert a * b // b == a
    for dividend in (a, a + b):
        try:
            quotient, rest = dividend // b, dividend % b
        except (Undecided, ZeroDivisionError):
            continue
        for sizes in several:
            if at(b, sizes) > 0:
                assert (at(quotient, sizes), at(rest, sizes)) == divmod(at(dividend, sizes), at(b, sizes))


def test_a_number_is_divided_by_a_size_only_if_every_size_gives_the_same_result():
    seq = SYMBOLS["seq"]
    assert 3 // (seq + 3) == 0
    assert 3 % (seq + 3) == 3
    for quotient in (lambda: 3 // seq, lambda: -1 // seq, lambda: seq // 0, lambda: seq // -2, lambda: seq / 2):
        with pytest.raises(Undecided):
            quotient()


@given(EXPRESSIONS)
def test_a_constant_size_is_an_int(expression):
    dim = value(expression, SYMBOLS)
    assert type(dim) in (int, Dim)
    assert type(dim - dim) is int
    assert type(dim * np.int64(0)) in (int, np.int64)  # a NumPy integer counts as a number, too
    assert type(dim) is int or symbols_of(dim)


# -- one object for one polynomial -----------------------------------------------------------------


@given(st.lists(expressions(3), min_size=1, max_size=3), st.randoms())
def test_the_order_of_summands_and_factors_does_not_matter(several, chance):
    parts = [value(expression, SYMBOLS) for expression in several]
    others = chance.sample(parts, len(parts))
    for combine in (operator.add, operator.mul):
        assert reduce(combine, parts) is reduce(combine, others) or type(reduce(combine, parts)) is int
        assert reduce(combine, parts) == reduce(combine, others)


@given(POLYNOMIALS, POLYNOMIALS)
def test_two_polynomials_are_one_object_if_their_values_agree(left, right):
    """A polynomial of degree below 8 in each of three symbols is determined by its values on an 8 × 8 × 8 grid."""
    a, b = value(left, SYMBOLS), value(right, SYMBOLS)
    grid = [dict(zip(LEAST, (x, y, z), strict=True)) for x in range(1, 9) for y in range(1, 9) for z in range(8)]
    alike = all(at(a, sizes) == at(b, sizes) for sizes in grid)
    assert alike == (a == b)
    assert not alike or a is b or type(a) is int


@pytest.mark.parametrize("one, other", [
    ("(a + b)*(a - b)", "a*a - b*b"),
    ("4*(a//4) + 0*b", "(a//4)*4"),
    ("(6*a + 7)//3", "2*a + 2 + 1//3"),
    ("(a*b + a)//1 - a", "b*a"),
    ("(4*a - 1)//4", "a - 1"),
    ("(a//2)//3", "a//6"),
    ("((a - 1)//2 + 1 - 1)//2 + 1", "(a - 1)//4 + 1"),
    ("(a//2 + 5)//3 - 1", "(a + 4)//6"),
])  # fmt: skip
def test_equal_sizes_are_the_same_object(one, other):
    names = {"a": symbol("a"), "b": symbol("b")}
    assert parse(one, names.get) is parse(other, names.get)


@given(EXPRESSIONS)
def test_a_pickled_size_is_the_same_object(expression):
    dim = value(expression, SYMBOLS)
    assert pickle.loads(pickle.dumps(dim)) is dim or type(dim) is int
    assert hash(pickle.loads(pickle.dumps(dim))) == hash(dim)


def test_a_name_that_reads_like_an_expression_is_not_that_expression():
    """A file may use any text as the name of a size.

    When two atoms had the same text, division did not terminate.
    """
    named, half = symbol("((seq)//2)"), SYMBOLS["seq"] // 2
    assert named * half is half * named and str(named) != str(half)
    assert (named * half) // (half * named) == 1
    assert str(symbol("seq - batch")) != str(SYMBOLS["seq"] - SYMBOLS["batch"])


# -- answers ---------------------------------------------------------------------------------------

QUESTIONS = [equal, operator.lt, operator.le, operator.gt, operator.ge, lambda a, b: bool(a - b)]
NUMBERS = [operator.eq, operator.lt, operator.le, operator.gt, operator.ge, operator.ne]


@given(EXPRESSIONS, EXPRESSIONS, SEVERAL)
@example(("//", ("-", "seq", 1), 2), 0, [{"batch": 1, "seq": 1, "past": 0}])
@example("past", 0, [{"batch": 1, "seq": 1, "past": 0}, {"batch": 1, "seq": 1, "past": 1}])
def test_the_answer_to_a_comparison_holds_at_every_size(left, right, several):
    a, b = value(left, SYMBOLS), value(right, SYMBOLS)
    for question, of_numbers in zip(QUESTIONS, NUMBERS, strict=True):
        try:
            answer = question(a, b)
        except Undecided:
            continue
        for sizes in several:
            assert answer == of_numbers(at(a, sizes), at(b, sizes)), (question, sizes)


@given(EXPRESSIONS, SEVERAL)
def test_no_value_of_a_size_is_below_its_least_value(expression, several):
    dim = value(expression, SYMBOLS)
    lowest = least(dim)
    for sizes in several:
        assert lowest <= at(dim, sizes)


SEQ, PAST = SYMBOLS["seq"], SYMBOLS["past"]


def test_the_absolute_value_of_a_size_is_known_if_the_sign_of_the_size_is():
    assert abs(SEQ) is SEQ and abs(-SEQ) is SEQ and abs(PAST) is PAST
    assert abs(PAST - SEQ - PAST) is SEQ
    for unknown in (SEQ - SYMBOLS["batch"], SEQ - 2):
        with pytest.raises(Undecided, match="would have to be known"):
            abs(unknown)


@given(EXPRESSIONS, SIZES)
def test_the_absolute_value_of_a_size_equals_the_absolute_value_of_its_number(expression, sizes):
    dim = value(expression, SYMBOLS)
    try:
        assert at(abs(dim), sizes) == abs(at(dim, sizes))
    except Undecided:
        pass


@pytest.mark.parametrize("low, high", [(1, SEQ), (-1, PAST), (PAST, PAST + SEQ), (SEQ // 2, SEQ), (2, 3), (SEQ, SEQ)])
def test_the_larger_and_the_smaller_of_two_sizes_are_found_in_either_order(low, high):
    for pair in ((low, high), (high, low)):
        assert larger(*pair) is high and smaller(*pair) is low


@pytest.mark.parametrize("one, other", [(SEQ, 2), (SEQ, PAST), (PAST, 1)])
def test_the_larger_of_two_sizes_is_undecided_if_it_depends_on_the_symbols(one, other):
    for choose in (larger, smaller):
        with pytest.raises(Undecided, match="is larger would have to be known"):
            choose(one, other)


@given(EXPRESSIONS, EXPRESSIONS, SIZES)
@example("seq", 1, {"batch": 1, "seq": 7, "past": 0})
def test_the_larger_and_the_smaller_of_two_sizes_agree_with_their_numbers(left, right, sizes):
    a, b = value(left, SYMBOLS), value(right, SYMBOLS)
    numbers = at(a, sizes), at(b, sizes)
    try:
        assert (at(larger(a, b), sizes), at(smaller(a, b), sizes)) == (max(numbers), min(numbers))
    except Undecided:
        pass


WORDS = {"==": equal, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@pytest.mark.parametrize("text, answer", [
    ("seq > 0", True), ("seq >= 2", None), ("past >= 0", True), ("past > 0", None), ("past+seq > 0", True),
    ("past+seq > past", True), ("12*seq == 12*seq", True), ("12*seq == 11*seq", False), ("12*seq == 12", None),
    ("seq == batch", None), ("2*seq == 2*seq+1", False), ("seq*batch >= seq", True), ("seq*batch >= past", None),
    ("(seq+1)//2 >= 1", True), ("seq//2*2 <= seq", True), ("seq//2*2 == seq", None), ("seq//2 < seq", True),
    ("past//2 < past", None), ("(seq-1)//2+1 > 0", True), ("(past-seq)//2*2 <= past-seq", True),
    ("(seq+3)//4*4 >= seq", True), ("(seq+3)//4*4 > seq", None), ("(seq+2)//4*4 >= seq", None),
    ("past*past < 0", False), ("(past-seq)//2*past > 0", None), ("((seq-1)//2+1)//2 == (seq+1)//4", True),
])  # fmt: skip
def test_a_comparison_of_sizes_is_true_false_or_undecided(text, answer):
    left, word, right = text.split()
    a, b = (parse(side, SYMBOLS.get) for side in (left, right))
    if answer is None:
        with pytest.raises(Undecided, match="would have to be known"):
            WORDS[word](a, b)
    else:
        assert WORDS[word](a, b) is answer


def test_a_symbolic_size_cannot_be_used_as_a_number():
    for use in (int, float, range, lambda dim: [0] * dim, lambda dim: np.zeros(dim)):
        with pytest.raises((Undecided, TypeError)):
            use(SYMBOLS["seq"])


# -- text ------------------------------------------------------------------------------------------


@given(EXPRESSIONS)
def test_the_text_of_a_size_parses_to_the_same_size(expression):
    dim = value(expression, SYMBOLS)
    assert parse(str(dim), SYMBOLS.get) == dim


@given(EXPRESSIONS.filter(lambda expression: "%" not in written(expression)), SIZES)
def test_a_written_expression_parses_to_its_value(expression, sizes):
    assert at(parse(written(expression), SYMBOLS.get), sizes) == value(expression, sizes)


@given(st.text(max_size=30) | st.text("abseq+-*/()[]'\"\\ 0123456789.,=:\n", max_size=30))
def test_parsing_any_text_gives_none_a_number_or_a_size(text):
    """A name of a dimension may be any text; parsing returns None, a number or a Dim."""
    result = parse(text, SYMBOLS.get)
    assert result is None or type(result) in (int, Dim)


HOSTILE = {
    "a power": "10**10**10",
    "a shift": "1 << 10**9",
    "a call": "__import__('os').getcwd()",
    "a quote": 'seq"; seq',
    "a name that is not known": "seq + width",
    "a fraction": "seq/2",
    "a division by nothing": "seq//0",
    "a negative divisor": "seq//-2",
    "a number too large": "seq*" + "9" * 4000,
    "numbers that grow": "*".join(["999999999"] * 2000) + "*seq",
    "many signs": "-" * 100_000 + "seq",
    "many brackets": "(" * 100_000 + "seq" + ")" * 100_000,
    "many summands": "+".join(["seq"] * 100_000),
    "many factors": "*".join(["seq"] * 200),
    "a high power of a sum": "*".join(["(seq + batch + past + 1)"] * 90),
    "floors in floors": "(" * 90 + "seq" + "//2 + 1)" * 90,
    "floors in products": "(" * 90 + "seq" + "*3//2)" * 90,
    "a null byte": "seq\0",
    "a half of a character": "\ud800",
    "a keyword": "lambda",
    "nothing": "",
}


READABLE = {"floors in products"}  # the kinds of HOSTILE that are sizes


@contextmanager
def few_calls(most: int) -> Iterator[None]:
    """Check that the block makes at most `most` calls, which do not depend on the speed and the load of the machine."""
    made = Counter()
    sys.setprofile(lambda _, event, __: made.update([event]))
    try:
        yield
    finally:
        sys.setprofile(None)
    assert 0 < made["call"] + made["c_call"] <= most, made


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_refused_quickly(kind):
    with few_calls(50_000):
        result = parse(HOSTILE[kind], SYMBOLS.get)
    assert (result is not None) == (kind in READABLE)
    if result is not None:
        assert at(result, {"seq": 5}) > 0
        assert least(result) <= at(result, {"seq": 5})


def test_sizes_that_grow_without_limit_are_refused_quickly():
    """Huge sizes are refused quickly: forty nodes that square their input, or halve its square, are a small model."""
    for grow in (lambda x: x * x, lambda x: x * x // 2, lambda x: 7 * x, lambda x: x // 2 + 1, lambda x: x * (x + 1)):
        with few_calls(50_000), pytest.raises(Undecided):
            reduce(lambda x, _: grow(x), range(200), 3 * SYMBOLS["seq"] + 1)


def test_a_question_about_many_symbols_is_answered_quickly():
    terms = [
        reduce(operator.mul, (symbol(f"d{term}_{k}") for k in range(MAX_DEGREE)))
        for term in range(MAX_ATOMS // MAX_DEGREE)
    ]
    with few_calls(1_000_000):
        assert sum(terms) > len(terms) - 1


@pytest.mark.parametrize(
    "text, found",
    [("s", ("s", 1)), ("8*s", ("s", 8)), ("4*s//3", None), ("s+1", None), ("s*s", None), ("s*t", None), ("-s", None)],
)
def test_a_size_is_a_multiple_of_a_symbol_only_if_it_is_one_for_every_value(text, found):
    assert multiple(parse(text, symbol)) == found
