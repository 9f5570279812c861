"""Which inputs of an equality must be weights so that a direction of it pays."""

from itertools import combinations

from rlflow.rules.generator.operators import Node, Term, operators, variables

COSTLY = frozenset(("MatMul", "Conv"))


def paying(source: tuple[Term, ...], target: tuple[Term, ...]) -> tuple[str, ...] | None:
    """The fewest variables that must be weights so that `target` has no more operators to run; None if it never pays.

    One operator more is a stepping stone, unless it is a product. What is not under every output must be a weight.
    """
    names = variables(*source)
    if not set(variables(*target)) <= set(names):
        return None
    forced = set(names) - set.intersection(*(set(variables(root)) for root in source))
    if set(source) & {Node(*op) for op in operators(*target)}:
        return None  # the target has the source as a part
    for count in range(len(forced), min(max(3, len(forced) + 1), len(names))):
        for constants in combinations(names, count):
            if not forced <= set(constants):
                continue
            before, after = _run_ops(source, constants), _run_ops(target, constants)
            cheap = sum(op in COSTLY for op in after) <= sum(op in COSTLY for op in before)
            if before and (len(after) <= len(before) or (not count and cheap and len(after) == len(before) + 1)):
                return constants
    return None


def _run_ops(side: tuple[Term, ...], constants: tuple[str, ...]) -> list[str]:
    """The operators that are left to run when these variables are weights."""
    return [result.op for result, inputs in operators(*side) if not set(variables(*inputs)) <= set(constants)]
