"""The result of a validation: one finding for everything that was looked at."""

from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

import numpy as np

Kind = Literal["structure", "interface", "numerics", "receipt"]
KINDS = get_args(Kind)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
      value: the relative error of an output where one was measured.
      optimised: whether it was seen with ONNX Runtime's own optimisations on.
    """

    kind: Kind
    ok: bool
    message: str
    value: float | None = None
    optimised: bool = False


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

    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.ok]

    @property
    def blames_onnxruntime(self) -> bool:
        """Whether all failures are only with ONNX Runtime's optimisations, and there are some: those are wrong then."""
        return not self.ok and all(finding.optimised for finding in self.failures())

    def to_dict(self) -> dict:
        """JSON-able: an infinite error becomes the text "inf"."""
        findings = [asdict(f) | {"value": _json_number(f.value)} for f in self.findings]
        return {"ok": self.ok, "max_error": _json_number(self.max_error), "findings": findings}

    def in_short(self) -> str:
        """A line for each kind, and for each finding that failed."""
        lines = []
        for kind in KINDS:
            of_kind = [finding for finding in self.findings if finding.kind == kind]
            if of_kind:
                lines.append(f"{kind:10}  {sum(finding.ok for finding in of_kind)} of {len(of_kind)} ok")
            lines += [f"{kind:10}  FAILED  {finding.message}" for finding in of_kind if not finding.ok]
        return "\n".join(lines)

    def __str__(self) -> str:
        """A line each, those of a kind together, those that failed marked."""
        ordered = sorted(self.findings, key=lambda finding: KINDS.index(finding.kind))
        return "\n".join(f"{f.kind:10}  {'ok    ' if f.ok else 'FAILED'}  {f.message}" for f in ordered)


def _json_number(value: float | None) -> float | str | None:
    return value if value is None or np.isfinite(value) else str(value)
