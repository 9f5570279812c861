"""What enumerated rules are called, and why: words made of their two sides."""

from collections import Counter
from collections.abc import Iterator
from itertools import count

from rlflow.rules.generator.operators import COMMUTATIVE, Node, Term, operators, variables
from rlflow.rules.generator.pattern import Pattern

NOUNS = {
    "Add": "sum", "Mul": "product", "Conv": "conv", "MatMul": "matmul", "Relu": "relu", "Concat": "concat",
    "Split": "split",
    "Transpose": "transpose", "Pad": "pad", "MaxPool": "maxpool", "AveragePool": "averagepool",
    "ReduceSum": "reducesum", "ReduceMean": "reducemean",
}  # fmt: skip
COUNTS = ("none", "one", "two", "three", "four", "five", "six")


def names_of(pattern: Pattern) -> Iterator[str]:
    """What is matched, in words (conv-by-sum is a convolution whose weight is a sum); then with what it becomes."""
    name, result = _side(pattern.source), _side(pattern.target)
    yield from (name, f"{name}-as-{result}")
    yield from (f"{name}-as-{result}-{number}" for number in count(2))


def _side(roots: tuple[Term, ...]) -> str:
    roots = list(dict.fromkeys(root[:2] for root in roots if isinstance(root, Node)))
    if not roots:
        return "input"
    if len(roots) == 1:
        return _phrase(Node(*roots[0]))
    result = [_phrase(Node(*root)) for root in roots]
    name = f"{COUNTS[len(roots)]}-{_plural(result[0])}" if len(set(result)) == 1 else "-beside-".join(result)
    shared = _shared(tuple(Node(*root) for root in roots))
    return f"{name}-sharing-{shared}" if shared else name


def _phrase(term: Node) -> str:
    noun = NOUNS[term.label.op]
    parts = [child for child in term.inputs if isinstance(child, Node)]
    if not parts:
        return noun
    if len(parts) == 2 and _phrase(parts[0]) == _phrase(parts[1]):
        shared = _shared(tuple(parts))
        return f"{noun}-of-{_plural(_phrase(parts[0]))}" + (f"-sharing-{shared}" if shared else "")
    if len(parts) == 2:
        return f"{noun}-of-{_phrase(parts[0])}-and-{_phrase(parts[1])}"
    right = term.label.op not in COMMUTATIVE and term.inputs[1:] == (parts[0],)
    return f"{noun}-{'by' if right else 'of'}-{_phrase(parts[0])}"


def _plural(phrase: str) -> str:
    noun, *rest = phrase.split("-")
    return "-".join([f"{noun}s", *rest])


def _shared(terms: tuple[Node, ...]) -> str | None:
    """Which operand the terms have in common."""
    binary = {"Conv": ("input", "weight"), "MatMul": ("left", "right")}
    if {term.label.op for term in terms} <= {"Add", "Mul"}:
        return "operand" if set.intersection(*(set(term.inputs) for term in terms)) else None
    for position in range(min(len(term.inputs) for term in terms)):
        if len({term.inputs[position] for term in terms}) == 1:
            return binary.get(terms[0].label.op, ("input",) * 2)[position]
    return None


def why(pattern: Pattern) -> str:
    """What becomes of the operators that run; those on weights only do not."""
    before, after = (_running(side, pattern.constants) for side in (pattern.source, pattern.target))
    if not after:
        return "they undo each other" if before.total() > 1 else "it does nothing"
    changed = [f"{_count(before[op], op)} {_become(before[op])} {_count(after[op], None)}" for op in (*before, *after)
               if before[op] and after[op] and before[op] != after[op]]  # fmt: skip
    changed = list(dict.fromkeys(changed))
    gone = [_count(before[op], op) for op in before if not after[op]]
    come = [_count(after[op], op) for op in after if not before[op]]
    if gone and come:
        changed.append(f"{_and(gone)} {_become(sum(before[op] for op in before if not after[op]))} {_and(come)}")
    elif gone:
        changed.append(f"{_and(gone)} {'is' if sum((before - after).values()) == 1 else 'are'} not needed")
    elif come:
        changed.append(f"with {_and(come)} to put the parts together")
    if changed:
        return ", ".join(changed)
    first, last = (
        next(root.label.op for root in side if isinstance(root, Node)) for side in (pattern.source, pattern.target)
    )
    return f"{last} after {first}" if first != last else "the same operators in another order"


def _running(side: tuple[Term, ...], constants: tuple[str, ...]) -> Counter:
    result = [op[0].op for op in sorted(operators(*side), key=repr) if not set(variables(*op[1])) <= set(constants)]
    return Counter(result)


def _count(number: int, op: str | None) -> str:
    if op is None:
        return COUNTS[number]
    if number > 1:
        return f"{COUNTS[number]} {op}s"
    return f"{'an' if op[0] in 'AEIOU' else 'a'} {op}"


def _become(number: int) -> str:
    return "becomes" if number == 1 else "become"


def _and(parts: list[str]) -> str:
    return " and ".join(parts)
