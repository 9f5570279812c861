"""Repair a candidate that is not equal to the original: find the rewrites at fault and leave them out.

A rewrite is at fault if the graph before it is equal to the original and the graph after it is not. Bisection finds it.
The candidate is then repeated without it and without the rewrites that matched its nodes. Rules are proved, so mostly
ONNX Runtime is at fault: outputs then differ only with its own optimisations. Known faults of ONNX Runtime are
recognised in the graph, without a run (`rlflow.optimisation.validate.known_faults`). A report beside the file names
each rewrite, the program at fault and the error. If no rewrite is left, the original is delivered, with exit status 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rlflow.common.files import write_text
from rlflow.common.messages import escaped
from rlflow.env.state import RewriteState, Task
from rlflow.optimisation.ablation import Chain, Rewrites
from rlflow.optimisation.validate.findings import Findings
from rlflow.optimisation.validate.known_faults import ONNXRUNTIME, known_faults, named
from rlflow.rules.language import RuleSet

MAX_FAULTS = 8  # largest number of faults found by runs; after that only the rewrites known to be equal are kept
MAX_FAULTS_OF_RULE = 2  # number of faulty rewrites of a rule after which all its rewrites are left out
SAME_RULE = "its rule was at fault twice"


@dataclass(frozen=True)
class LeftOut:
    """A rewrite that was left out.

    Attributes:
      step: its position among the candidate's rewrites, counted from 0.
      rule: the name of its rule.
      location: its location.
      blame: "rule" or "onnxruntime", the one at fault; "needed" for a rewrite that needed a left-out rewrite.
      message: the error after it.
    """

    step: int
    rule: str
    location: int
    blame: str
    message: str


class Repaired(NamedTuple):
    """A repaired candidate.

    Attributes:
      actions: the remaining (xfer_id, location) pairs.
      state: the state after them.
      findings: the comparison of this state with the original.
      left_out: the rewrites that were left out.
    """

    actions: list[tuple[int, int]]
    state: RewriteState
    findings: Findings
    left_out: list[LeftOut]


def repaired(task: Task, actions: Sequence[tuple[int, int]], compare: Callable[[RewriteState], Findings]) -> Repaired:
    """Leave out the rewrites that make a candidate unequal to the original.

    Args:
      task: the opened task.
      actions: valid (xfer_id, location) pairs.
      compare: compares the model of a state with the original.
    """
    repair = _Repair(task, actions)
    chain = repair.without_known_faults()
    findings = compare(chain.states[-1])
    if chain.steps and not findings.ok and not (as_read := compare(task.initial)).ok:
        repair.keep(0, chain, f"reading and writing the original already changes it: {as_read.failures()[0].message}")
        return repair.result(as_read)
    for _ in range(MAX_FAULTS):
        if findings.ok or not chain.steps:
            return repair.result(findings)
        equal, wrong = 0, len(chain.steps)
        while wrong - equal > 1:
            middle = (equal + wrong) // 2
            result = compare(chain.states[middle])
            equal, wrong, findings = (middle, wrong, findings) if result.ok else (equal, middle, result)
        repair.blame(
            chain.steps[wrong - 1],
            "onnxruntime" if findings.blames_onnxruntime else "rule",
            findings.failures()[0].message,
        )
        before, chain = chain, repair.without_known_faults()
        findings = compare(chain.states[-1])
    if not findings.ok:
        repair.keep(equal, before, f"{MAX_FAULTS} rewrites before it were to blame already")
        findings = compare(repair.chain().states[-1])
    return repair.result(findings)


class _Repair:
    def __init__(self, task: Task, actions: Sequence[tuple[int, int]]):
        self.task, self.rewrites = task, Rewrites(task, actions)
        self.out: dict[int, LeftOut] = {}
        self.known = known_faults(task.graph, task.sizes)

    def chain(self) -> Chain:
        """Return the candidate without the rewrites that are left out."""
        return self.rewrites.without(self.out)

    def without_known_faults(self) -> Chain:
        """Return the chain whose last graph triggers no known fault more often than the original."""
        while True:
            chain = self.chain()
            step = len(chain.steps)
            while self._known_fault(chain.states[step]):
                step -= 1  # ends at the original, which has no additional fault
            if step == len(chain.steps):
                return chain
            self._leave_out(chain.steps[step], "onnxruntime", self._known_fault(chain.states[step + 1]))

    def _known_fault(self, state: RewriteState) -> str:
        new = known_faults(state.graph, self.task.sizes) - self.known
        return "; ".join(f"{name} of ONNX Runtime {ONNXRUNTIME}: {named(name).what}" for name in sorted(new))

    def blame(self, step: int, blame: str, message: str) -> None:
        """Leave out a rewrite, and all rewrites of its rule if the rule is at fault repeatedly."""
        self._leave_out(step, blame, message)
        actions = self.rewrites.actions
        xfer_id = actions[step][0]
        blamed = sum(actions[other][0] == xfer_id and result.message != SAME_RULE for other, result in self.out.items())
        if blamed >= MAX_FAULTS_OF_RULE:
            for other, (rule, _) in enumerate(actions):
                if rule == xfer_id and other not in self.out:
                    self._leave_out(other, blame, SAME_RULE)

    def keep(self, count: int, chain: Chain, message: str) -> None:
        """Leave out all but the first `count` rewrites of a chain."""
        for step in chain.steps[count:]:
            if step not in self.out:
                self._leave_out(step, "needed", message)

    def _leave_out(self, step: int, blame: str, message: str) -> None:
        xfer_id, location = self.rewrites.actions[step]
        self.out[step] = LeftOut(step, self.task.rules[xfer_id].name, location, blame, message)

    def result(self, findings: Findings) -> Repaired:
        chain = self.chain()
        for step in range(len(self.rewrites.actions)):
            if step not in chain.steps and step not in self.out:
                self._leave_out(step, "needed", "it needed a rewrite that was left out")
        return Repaired(chain.actions, chain.states[-1], findings, [self.out[step] for step in sorted(self.out)])


def write_fault_report(
    path: Path, model: str, machine: str, versions: dict[str, str], candidates: dict[str, dict], rules: RuleSet
) -> None:
    """Write a report for maintainers, without the model, that can be read and sent.

    Args:
      path: the Markdown file.
      model: the name of the model.
      machine: a description of the machine.
      versions: package → version.
      candidates: `candidates` of `rlflow.optimisation.delivery.deliver`; those without left-out rewrites are skipped.
      rules: the rule set.
    """
    lines = [f"# Rewrites after which {model} was not equal", ""]
    lines += [
        "They were left out. ONNX Runtime is at fault (`onnxruntime`) if outputs differ only with its own "
        "optimisations; otherwise the rule is.",
        "",
    ]
    for name, result in candidates.items():
        blamed = [each for each in result["left_out"] if each["blame"] != "needed"]
        if blamed:
            lines += [
                f"## Found by {name}",
                "",
                "| step | rule | location | at fault | error after it |",
                "| ---: | --- | ---: | --- | --- |",
            ]
            lines += [
                f"| {each['step']} | `{each['rule']}` | {each['location']} | {each['blame']} "
                f"| {escaped(each['message'])} |"
                for each in blamed
            ]
            lines += [
                "",
                f"{len(result['left_out']) - len(blamed)} other rewrites needed these, or were not tried.",
                "",
            ]
    names = {each["rule"] for result in candidates.values() for each in result["left_out"] if each["blame"] != "needed"}
    lines += ["## The rules", ""]
    for rule in rules:
        if rule.name in names:
            lines += ["```", rule.text, "```", ""]
    lines += [
        "## Conditions",
        "",
        f"- machine: {machine}",
        *(f"- {package} {version}" for package, version in versions.items()),
    ]
    write_text(path, "\n".join(lines) + "\n")
