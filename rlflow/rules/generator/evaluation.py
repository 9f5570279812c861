"""The values of terms whose attributes are texts, and of conditions, where the names stand for shapes and numbers."""

import ast
from functools import cache
from types import SimpleNamespace

import numpy as np

from rlflow.graph.model import Constant, TensorType
from rlflow.rules.expressions import Tensor, Unknown, compile_expression
from rlflow.rules.generator.attributes import SIZES
from rlflow.rules.generator.operators import Label, Misfit, Term, outputs


def values_of(terms: tuple[Term, ...], scope: dict) -> list[np.ndarray]:
    """The values of terms with named attributes: int64 [samples, *shape].

    Raises Misfit, and IndexError where an expression has no value.
    """
    filled: dict[Label, Label] = {}
    known: dict[tuple, tuple] = {}

    def run(term: Term) -> np.ndarray:
        if isinstance(term, str):
            return scope[term]
        if term[:2] not in known:
            if term.label not in filled:
                filled[term.label] = with_numbers(term.label, scope)
            known[term[:2]] = outputs(filled[term.label], [run(child) for child in term.inputs])
        result = known[term[:2]]
        if term.slot >= len(result):
            raise Misfit
        return result[term.slot]

    return [run(term) for term in terms]


def with_numbers(result: Label, scope: dict) -> Label:
    """The label with numbers for its attributes; those that are named beside a window's rest count first."""
    named = {name: evaluated(value.text, scope) for name, value in result.attributes if name != "rest"}
    if result.get("rest") is not None:
        for name, value in named.items():
            named[name] = tuple(value) if isinstance(value, list) else value
        named = dict(scope[result.get("rest").text]) | named
    return Label(result.op, tuple(named.items()))


@cache
def compiled(text: str):
    return compile_expression(ast.parse(text, mode="eval").body, "generated")


def evaluated(text: str, scope: dict):
    """The value of an expression. Raises IndexError where it has none."""
    if text in scope:
        return scope[text]
    return compiled(text)(Scope(scope))


class Scope(dict):
    """Variables as tensors of the rule language, sizes as its constants."""

    def __getitem__(self, name):
        result = super().__getitem__(name)
        if isinstance(result, np.ndarray):
            return SimpleNamespace(type=TensorType(1, result.shape[1:]))
        if name in SIZES and isinstance(result, tuple):
            return Tensor({0: Constant.of(np.array(result))}, 0)
        return result


def holds(text: str, scope: dict) -> bool:
    try:
        return bool(compiled(text)(Scope(scope)))
    except (Unknown, IndexError):
        return False


def gives(text: str, scope: dict, wanted) -> bool:
    """Whether the expression has the wanted value."""
    try:
        result = evaluated(text, scope)
        return (tuple(result) if isinstance(result, list) else result) == wanted
    except (Unknown, IndexError):
        return False
