"""Choose which candidate is delivered, and declare the options of `eval` and `optimise`.

A candidate is delivered if it is shown to be faster. A gain counts only above the margin of a measurement
(`rlflow.costs.measured.MARGIN`), because two copies of one file may differ by that much. A loss needs no margin: a
candidate whose whole confidence interval lies above 1, at any size, is never delivered. If neither is shown, the
original is delivered, unless `eval.accept=equal` accepts the candidate, or the candidate needs less memory or is a
smaller file and is not worse in the other respect.

Without a measurement (`eval.measure_seconds` is 0, or the estimates are for another machine) the estimate decides,
and the reason says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlflow.common.options import option
from rlflow.optimisation.candidates import Candidate

FASTER, EQUAL = "faster", "equal"  # what is accepted: what is shown to be faster; also what is no different


@dataclass(frozen=True)
class OptimiseOptions:
    """`python run.py optimise`."""

    seconds: float | None = option(None, "for the whole command; null: 120, and 900 where it learns")
    learn: bool = option(False, "after the searches a controller learns in the dream and acts on the real graph")
    receipt: str | None = option(
        None, "receipt of the same model at another size or with other weights: its rewrites are carried out first"
    )
    controller: str | None = option(
        None, "folder of a trained controller that sees candidates, whatever model it learnt on: it acts first"
    )


@dataclass(frozen=True)
class EvalOptions:
    """Acting on the real graph, its controls, and the check of what comes out."""

    samples: int = option(8, "sampled episodes on the real graph besides the greedy one", at_least=0)
    greedy_steps: int = option(500, "rewrites that the greedy control may apply", at_least=0)
    greedy_seconds: float = option(60.0, "and for how long", at_least=0)
    measure_seconds: float = option(10.0, "end-to-end timing of each candidate; 0 leaves it out", at_least=0)
    sessions: int = option(6, "pairs of ONNX Runtime sessions")
    accept: str = option(
        FASTER,
        "what is delivered: faster (what is shown to be faster, or else to need less memory or a smaller file) or "
        "equal (also that of which no difference in speed is shown); never what is shown to be slower",
        choices=(FASTER, EQUAL),
    )
    seeds: tuple[int, ...] = option(
        (0, 1, 2), "seeds of the inputs that outputs are compared on", at_least=0, distinct=True
    )
    tolerance: float = option(0.0001, "largest relative error of an output, in units of its largest value")


FAULT_REPORT = "fault-report.md"
LEAST_SAVING = 0.05  # of the memory or of the file; less is nobody's reason, nor are
LEAST_FILE_BYTES = 100_000  # bytes on disk,
LEAST_MEMORY_BYTES = 4_000_000  # or of memory: processes that run one file differ by 1.6 MB


def choose(
    original: Mapping,
    candidates: Sequence[Candidate],
    result: Mapping[str, Mapping],
    accept: str,
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
        return (
            "original",
            f"the candidates were estimated to be faster but measured to be slower{_sizes_with_losses(measured)}",
        )
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
    memory = measured["original_memory_bytes"], measured["candidate_memory_bytes"], LEAST_MEMORY_BYTES
    file = original_file_bytes, result["file_bytes"], LEAST_FILE_BYTES
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


def _sizes_with_losses(measured: Mapping[str, Mapping]) -> str:
    sizes = dict.fromkeys(name for one in measured.values() for name in losses(one) if name)
    return f" at {' and at '.join(sizes)}" if sizes else ""
