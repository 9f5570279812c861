"""A rule in numbers: one case with sizes that are given and elements that are drawn; a difference refutes the rule."""

import itertools
import math
import random

from rlflow.rules.prover.cases import Case
from rlflow.rules.prover.interrupts import NotHere
from rlflow.rules.prover.numbers import Invalid, Numbers, floats
from rlflow.rules.prover.picks import Picks
from rlflow.rules.prover.semantics import Tensor
from rlflow.rules.rule import Rule

TOLERANCE = 1e-6
# Operators of which planning refuses inputs that do not fit (rlflow.graph.shapes.infer_types).
CHECKED = frozenset((
    "Add", "Sub", "Mul", "Div", "Pow", "Sum", "Max", "Min", "MatMul", "Concat", "Split", "Reshape", "Unsqueeze", "Gemm",
    "Transpose",
))  # fmt: skip


class Numeric(Picks, Numbers):
    """A case in numbers: its sizes are given, its elements random."""

    def __init__(self, picks: dict, sizes: dict[str, int], seed: int):
        base = floats()
        super().__init__(base.read, base.functions)
        self.picks, self.sizes, self.random, self.elements = dict(picks), sizes, random.Random(seed), {}
        self.positive = seed % 2 == 0

    def symbol(self, name: str, least: int | None = 1) -> int:
        return self.sizes.get(name, 1 if least is None else max(least, 1))

    def element(self, name: str, index: tuple):
        if (name, index) not in self.elements:
            drawn = self.random.randint(1, 9) / 4
            sign = 1 if self.positive or self.random.random() < 0.5 else -1
            self.elements[name, index] = self.read(sign * drawn)
        return self.elements[name, index]


def evaluate(rule: Rule, world: Numeric, is_float: bool) -> str | None:
    """A difference of the two sides in words; None if they are equal. Raises Invalid, NotHere where none is defined."""
    case = Case(rule, world, is_float)
    source = case.source()
    if not case.fires():
        raise NotHere
    wanted = [_all_elements(t) for t in source]
    try:
        target = case.target()
        if [t.shape for t in source] != [t.shape for t in target]:
            raise NotHere
        result = [_all_elements(t) for t in target]
    except Invalid as error:
        if world.operator in CHECKED:
            raise
        return _shown(case, f"the right side is not defined ({world.operator})", str(error))
    for left, right in zip(wanted, result, strict=True):
        for index, value in left.items():
            if not _equal(value, right[index]):
                return _shown(case, f"element {list(index)} is {float(value):.6g}", f"{float(right[index]):.6g}")
    return None


def _all_elements(tensor: Tensor) -> dict[tuple, float]:
    return {index: tensor.at(index) for index in itertools.product(*map(range, tensor.shape))}


def _equal(a, b) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _shown(case: Case, left: str, right: str) -> str:
    tensors = []
    for name, tensor in sorted(case.tensors.items()):
        for t in tensor if isinstance(tensor, list) else [tensor]:
            tensors.append(
                f"{name}: {list(t.content) if t.content is not None else 'x'.join(map(str, t.shape)) or 'scalar'}"
            )
    values = [f"{name}={value}" for name, value in sorted(case.attributes.items()) if not hasattr(value, "spec")]
    values += [
        f"{rest.op}.{key}={rest[key]}"
        for rest in case.attributes.values()
        if hasattr(rest, "spec")
        for key in rest.keys()
    ]
    return f"{', '.join([*tensors, *values])}: left {left}, right {right}"
