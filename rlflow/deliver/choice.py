"""Which candidate is delivered: one that is shown to be faster; where nothing is shown, mostly the original.

A gain counts above the margin of a measurement (`rlflow.costs.measured.MARGIN`): two copies of one file differ by as
much now and then. For a loss there is no margin: an interval that lies wholly above 1, at any size, keeps a file from
being delivered, whatever else was asked for. Between the two nothing is shown, and a file that may be no faster is not
delivered, unless somebody accepts it (`eval.accept`), or it needs less memory while it runs or is smaller on disk, and
neither of the two is worse.

Without a measurement (`eval.measure_seconds` is 0, or the estimates are for another machine) the estimate is all there
is. It is trusted, and the reason says so.
"""

from collections.abc import Mapping, Sequence

from rlflow.deliver.candidates import Candidate
from rlflow.deliver.options import EQUAL

FAULT_REPORT = "fault-report.md"
LEAST_SAVING = 0.05  # of the memory or of the file; less is nobody's reason, nor are
LEAST_FILE = 100_000  # bytes on disk,
LEAST_MEMORY = 4_000_000  # or of memory: processes that run one file differ by 1.6 MB


def choose(
    original: Mapping, candidates: Sequence[Candidate], result: Mapping[str, Mapping], accept: str,
    target: str | None = None,
) -> tuple[str, str]:
    """(name of the candidate or "original", why).

    Args:
      original: `objective`, the estimate in picoseconds, and `file_bytes`.
      candidates: those that were checked.
      result: by name what is known of each: `equal`, `left_out`, `measured`, `file_bytes`.
      accept: see `eval.accept`.
      target: the other machine that the estimates are for, where nothing was measured.
    """
    better = [one for one in candidates if one.state.objective < original["objective"]]
    equal = sorted((one for one in better if result[one.name]["equal"]), key=lambda one: one.state.objective)
    if not equal:
        if better or any(result[one.name]["left_out"] for one in candidates):
            return "original", f"nothing that gains is equal to the original; {FAULT_REPORT} says why"
        return "original", "no gain was found"
    measured = {one.name: result[one.name]["measured"] for one in equal}
    lowest = "lowest estimated runtime of those that are equal"
    if not all(measured.values()):
        return equal[0].name, f"{lowest}{f' by the timings of {target}' if target else ''}; nobody measured it"
    faster = [one for one in equal if is_faster(measured[one.name])]
    if faster:
        return faster[0].name, f"{lowest} and measured to be faster"
    kept = [one for one in equal if not losses(measured[one.name])]
    if not kept:
        return "original", f"the candidates were estimated to be faster but measured to be slower{_where(measured)}"
    if accept == EQUAL:
        return kept[0].name, "no difference in speed is shown, and --accept equal takes that"
    for one in kept:
        saved = savings(original["file_bytes"], result[one.name])
        if saved:
            return one.name, f"no difference in speed is shown, but {' and '.join(saved)}"
    pairs = measured[kept[0].name]["pairs"]
    why = f"no difference in speed is shown in {pairs} pairs of runs"
    return "original", f"{why} (--accept equal would deliver {kept[0].name})"


def is_faster(measured: Mapping) -> bool:
    """Whether a file that was measured so is shown to be faster, and at no size to be slower."""
    return measured["verdict"] == "faster" and not losses(measured)


def losses(measured: Mapping) -> list[str]:
    """The names of the sizes at which the whole interval lies above 1; "" is all of them, or the only one."""
    figures = {"": measured} | measured.get("at", {})  # older results lack it
    return [name for name, there in figures.items() if there["interval"][0] > 1]


def savings(original_file_bytes: int, result: Mapping) -> list[str]:
    """What else is shown to be better, with its figures; empty where memory or file are worse.

    result: of a candidate that was measured, see `choose`.
    """
    measured = result["measured"]
    memory = measured["original_memory_bytes"], measured["candidate_memory_bytes"], LEAST_MEMORY
    file = original_file_bytes, result["file_bytes"], LEAST_FILE
    saved = []
    for what, (before, after, least) in {"less memory while it runs": memory, "a smaller file": file}.items():
        if before is None or after is None:  # the system does not say
            continue
        least = max(LEAST_SAVING * before, least)
        if after - before > least:
            return []
        if before - after > least:
            saved.append(f"{what} ({before / 1e6:.1f} → {after / 1e6:.1f} MB)")
    return saved


def _where(measured: Mapping[str, Mapping]) -> str:
    sizes = dict.fromkeys(name for one in measured.values() for name in losses(one) if name)
    return f" at {' and at '.join(sizes)}" if sizes else ""
