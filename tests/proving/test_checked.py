"""Check that the planner refuses every misfit of an operator in CHECKED that its definition refuses."""

import itertools

import numpy as np
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.graph.dims import Undecided, symbol
from rlflow.graph.ir import TensorType
from rlflow.graph.shapes import infer_types, refused_at_some_size
from rlflow.proving.numbers import CHECKED, Invalid, floats
from rlflow.proving.semantics import outputs_of
from rlflow.proving.tensors import Attributes, Tensor, listed

FLOAT, INT64 = 1, 7
OPSETS = (13, 20, 23)
SHAPES = [(), (1,), (2,), (3,), (1, 3), (2, 3), (3, 2), (2, 1, 3), (2, 2, 3)]
LISTS = [list(some) for count in range(4) for some in itertools.product((-1, 0, 1, 2, 3), repeat=count)]
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Sum", "Max", "Min", "MatMul")

# Operators that CHECKED must not contain, and the requirement that the planner does not check.
NOT_ASKED = {
    "Expand": "sizes below 1",
    "Squeeze": "that some axis is named",
}


def uses(op: str):
    """Yield (inputs, attributes); a tuple is the shape of an input, a list is the content of an input."""
    if op in BINARY:
        yield from (([a, b], {}) for a, b in itertools.product(SHAPES, SHAPES))
    elif op == "Concat":
        for a, b, axis in itertools.product(SHAPES[1:], SHAPES[1:], (0, -1, 1)):
            if -len(a) <= axis < len(a):
                yield [a, b], {"axis": axis}
    elif op == "Gemm":
        for a, b, c, left, right in itertools.product(SHAPES[3:7], SHAPES[3:8], SHAPES, (0, 1), (0, 1)):
            yield [a, b, c], {"transA": left, "transB": right}
    elif op == "Transpose":
        for a, count in itertools.product(SHAPES, range(4)):
            yield from (([a], {"perm": perm}) for perm in itertools.permutations(range(count)))
    elif op == "Split":
        yield from (([a, parts], {"axis": 0}) for a, parts in itertools.product(SHAPES[1:], LISTS) if len(parts) == 2)
    else:
        yield from (([a, content], {}) for a, content in itertools.product(SHAPES, LISTS))


def fits(op: str, inputs: list, attributes: dict) -> bool:
    """Return True if the definition of the operator accepts the inputs."""
    m = floats()
    tensors = [Tensor(i, lambda k: 1.0) if isinstance(i, tuple) else listed(m, tuple(i)) for i in inputs]
    try:
        outputs_of(m, op, Attributes(attributes), tensors)
    except Invalid:
        return False
    return True


def is_planned(op: str, inputs: list, attributes: dict, opset: int) -> bool:
    """Return True if the planner accepts the inputs."""
    kinds = [TensorType(FLOAT, i) if isinstance(i, tuple) else TensorType(INT64, (len(i),)) for i in inputs]
    values = [np.asarray(i, np.int64) if isinstance(i, list) else None for i in inputs]
    try:
        infer_types(op, "", opset, tuple(sorted(attributes.items())), kinds, values, 2 if op == "Split" else 1)
    except RLFlowError:
        return False
    return True


def misfits(op: str) -> list:
    """Return the uses that the definition refuses."""
    cases = list(uses(op))
    result = [(inputs, attributes) for inputs, attributes in cases if not fits(op, inputs, attributes)]
    assert 0 < len(result) < len(cases)
    return result


@pytest.mark.parametrize("op", sorted(CHECKED))
def test_operands_that_do_not_fit_are_refused_when_a_rule_is_planned(op):
    written = [case for case in misfits(op) for opset in OPSETS if is_planned(op, *case, opset)]
    assert not written, f"{len(written)} misfits of {op} are not refused, the first: {written[0]}"


N, M = symbol("n"), symbol("m")
# (operator, attributes, operands that fit at every size, operands that fit at some sizes only)
IN_SYMBOLS = [
    ("Add", {}, [(N, 4), (1, 4)], [(N, 4), (3, 4)]),
    ("Where", {}, [(4,), (N, 4), (N, 1)], [(3, 4), (N, 4), (1, 4)]),
    ("Concat", {"axis": 0}, [(1, N, 4), (2, N, 4)], [(1, N, 4), (2, 1, 4)]),
    ("Concat", {"axis": -1}, [(N, 4), (N, M)], [(N, 4), (M, 4)]),
    ("MatMul", {}, [(3, N), (N, 4)], [(3, N), (3, 4)]),
    ("MatMul", {}, [(N, 2, 3), (1, 3, 4)], [(N, 2, 3), (5, 3, 4)]),
    ("Gemm", {"transB": 1}, [(3, N), (4, N)], [(3, N), (4, 5)]),
    ("Split", {"axis": 0}, [(2 * N, 3)], [(N, 3), [2, 3]]),
]  # fmt: skip


@pytest.mark.parametrize("op, attributes, fitting, others", IN_SYMBOLS)
def test_operands_that_fit_at_some_sizes_only_are_refused_when_a_rule_is_planned(op, attributes, fitting, others):
    assert refused_in_symbols(op, attributes, fitting) is None
    with pytest.raises(Undecided):
        refused_in_symbols(op, attributes, others)


def refused_in_symbols(op: str, attributes: dict, inputs: list) -> str | None:
    """Return the reason why the planner refuses symbolic shapes, or None."""
    kinds = [TensorType(FLOAT, i) if isinstance(i, tuple) else TensorType(INT64, (len(i),)) for i in inputs]
    values = [np.asarray(i, np.int64) if isinstance(i, list) else None for i in inputs]
    if op == "Where":
        kinds[0] = kinds[0]._replace(dtype=9)
    outputs = infer_types(op, "", 13, tuple(attributes.items()), kinds, values, 2 if op == "Split" else 1)
    return refused_at_some_size(op, attributes, kinds, outputs)


@pytest.mark.parametrize("op", NOT_ASKED)
def test_operators_exempt_from_the_check_are_planned_although_operands_do_not_fit(op):
    assert op not in CHECKED
    assert any(is_planned(op, *case, OPSETS[0]) for case in misfits(op)), f"planning asks {NOT_ASKED[op]} of {op} now"


@pytest.mark.parametrize("shape, axis", [((), 0), ((), -1), ((2, 2), -3), ((2, 2), 2)])
@pytest.mark.parametrize(
    "op, others",
    [("Concat", [(2, 2)]), ("Split", [[1, 1]]), ("Gather", [[0]]), ("Softmax", []), ("LayerNormalization", [(2,)])],
)
def test_an_invalid_axis_is_refused(op, others, shape, axis):
    assert not fits(op, [shape, *others], {"axis": axis})
