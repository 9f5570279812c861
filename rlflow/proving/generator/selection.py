"""Select the enumerated rules to write: proved rules whose equations no hand-written family contains."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import permutations, product

from rlflow.common.errors import RLFlowError
from rlflow.proving.generator.operators import COMMUTATIVE, Node, Pattern, Term, label, operators, rename, variables
from rlflow.proving.generator.text import names_of, rule_text
from rlflow.proving.prove import prove
from rlflow.rules.language import families, load_rules, parse
from rlflow.rules.patterns import Literal, Output, Star, Var
from rlflow.rules.rule import Rule, RuleSet

FAMILY = "generated"
FIRST_INPUT = frozenset(("Split", "Pad", "ReduceSum", "ReduceMean"))  # operators with only one input in the generator
MOST_CONDITIONS = 4  # largest number of conditions of a written rule
REPAIRED = ("refuted", "bounded")  # results of proofs after which a rule is tried again with further conditions
MOST_REPAIRED = 3  # largest number of operators in the source of a rule that is tried again
LEVELS = 6  # largest number of attempts to prove a rule, each with other conditions
HEADER = "# Rules found by enumeration (run.py rules enumerate), not written by hand.\n"


def handwritten_rules() -> RuleSet:
    """Return the rules of all families except the family `generated`."""
    return load_rules([name for name in families() if name != FAMILY])


def write(patterns: Iterable[Pattern], known: RuleSet, reasons: Counter, workers: int = 1) -> str:
    """Return the text of the rules file with all enumerated rules that are new and proved.

    Args:
      patterns: the enumerated rules; rules that differ only in the names of variables count once.
      known: rules whose equations are not written again.
      reasons: the number of rules that were not written, by reason; updated in place.
      workers: the number of processes that prove rules.
    """
    taken: dict = {canonical_equation(rule): f"{rule.name} ({rule.family}.rules)" for rule in known}
    names, chosen, elsewhere = {rule.name for rule in known}, [], set()
    for pattern in patterns:
        if (reason := too_special(pattern)) is not None:
            reasons[reason] += 1
            continue
        equation = canonical_equation(pattern)
        if equation in taken:
            reasons["written by hand" if taken[equation] else "another rule in other letters"] += 1
            elsewhere |= {taken[equation]} - {None}
            continue
        name = next(name for name in names_of(pattern) if name not in names)
        try:
            rule_text(pattern, name)
        except RLFlowError as error:
            reasons[str(error).partition(": ")[2]] += 1
            continue
        taken[equation] = None
        names.add(name)
        chosen.append((name, pattern))
    notes = [f"#   {line}\n" for line in sorted(elsewhere)]
    if notes:
        notes = ["# Also found, but already in a hand-written family with its own conditions:\n", *notes]
    return "\n".join(["".join([HEADER, *notes]), *_proved(chosen, reasons, workers)])


def too_special(pattern: Pattern) -> str | None:
    """Return the reason why a rule is too special for exported models, or None."""
    if len(pattern.conditions) > MOST_CONDITIONS:
        return "too many conditions"
    if any(op.op == "Pad" for op, _ in operators(*pattern.source)):
        return "a padded kernel is matched"
    convolved = [inputs for op, inputs in operators(*pattern.source, *pattern.target) if op.op == "Conv"]
    if any(set(variables(image)) <= set(pattern.constants) for image, _ in convolved):
        return "a constant image is convolved"
    images, kernels = ({v for inputs in convolved for v in variables(inputs[position])} for position in (0, 1))
    for text in pattern.conditions:
        compared = set(re.findall(r"shape\((\w)\)", text))
        if compared & images and compared & kernels:
            return "an image is compared with a kernel"
    return None


def _proved(chosen: list[tuple[str, Pattern]], reasons: Counter, workers: int) -> list[str]:
    """Return the texts of the rules that are proved for all shapes.

    A rule that is refuted or has only a bounded proof is tried again with further conditions. A bounded proof does not
    suffice, because the equality was found with small shapes and may hold for small shapes only.

    Args:
      chosen: (name, rule) pairs.
      reasons: the number of rules that were not written, by reason; updated in place.
      workers: the number of processes that prove rules.
    """
    proved: dict[str, str] = {}
    verdicts: dict[str, str] = {}
    tried = dict(chosen)
    for level in range(LEVELS):
        texts = {name: rule_text(pattern, name) for name, pattern in tried.items()}
        result = prove([parse(text, FAMILY)[0] for text in texts.values()], workers=workers) if texts else []
        verdicts |= {proof.name: proof.proof for proof in result}
        proved |= {proof.name: texts[proof.name] for proof in result if proof.proof == "all-shapes"}
        tried = {name: _stricter(pattern, level) for name, pattern in chosen if verdicts[name] in REPAIRED}
        tried = {name: pattern for name, pattern in tried.items() if pattern is not None}
    reasons.update(verdicts[name] for name, _ in chosen if name not in proved)
    return [proved[name] for name, _ in chosen if name in proved]


def _stricter(pattern: Pattern, level: int) -> Pattern | None:
    """Return the rule with the further conditions of a level, or None if it has no such level or is too large.

    The levels are, in this order: each alternative of `Pattern.stricter`, all alternatives but the first together, and
    the condition that each variable has the rank that it has in the original equality.
    """
    ranks = tuple(f"rank({v}) == {rank}" for v, rank in pattern.ranks if rank)
    levels = (*pattern.stricter, sum(pattern.stricter[1:], ()), ranks)
    if level >= len(levels) or len(operators(*pattern.source)) > MOST_REPAIRED:
        return None
    return pattern._replace(conditions=tuple(dict.fromkeys((*pattern.conditions, *levels[level]))))


# -- equations -------------------------------------------------------------------------------------


def canonical_equation(rule: Pattern | Rule) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Return the (source, target) of a rule in a standard form, which is equal for equal equations.

    The form ignores the names of variables, all attributes, and the order of outputs and of operands of Add and Mul.
    """
    if isinstance(rule, Pattern):
        sides = [tuple(map(_of_term, side)) for side in (rule.source, rule.target)]
    else:
        sides = [tuple(_of_rule(root) for _, root in side) for side in (rule.source, rule.target)]
    result = []
    for order in permutations(range(len(sides[0]))):
        target = [sides[1][k] for k in order]
        for source in product(*(_arrangements(sides[0][k]) for k in order)):
            names = {v: f"x{k}" for k, v in enumerate(variables(*source))}
            result.append((tuple(rename(t, names) for t in source), tuple(_sorted(rename(t, names)) for t in target)))
    return min(result, key=repr)


def _of_term(term: Term) -> Term:
    """Return a term of the generator without attributes."""
    return term if isinstance(term, str) else Node(label(term.label.op), tuple(map(_of_term, term.inputs)), term.slot)


def _of_rule(pattern) -> Term:
    """Return a pattern of the rule language as a term of the generator without attributes."""
    if not isinstance(pattern, Output):
        return pattern.name if isinstance(pattern, Var) else str(pattern)
    inputs = pattern.op.inputs[: 1 if pattern.op.op in FIRST_INPUT else None]
    parts = [part for child in inputs if not isinstance(child, Star | Literal) for part in _outputs(child)]
    if pattern.op.op == "Concat" and len(parts) == 1 < len(inputs):
        return _of_rule(parts[0])  # A Concat with one part stands for that part.
    return Node(label(pattern.op.op), tuple(map(_of_rule, parts)), pattern.slot or 0)


def _outputs(pattern) -> list:
    """Return [pattern], or two patterns with slots 0 and 1 for a pattern that stands for all outputs of a Split."""
    return (
        [pattern._replace(slot=k) for k in (0, 1)]
        if isinstance(pattern, Output) and pattern.slot is None
        else [pattern]
    )


def _arrangements(term: Term) -> Iterator[Term]:
    """Yield the term with each combination of orders of the operands of Add and Mul."""
    if isinstance(term, str):
        yield term
        return
    for children in product(*map(_arrangements, term.inputs)):
        yield term._replace(inputs=children)
        if term.label.op in COMMUTATIVE and len(children) == 2:
            yield term._replace(inputs=children[::-1])


def _sorted(term: Term) -> Term:
    """Return the term with the operands of Add and Mul sorted."""
    if isinstance(term, str):
        return term
    children = tuple(map(_sorted, term.inputs))
    return term._replace(inputs=tuple(sorted(children, key=repr)) if term.label.op in COMMUTATIVE else children)
