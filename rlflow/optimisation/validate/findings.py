"""Findings: the results of a validation's checks, and texts about them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

import numpy as np

from rlflow.graph.typical import sizes_text

Kind = Literal["structure", "interface", "numerics", "receipt"]
KINDS = get_args(Kind)


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
      kind: the part of the validation to which the check belongs.
      ok: False if the check failed.
      message: the result in words.
      value: the relative error of a compared tensor; None for other checks.
      optimised: True if the models were run with ONNX Runtime's own optimisations.
      compared: False if the check compared nothing, so that it shows no equality.
      fixed: the symbolic dimensions of an input or output that the candidate accepts at one size only, as texts such as
        "batch = 1".
      sizes: symbol → size at which the check was made; empty if the check does not depend on sizes.
      note: a limit of the whole comparison in a few words, for the line `sure:` that commands print.
    """

    kind: Kind
    ok: bool
    message: str
    value: float | None = None
    optimised: bool = False
    compared: bool = True
    fixed: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    note: str = ""


@dataclass
class Findings:
    """The results of all checks of one validation, in the order of the checks."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return all(finding.ok for finding in self.findings)

    @property
    def max_error(self) -> float | None:
        """The largest relative error of all compared tensors; None if no float tensor was compared."""
        return max((f.value for f in self.findings if f.value is not None), default=None)

    @property
    def compared(self) -> bool:
        """True if at least one finding of kind "numerics" compared something."""
        return any(f.kind == "numerics" and f.compared for f in self.findings)

    def failures(self) -> list[Finding]:
        """Return the findings of the checks that failed."""
        return [finding for finding in self.findings if not finding.ok]

    @property
    def blames_onnxruntime(self) -> bool:
        """True if there are failures, and all of them occur only with ONNX Runtime's own optimisations."""
        return not self.ok and all(finding.optimised for finding in self.failures())

    def to_dict(self) -> dict:
        """Return the JSON-able dictionary {"ok", "max_error", "sizes": result of `at_sizes`, "findings"}.

        An infinite error becomes the text "inf".
        """
        findings = [asdict(f) | {"value": json_number(f.value)} for f in self.findings]
        sizes = [each | {"max_error": json_number(each["max_error"])} for each in self.at_sizes()]
        return {"ok": self.ok, "max_error": json_number(self.max_error), "sizes": sizes, "findings": findings}

    def at_sizes(self) -> list[dict]:
        """Return one dictionary per assignment of sizes to symbols, in the order of the checks.

        A dictionary holds `sizes` (symbol → size), `verdict` ("ok", "FAILED" or "not compared") and `max_error`.
        """
        seen: dict[str, Findings] = {}
        for finding in self.findings:
            if finding.sizes:
                seen.setdefault(sizes_text(finding.sizes), Findings()).findings.append(finding)
        result = []
        for there in seen.values():
            verdict = "FAILED" if not there.ok else "ok" if there.compared else "not compared"
            result.append({"sizes": there.findings[0].sizes, "verdict": verdict, "max_error": there.max_error})
        return result

    def in_short(self) -> str:
        """Return a summary as text: one line per kind of finding with counts, and one line per failure."""
        lines = []
        for kind in KINDS:
            of_kind = [finding for finding in self.findings if finding.kind == kind]
            if of_kind:
                verdicts = [verdict(asdict(finding)) for finding in of_kind]
                left = verdicts.count("not compared")
                beside = f", {left} could not be compared" if left else ""
                lines.append(f"{kind:10}  {verdicts.count('ok')} of {len(of_kind)} ok{beside}")
            lines += [f"{kind:10}  FAILED  {finding.message}" for finding in of_kind if not finding.ok]
        return "\n".join(lines)

    def __str__(self) -> str:
        """Return one line per finding with kind, verdict and message, ordered by kind."""
        ordered = sorted(self.findings, key=lambda finding: KINDS.index(finding.kind))
        return "\n".join(f"{f.kind:10}  {verdict(asdict(f)):12}  {f.message}" for f in ordered)


def verdict(finding: Mapping) -> str:
    """Return the verdict of one finding: "ok", "FAILED" or "not compared".

    Args:
      finding: a finding as a dictionary. Files of earlier versions lack the key `compared`, which then counts as True.
    """
    if not finding["ok"]:
        return "FAILED"
    return "ok" if finding.get("compared", True) else "not compared"


def checks_text(findings: Sequence[Mapping], what: str = "checks") -> str:
    """Return a text such as "12 checks passed, 2 could not be compared".

    Args:
      findings: findings as dictionaries.
      what: the plural noun for a check.
    """
    verdicts = [verdict(finding) for finding in findings]
    passed, left = verdicts.count("ok"), verdicts.count("not compared")
    return f"{passed} {what} passed" + (f", {left} could not be compared" if left else "")


def notes_text(findings: Sequence[Mapping]) -> str:
    """Return the limits of the comparison in words, such as "only 2 given input sets compared"; empty without limits.

    Args:
      findings: findings as dictionaries. Files of earlier versions lack the key `note`.
    """
    return ", ".join(dict.fromkeys(filter(None, (finding.get("note") for finding in findings))))


def not_comparable(outputs: Iterable[str]) -> str:
    """Return a text that says why outputs, which depend on random numbers, are not compared."""
    return f"{', '.join(outputs)} cannot be compared: the model draws random numbers"


def fixed_text(findings: Sequence[Mapping]) -> str:
    """Return a text such as "accepts only batch = 1" about the candidate; empty if no dimension is fixed.

    Args:
      findings: findings as dictionaries.
    """
    fixed = dict.fromkeys(size for finding in findings for size in finding.get("fixed", ()))
    return f"accepts only {', '.join(fixed)}" if fixed else ""


def equal_sizes_text(findings: Sequence[Mapping]) -> str:
    """Return a text such as "equal at 6 sizes (batch x seq): 1x128, 1x1, …; 2 not compared"; empty without symbols.

    Args:
      findings: findings as dictionaries.
    """
    there: dict[tuple, list[Mapping]] = {}
    for finding in findings:
        if finding.get("sizes"):
            there.setdefault(tuple(finding["sizes"].items()), []).append(finding)
    compared = []
    for sizes, seen in there.items():
        if all(finding["ok"] for finding in seen) and any(finding["compared"] for finding in seen):
            compared.append(sizes)
    if not compared:
        return ""
    names = " x ".join(name for name, _ in compared[0])
    listed = ", ".join("x".join(str(size) for _, size in sizes) for sizes in compared)
    left = len(there) - len(compared)
    count = f"{len(compared)} size" + "s" * (len(compared) > 1)
    return f"equal at {count} ({names}): {listed}" + (f"; {left} not compared" if left else "")


def json_number(value: float | None) -> float | str | None:
    """Return a finite number or None unchanged, and any other number as text ("inf", "nan"), which JSON can hold."""
    return value if value is None or np.isfinite(value) else str(value)
