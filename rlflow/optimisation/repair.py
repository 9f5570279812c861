"""Repair a candidate whose outputs differ from the original's: find the rewrites at fault and leave them out.

Rewrites that trigger a known fault of ONNX Runtime are left out first. They are recognised in the graph, without a run
(`rlflow.optimisation.validate.known_faults`). If outputs still differ, bisection finds a rewrite with equal outputs
before it and different outputs after it. The candidate is then repeated without this rewrite and without the later
rewrites whose match no longer exists.

ONNX Runtime is at fault if outputs differ only with its own optimisations. Otherwise the rule is at fault, which is
rare because rules are proved. `write_fault_report` lists the rewrites at fault, with the error after each.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rlflow.common.files import write_text
from rlflow.common.messages import escaped, markdown_table
from rlflow.env.state import RewriteState, Task
from rlflow.optimisation.ablation import Chain, Rewrites
from rlflow.optimisation.validate.findings import Findings
from rlflow.optimisation.validate.known_faults import ONNXRUNTIME, known_faults, named
from rlflow.rules.language import RuleSet

MAX_FAULTS = 8  # largest number of bisections; then only the rewrites up to the last graph with equal outputs are kept
MAX_FAULTS_OF_RULE = 2  # number of faulty rewrites of a rule after which all its rewrites are left out
SAME_RULE = "its rule was at fault twice"


@dataclass(frozen=True)
class LeftOut:
    """A rewrite that was left out of a candidate.

    Attributes:
      step: the position of the rewrite among the candidate's rewrites, counted from 0.
      rule: the name of the rule.
      location: the location of the rewrite before any rewrite was left out.
      blame: "rule" or "onnxruntime", whichever is at fault. "needed" means that the rewrite is not known to be at
        fault: its match needed a left-out rewrite, or the rewrite was not tried.
      message: the error after the rewrite; with "needed" the reason why the rewrite was left out.
    """

    step: int
    rule: str
    location: int
    blame: str
    message: str


class Repaired(NamedTuple):
    """A repaired candidate.

    Attributes:
      actions: the (xfer_id, location) pairs of the remaining rewrites.
      state: the state after the remaining rewrites.
      findings: the findings of the comparison of this state with the original.
      left_out: the rewrites that were left out, in the order of the candidate.
    """

    actions: list[tuple[int, int]]
    state: RewriteState
    findings: Findings
    left_out: list[LeftOut]


def repaired(
    task: Task, actions: Sequence[tuple[int, int]], compare: Callable[[RewriteState], Findings],
    end: float = math.inf,
) -> Repaired:  # fmt: skip
    """Leave out the rewrites after which the outputs of a candidate differ from the original's.

    If reading and writing the original already changes its outputs, all rewrites are left out.

    Args:
      task: the rewriting task of the original.
      actions: the candidate's rewrites as (xfer_id, location) pairs, valid from the initial state.
      compare: a function that compares the model of a state with the original.
      end: the value of time.monotonic() after which no search for a rewrite at fault begins or goes on. A rewrite at
        fault that is not found until then stays in the result. The findings of the result are then the failed ones of
        the last comparison, which may have compared only the first part of the rewrites.
    """
    repair = _Repair(task, actions)
    chain = repair.without_known_faults()
    findings = compare(chain.state)
    if not findings.ok and time.monotonic() >= end:
        return repair.result(findings)
    if chain.steps and not findings.ok and not (as_read := compare(task.initial)).ok:
        repair.keep(0, chain, f"reading and writing the original already changes it: {as_read.failures()[0].message}")
        return repair.result(as_read)
    for _ in range(MAX_FAULTS):
        if findings.ok or not chain.steps:
            return repair.result(findings)
        equal, wrong = 0, len(chain.steps)
        while wrong - equal > 1:
            if time.monotonic() >= end:
                return repair.result(findings)
            middle = (equal + wrong) // 2
            result = compare(chain.state_after(middle))
            equal, wrong, findings = (middle, wrong, findings) if result.ok else (equal, middle, result)
        repair.blame(
            chain.steps[wrong - 1],
            "onnxruntime" if findings.blames_onnxruntime else "rule",
            findings.failures()[0].message,
        )
        before, chain = chain, repair.without_known_faults()
        findings = compare(chain.state)
    if not findings.ok:
        repair.keep(equal, before, f"{MAX_FAULTS} rewrites before it were to blame already")
        findings = compare(repair.chain().state)
    return repair.result(findings)


class _Repair:
    """The rewrites of one candidate and the rewrites that are left out so far.

    Attributes:
      task: the rewriting task of the original.
      rewrites: all rewrites of the candidate.
      out: position of a left-out rewrite in the candidate → its description.
      known: name of a known fault → how often the original already triggers it.
    """

    def __init__(self, task: Task, actions: Sequence[tuple[int, int]]):
        self.task, self.rewrites = task, Rewrites(task, actions)
        self.out: dict[int, LeftOut] = {}
        self.known = known_faults(task.graph, task.sizes)

    def chain(self) -> Chain:
        """Repeat the candidate without the rewrites that are left out so far."""
        return self.rewrites.without(self.out)

    def without_known_faults(self) -> Chain:
        """Leave out rewrites until the last graph triggers no known fault more often than the original does; return the
        chain of the other rewrites.
        """
        while self._known_fault((chain := self.chain()).state):
            without, faulty = 0, len(chain.steps)  # numbers of steps; the original has no additional fault
            while faulty - without > 1:
                middle = (without + faulty) // 2
                is_faulty = self._known_fault(chain.state_after(middle))
                without, faulty = (without, middle) if is_faulty else (middle, faulty)
            self._leave_out(chain.steps[without], "onnxruntime", self._known_fault(chain.state_after(faulty)))
        return chain

    def _known_fault(self, state: RewriteState) -> str:
        """Return the known faults that a state triggers more often than the original, as text; "" for none."""
        new = known_faults(state.graph, self.task.sizes) - self.known
        return "; ".join(f"{name} of ONNX Runtime {ONNXRUNTIME}: {named(name).what}" for name in sorted(new))

    def blame(self, step: int, blame: str, message: str) -> None:
        """Leave out a rewrite; after MAX_FAULTS_OF_RULE faults of one rule, leave out all rewrites of the rule.

        Args:
          step: the position of the rewrite in the candidate.
          blame: "rule" or "onnxruntime".
          message: the error after the rewrite.
        """
        self._leave_out(step, blame, message)
        actions = self.rewrites.actions
        xfer_id = actions[step][0]
        blamed = sum(actions[other][0] == xfer_id and result.message != SAME_RULE for other, result in self.out.items())
        if blamed >= MAX_FAULTS_OF_RULE:
            for other, (rule, _) in enumerate(actions):
                if rule == xfer_id and other not in self.out:
                    self._leave_out(other, blame, SAME_RULE)

    def keep(self, count: int, chain: Chain, message: str) -> None:
        """Keep the first rewrites of a chain and leave out the later ones.

        Args:
          count: the number of rewrites to keep.
          chain: the chain.
          message: the reason, as text.
        """
        for step in chain.steps[count:]:
            if step not in self.out:
                self._leave_out(step, "needed", message)

    def _leave_out(self, step: int, blame: str, message: str) -> None:
        xfer_id, location = self.rewrites.actions[step]
        self.out[step] = LeftOut(step, self.task.rules[xfer_id].name, location, blame, message)

    def result(self, findings: Findings) -> Repaired:
        """Return the repaired candidate, in which all rewrites without a match are recorded as left out, too."""
        chain = self.chain()
        for step in range(len(self.rewrites.actions)):
            if step not in chain.steps and step not in self.out:
                self._leave_out(step, "needed", "it needed a rewrite that was left out")
        return Repaired(chain.actions, chain.state, findings, [self.out[step] for step in sorted(self.out)])


def write_fault_report(
    path: Path, model: str, machine: str, versions: dict[str, str], candidates: dict[str, dict], rules: RuleSet
) -> None:
    """Write a report of the rewrites at fault for the maintainers; of the model it contains only the name.

    Args:
      path: the Markdown file to write.
      model: the name of the model.
      machine: a description of the machine.
      versions: package → version.
      candidates: the entry `candidates` of the result of `rlflow.optimisation.delivery.deliver`. Candidates without a
        rewrite at fault are skipped.
      rules: the rule set; the report shows the texts of the rules of these rewrites.
    """
    sections = [
        f"# Rewrites after which {model} was not equal",
        "They were left out. ONNX Runtime is at fault (`onnxruntime`) if outputs differ only with its own "
        "optimisations; otherwise the rule is.",
    ]
    names = set()
    for name, result in candidates.items():
        blamed = [each for each in result["left_out"] if each["blame"] != "needed"]
        if blamed:
            rows = [
                (str(each["step"]), f"`{each['rule']}`", str(each["location"]), each["blame"], escaped(each["message"]))
                for each in blamed
            ]
            head = ("step", "rule", "location", "at fault", "error after it")
            others = len(result["left_out"]) - len(blamed)
            sections += [f"## Found by {name}", markdown_table(head, rows, numbers=(0, 2))]
            sections.append(f"{others} other rewrites needed these, or were not tried.")
            names.update(each["rule"] for each in blamed)
    texts = [f"```\n{rule.text}\n```" for rule in rules if rule.name in names]
    conditions = [f"- machine: {machine}", *(f"- {package} {version}" for package, version in versions.items())]
    sections += ["## The rules", *texts, "## Conditions", "\n".join(conditions)]
    write_text(path, "\n\n".join(sections) + "\n")
