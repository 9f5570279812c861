"""The result of a validation: one finding for everything that was looked at."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

import numpy as np

from rlflow.graph.typical import sizes_text

Kind = Literal["structure", "interface", "numerics", "receipt"]
KINDS = get_args(Kind)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
      value: the relative error of an output where one was measured.
      optimised: whether it was seen with ONNX Runtime's own optimisations on.
      compared: False where nothing was compared, so that nothing was shown either, though nothing failed.
      fixed: symbolic dimensions that the candidate takes at one size only, "batch = 1".
      sizes: symbol → size at which it was seen; empty where the model has no symbols, or for what no size matters to.
    """

    kind: Kind
    ok: bool
    message: str
    value: float | None = None
    optimised: bool = False
    compared: bool = True
    fixed: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass
class Findings:
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    @property
    def max_error(self) -> float | None:
        """The largest relative error measured; None if nothing could be compared."""
        return max((f.value for f in self.findings if f.value is not None), default=None)

    @property
    def compared(self) -> bool:
        """Whether an output was compared at all."""
        return any(f.kind == "numerics" and f.compared for f in self.findings)

    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.ok]

    @property
    def blames_onnxruntime(self) -> bool:
        """Whether all failures are only with ONNX Runtime's optimisations, and there are some: those are wrong then."""
        return not self.ok and all(finding.optimised for finding in self.failures())

    def to_dict(self) -> dict:
        """JSON-able: an infinite error becomes the text "inf". `sizes` says of each size how it went there."""
        findings = [asdict(f) | {"value": json_number(f.value)} for f in self.findings]
        sizes = [each | {"max_error": json_number(each["max_error"])} for each in self.at_sizes()]
        return {"ok": self.ok, "max_error": json_number(self.max_error), "sizes": sizes, "findings": findings}

    def at_sizes(self) -> list[dict]:
        """For each size, in the order in which they were looked at: its `sizes`, `verdict` and `max_error`."""
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
        """A line for each kind, and for each finding that failed."""
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
        """A line each, those of a kind together, those that failed marked."""
        ordered = sorted(self.findings, key=lambda finding: KINDS.index(finding.kind))
        return "\n".join(f"{f.kind:10}  {verdict(asdict(f)):12}  {f.message}" for f in ordered)


def verdict(finding: Mapping) -> str:
    """ok, FAILED or not compared. Results of earlier versions do not say what was compared: all of it, then."""
    if not finding["ok"]:
        return "FAILED"
    return "ok" if finding.get("compared", True) else "not compared"


def checks_text(findings: Sequence[Mapping], what: str = "checks") -> str:
    """How many passed, and how many could not be compared."""
    verdicts = [verdict(finding) for finding in findings]
    passed, left = verdicts.count("ok"), verdicts.count("not compared")
    return f"{passed} {what} passed" + (f", {left} could not be compared" if left else "")


def fixed_text(findings: Sequence[Mapping]) -> str:
    """Which sizes alone the candidate takes; empty where it takes all that the original does."""
    fixed = dict.fromkeys(size for finding in findings for size in finding.get("fixed", ()))
    return f"takes {', '.join(fixed)} only" if fixed else ""


def equal_sizes_text(findings: Sequence[Mapping]) -> str:
    """At which sizes outputs were equal, and at how many nothing was compared; empty for a model without symbols.

    "equal at 6 sizes (batch x seq): 1x128, 1x1, …".
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
    """The number; where JSON has none for it, "inf" or "nan"."""
    return value if value is None or np.isfinite(value) else str(value)
