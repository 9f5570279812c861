"""Wrong variants of every shipped rule, and what the prover makes of each.

A variant differs from its rule in one place: a condition is dropped, two operands or outputs change places, an operator,
an operand or an attribute is lost, a list is reversed. The bar: none is proved unless its text says why it is equal.
"""

import ast
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.harness import bar, finish, parser
from rlflow.prover.prove import prove_rule
from rlflow.rules.expressions import compile_expression
from rlflow.rules.language import Literal, Op, Output, Rule, Var, load_rules, print_rule
from rlflow.rules.match import COMMUTATIVE

WANTED = 500
SECONDS = 6.0  # for one variant


def variants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """(what was changed, the variant), in a fixed order."""
    head, equation, *clauses = rule.text.split("\n  ")
    for k, clause in enumerate(clauses):
        if clause.startswith("if "):
            rest = clauses[:k] + clauses[k + 1 :]
            yield f"dropped: {clause}", replace(rule, text="\n  ".join([head, equation, *rest]))
    for what, target in targets(rule):
        yield what, replace(rule, target=target, text=print_rule(rule.name, rule.source, target, clauses))


def targets(rule: Rule) -> Iterator[tuple[str, tuple]]:
    names = [name for name, _ in rule.target]
    for a, b in itertools.combinations(range(len(names)), 2):
        patterns = [pattern for _, pattern in rule.target]
        patterns[a], patterns[b] = patterns[b], patterns[a]
        yield f"outputs {names[a]} and {names[b]} change places", tuple(zip(names, patterns, strict=True))
    for op in rule.target_ops:
        for what, other in changes(op):
            yield what, tuple((name, rewritten(pattern, op.key, other)) for name, pattern in rule.target)


def changes(op: Op) -> Iterator[tuple[str, object]]:
    """(what was changed, an operator or one of its inputs in its place)."""
    for a, b in itertools.combinations(range(len(op.inputs)), 2):
        inputs = list(op.inputs)
        inputs[a], inputs[b] = inputs[b], inputs[a]
        if op.op not in COMMUTATIVE and inputs[a] != inputs[b]:
            yield f"inputs {a} and {b} of {op.op} change places", op._replace(inputs=tuple(inputs))
    for k, pattern in enumerate(op.inputs):
        if k < 2 and isinstance(pattern, Output | Var):
            yield f"{op.op} is lost, its input {k} stays", pattern
        if isinstance(pattern, Literal) and pattern.text.startswith(("[", "(")):
            inputs = (*op.inputs[:k], literal(f"tuple({pattern.text})[::-1]"), *op.inputs[k + 1 :])
            yield f"{pattern.text} is reversed", op._replace(inputs=inputs)
    for k, (name, value) in enumerate(op.attributes):
        rest = op.attributes[:k] + op.attributes[k + 1 :]
        yield f"{name} of {op.op} is lost", op._replace(attributes=rest)
        if name == "axis" and isinstance(value, Literal):
            moved = (*rest, (name, literal(f"({value.text}) + 1")))
            yield f"axis of {op.op} is the next one", op._replace(attributes=moved)
    if op.rest is not None:
        yield f"**{op.rest} of {op.op} is lost", op._replace(rest=None)


def literal(text: str) -> Literal:
    return Literal(compile_expression(ast.parse(text, mode="eval").body, text), text)


def rewritten(pattern, key: int, other):
    """The pattern with the operator of that key replaced by another, or by a tensor."""
    if not isinstance(pattern, Output):
        return pattern
    if pattern.op.key == key:
        return Output(other, pattern.slot) if isinstance(other, Op) else other
    inputs = tuple(rewritten(i, key, other) for i in pattern.op.inputs)
    return pattern if inputs == pattern.op.inputs else Output(pattern.op._replace(inputs=inputs), pattern.slot)


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--rules", nargs="*", metavar="NAME", help="of these rules alone")
    made.add_argument("--each", type=int, default=4, metavar="N", help="at most so many variants of one rule")
    options = made.parse_args(arguments)
    counts, equal, open_ones, refuted = Counter(), [], [], []
    for rule in load_rules():
        if options.rules and rule.name not in options.rules:
            continue
        for what, variant in itertools.islice(variants(rule), options.each):
            proof = prove_rule(variant, SECONDS)
            counts[proof.proof] += 1
            record = {"rule": rule.name, "change": what, "how": proof.how}
            {"all-shapes": equal, "bounded": equal, "refuted": refuted}.get(proof.proof, open_ones).append(record)
            print(f"{proof.proof}: {rule.name}: {what}", file=sys.stderr, flush=True)
    total = sum(counts.values())
    figures = {"variants": total, "verdicts": dict(counts), "equal": equal, "unproved": open_ones, "refuted": refuted}
    rejected = counts["refuted"] + counts["unproved"]
    bars = [
        bar("variants", total, "variants", f"≥ {WANTED}", total >= WANTED),
        bar("rejected or equal", rejected + len(equal), "variants", "all", rejected + len(equal) == total),
    ]
    return finish("mutations", options, figures, bars)


if __name__ == "__main__":
    sys.exit(main())
