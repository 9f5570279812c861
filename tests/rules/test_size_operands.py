"""Test shape operands with symbols: the operators that compute these operands, and the shapes that no operators can
compute."""

import pytest

from rlflow.graph.dims import Undecided, symbol
from rlflow.rules.language import parse
from rlflow.rules.patterns import Literal, Output
from rlflow.rules.size_operands import computed_sizes

N, M, EMPTY = symbol("n"), symbol("m"), symbol("e", least=0)


def text(pattern) -> str:
    if isinstance(pattern, Output):
        return f"{pattern.op.op}({', '.join(map(text, pattern.op.inputs))})"
    return str(list(pattern.compute({}))) if isinstance(pattern, Literal) else pattern.name


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ((M,), "Slice(Shape(x), [2], [3])"),
        ((M, 5), "Concat(Slice(Shape(x), [2], [3]), [5])"),
        ((M - 2, 3 * N), "Concat(Add(Slice(Shape(x), [2], [3]), [-2]), Slice(Shape(y), [0], [1]))"),
        # One slice serves successive axes.
        ((1, 2, N + 1, M), "Concat([1, 2], Add(Slice(Shape(x), [1], [3]), [1, 0]))"),
    ],
)
def test_sizes_are_computed_from_shapes(sizes, expected):
    assert text(computed_sizes(sizes, {"x": (4, N, M), "y": (3 * N, 7)}, "Slice")) == expected


def test_a_proof_does_not_depend_on_how_a_list_is_computed():
    rule = "r: a test\n  Relu(x) => Relu(Slice(y, [0], {0}, [0]))\n  let y = Reshape(x, {1})"
    (one,), (other,) = (parse(rule.format(*lists), "toy") for lists in (
        ("computed(dim(x, 0))", "computed(2, *shape(x)[1:])"), ("[dim(x, 0)]", "[2, *shape(x)[1:]]")
    ))  # fmt: skip
    assert one.text == other.text and one.definition != other.definition


def test_a_size_that_is_no_symbol_plus_a_number_is_not_computed():
    with pytest.raises(Undecided, match="^2.n would have to be known"):
        computed_sizes((M, 2 * N), {"x": (N, M)}, "Slice")


def test_reshape_infers_one_size():
    shapes = {"x": (N, 4, M)}
    assert text(computed_sizes((4 * N, M), shapes, "Reshape")) == "Concat([-1], Slice(Shape(x), [2], [3]))"
    for sizes in ((4 * N, 3 * M), (4 * N, M, -1)):
        with pytest.raises(Undecided):
            computed_sizes(sizes, shapes, "Reshape")


def test_reshape_reads_no_size_that_may_be_zero():
    """A 0 in a Reshape means the size of the input, so a size that may be 0 is refused."""
    assert text(computed_sizes((EMPTY,), {"x": (EMPTY,)}, "Slice")) == "Slice(Shape(x), [0], [1])"
    with pytest.raises(Undecided):
        computed_sizes((EMPTY,), {"x": (EMPTY,)}, "Reshape")
