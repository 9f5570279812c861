"""Prove rewrite rules: show that both sides of a rule compute the same numbers.

`prove_rule` first tries a proof for all shapes (rlflow.proving.all_shapes), then a proof for all shapes up to a bound
(rlflow.proving.bounded). A rule that neither method proves is not shipped.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor

from rlflow.common.errors import RLFlowError
from rlflow.proving.all_shapes import Opaque, Outcome, Symbolic, prove_all_shapes
from rlflow.proving.bounded import Refuted, prove_bounded
from rlflow.proving.cases import needs_integer_proof
from rlflow.proving.decisions import Budget, Undefined, Unprovable
from rlflow.proving.draws import coverage
from rlflow.proving.written_out import WrittenOut
from rlflow.rules.proofs import Proof
from rlflow.rules.rule import Rule

QUESTIONS = 40_000  # largest number of z3 queries per rule, once with opaque windows and once with explicit ones
WINDOWED = frozenset(("Conv", "ConvTranspose", "FusedConv", "MaxPool", "AveragePool"))


def prove_rule(rule: Rule) -> Proof:
    """Prove one rule from scratch.

    Returns:
      the proof. Only its field `seconds` differs between machines.
    """
    start = time.process_time()

    def result(proof: str, bound: str, how: str) -> Proof:
        return Proof(rule.name, proof, bound, round(time.process_time() - start, 2), how)

    readings = (True, False) if needs_integer_proof(rule) else (True,)
    windowed = {op.op for op in (*rule.ops, *rule.target_ops)} & WINDOWED
    outcome = Outcome("unproved", 0, "")
    kinds = (WrittenOut,) if "array(" in rule.text else (Opaque, Symbolic) if windowed else (Symbolic,)
    for kind in kinds:
        outcome = prove_all_shapes(rule, readings, kind, Budget(QUESTIONS))
        if outcome.proof != "unproved":
            return result(outcome.proof, f"{coverage(rule)}: {outcome.cases} cases", outcome.how)
    try:
        bound, cases = prove_bounded(rule, readings)
    except Refuted as answer:
        return result("refuted", "", str(answer))
    except (Unprovable, TimeoutError, Undefined) as failure:
        return result("unproved", "", f"{outcome.how}; within bounds: {failure or 'too much work'}")
    return result("bounded", f"{bound}: {cases} cases", "every case written out, equal normal forms")


def prove(
    rules: Iterable[Rule], names: list[str] | None = None, workers: int = 1, progress: Callable | None = None
) -> list[Proof]:
    """Prove rules from scratch, in the order of the rules.

    Args:
      rules: the rules to choose from.
      names: the names of the rules to prove; None or empty for all rules.
      workers: the number of processes; 0 for one process per core.
      progress: called with each proof, in the order of the rules.

    Returns:
      one proof per chosen rule.

    Raises:
      RLFlowError: if `names` contains a name that no rule has.
    """
    rules = list(rules)
    unknown = set(names or ()) - {rule.name for rule in rules}
    if unknown:
        raise RLFlowError(f"no rule is named '{sorted(unknown)[0]}'")
    chosen = [rule for rule in rules if not names or rule.name in names]
    if workers == 1 or len(chosen) == 1:
        return [_reported(proof, progress) for proof in map(prove_rule, chosen)]
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers or os.cpu_count(), context, _inherit_rules, (chosen,)) as pool:
        return [_reported(proof, progress) for proof in pool.map(_prove_inherited, range(len(chosen)))]


def _reported(proof: Proof, progress: Callable | None) -> Proof:
    if progress:
        progress(proof)
    return proof


_inherited: list[Rule] = []  # Rules hold closures: a forked process inherits them, but cannot receive them.


def _inherit_rules(rules: list[Rule]) -> None:
    _inherited[:] = rules


def _prove_inherited(position: int) -> Proof:
    return prove_rule(_inherited[position])
