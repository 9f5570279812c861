"""From an equality at one set of shapes and attributes to a rule: for which others does it hold?

Attributes of the side to match become names; those of the other side are looked for among a few expressions of them.
Both sides are then computed, exactly, for many shapes, ranks and attributes. Where the other side has another shape, or
does not fit an operator that ONNX checks, the engine refuses by itself. Where it has other values a condition must: of
the conjunctions of simple ones the one that lets most true cases through. What none separates is no rule.
"""

from collections.abc import Iterator

import numpy as np

from rlflow.rules.expressions import Unknown
from rlflow.rules.generator.attributes import DATA, WINDOWS, attribute_apart, name_attributes, with_names
from rlflow.rules.generator.conditions import Case, separating, stricter, untried
from rlflow.rules.generator.draws import draws
from rlflow.rules.generator.evaluation import holds, values_of
from rlflow.rules.generator.operators import Misfit, Term, variables
from rlflow.rules.generator.pattern import Pattern, labels_of, with_labels
from rlflow.rules.generator.targets import targets
from rlflow.rules.prover.points import CHECKED

SCREENED, PROMISING = 40, 4  # so many cases choose so many right sides


def generalise(
    source: tuple[Term, ...], target: tuple[Term, ...], shapes: dict[str, tuple[int, ...]], constants: tuple[str, ...]
) -> Pattern | None:
    """The rule from `source` to `target`, or None where no conditions make it true.

    Args:
      source, target: terms with attributes as numbers; equal at `shapes`.
      constants: the variables that are weights.
    """
    names = dict(zip(variables(*source), DATA, strict=False))
    if len(names) < len(variables(*source)):
        return None
    source, target = [_renamed(term, names) for term in source], [_renamed(term, names) for term in target]
    known = name_attributes(source)
    strange = [result for result in labels_of(target) if result.op in WINDOWS and ("rest", result) not in known.of]
    if strange:
        known = known._replace(apart=attribute_apart(strange, source))
        if known.apart is None:
            return None
    patterned = tuple(with_labels(term, lambda result: with_names(result, known)) for term in source)
    origin = {names[v]: shape for v, shape in shapes.items() if v in names}
    cases = list(draws(patterned, known, origin))
    if not cases:
        return None
    best, most = None, 0.0
    for candidate in _promising(targets(target, known, tuple(names.values()), cases[0][0]), cases):
        judged = _judge(candidate, cases)
        conditions = separating(judged, known, tuple(names.values()))
        if conditions is None:
            continue
        passed = [case for case in judged if all(holds(text, case.scope) for text in conditions)]
        conditions += untried(patterned, passed, conditions)
        kept = sum(case.holds for case in passed)
        if best is None or kept * 0.95 > most:  # a later candidate must hold in clearly more cases
            most = kept
            weights = tuple(sorted(names[v] for v in constants))
            ranks = tuple((v, len(shape)) for v, shape in origin.items())
            best = Pattern(patterned, candidate, conditions, weights, ranks, stricter(known, origin, cases[0][0]))
    return best


def _promising(candidates: Iterator[tuple[Term, ...]], cases: list[tuple]) -> list[tuple[Term, ...]]:
    """The few right sides that are equal in most of the first cases, the earlier ones first."""
    result = []
    for candidate in candidates:
        judged = _judge(candidate, cases[:SCREENED])
        if judged is not None:
            result.append((sum(case.holds for case in judged), candidate))
    result.sort(key=lambda pair: -pair[0])
    return [candidate for _, candidate in result[:PROMISING]]


def _renamed(term: Term, names: dict[str, str]) -> Term:
    if isinstance(term, str):
        return names[term]
    return term._replace(inputs=tuple(_renamed(child, names) for child in term.inputs))


def _judge(target: tuple[Term, ...], cases: list[tuple]) -> list[Case] | None:
    """The cases in which the target fits and has the same shapes; None if it is not equal in the original one."""
    judged = []
    for number, (scope, values) in enumerate(cases):
        try:
            result = values_of(target, scope)
        except Misfit as misfit:
            if number and misfit.op not in CHECKED:
                judged.append(Case(scope, False))
                continue
            result = None
        except (IndexError, Unknown):
            result = None
        if result is None or any(a.shape != b.shape for a, b in zip(result, values, strict=True)):
            if number == 0:
                return None
            continue
        judged.append(Case(scope, all(np.array_equal(a, b) for a, b in zip(result, values, strict=True))))
        if not judged[0].holds:
            return None
    return judged
