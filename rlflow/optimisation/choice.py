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

FASTER, EQUAL = "faster", "equal"  # values of eval.accept


@dataclass(frozen=True)
class OptimiseOptions:
    """Options of the command `optimise`"""

    seconds: float | None = option(None, "time limit of the whole command in seconds; null: 120, or 900 with learning")
    learn: bool = option(False, "after the searches, train a controller in the dream and let it act on the real graph")
    receipt: str | None = option(
        None, "receipt of the same model at another size or with other weights; its rewrites are applied first"
    )
    controller: str | None = option(
        None, "folder of a controller that observes candidates, trained on any models; it acts first"
    )


@dataclass(frozen=True)
class EvalOptions:
    """Acting on the real graph, its controls, and the check of the result."""

    samples: int = option(8, "number of sampled episodes on the real graph, in addition to the greedy one", at_least=0)
    greedy_steps: int = option(500, "largest number of rewrites of the greedy control", at_least=0)
    greedy_seconds: float = option(60.0, "time limit of the greedy control in seconds", at_least=0)
    measure_seconds: float = option(10.0, "seconds of end-to-end measurement of each candidate; 0: none", at_least=0)
    sessions: int = option(6, "number of pairs of ONNX Runtime sessions in a measurement")
    accept: str = option(
        FASTER,
        "which result is delivered: faster (measured faster, or no slower with less memory or a smaller file) or equal "
        "(also without a measured difference in speed); a result that is measured slower is never delivered",
        choices=(FASTER, EQUAL),
    )
    seeds: tuple[int, ...] = option(
        (0, 1, 2), "seeds of the inputs on which outputs are compared", at_least=0, distinct=True
    )
    tolerance: float = option(0.0001, "largest accepted error of an output, relative to its largest value")


FAULT_REPORT = "fault-report.md"
LEAST_SAVING = 0.05  # smallest share of memory or file size that justifies delivering a file
LEAST_FILE_BYTES = 100_000  # smallest saving on disk
LEAST_MEMORY_BYTES = 4_000_000  # smallest saving of memory: processes that run the same file differ by 1.6 MB


def choose(
    original: Mapping,
    candidates: Sequence[Candidate],
    result: Mapping[str, Mapping],
    accept: str,
    target: str | None = None,
) -> tuple[str, str]:
    """Choose the candidate that is delivered.

    Args:
      original: `objective`, the estimate in picoseconds, and `file_bytes`.
      candidates: the checked candidates.
      result: by name the entries `equal`, `left_out`, `measured` and `file_bytes` of each candidate.
      accept: see `eval.accept`.
      target: the other machine whose timings the estimates use, if nothing was measured.

    Returns:
      The name of the candidate, or "original", and the reason.
    """
    better = [one for one in candidates if one.state.objective < original["objective"]]
    equal = sorted((one for one in better if result[one.name]["equal"]), key=lambda one: one.state.objective)
    if not equal:
        if better or any(result[one.name]["left_out"] for one in candidates):
            return "original", f"no candidate with a gain is equal to the original; {FAULT_REPORT} names the causes"
        return "original", "no gain was found"
    measured = {one.name: result[one.name]["measured"] for one in equal}
    lowest = "lowest estimated runtime of all equal candidates"
    if not all(measured.values()):
        return equal[0].name, f"{lowest}{f' by the timings of {target}' if target else ''}; not measured"
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
    """Return whether a measured file is shown to be faster overall and slower at no size."""
    return measured["verdict"] == "faster" and not losses(measured)


def losses(measured: Mapping) -> list[str]:
    """Return the names of the sizes at which the whole interval lies above 1; "" stands for all sizes together."""
    figures = {"": measured} | measured.get("at", {})  # older results lack "at"
    return [name for name, there in figures.items() if there["interval"][0] > 1]


def savings(original_file_bytes: int, result: Mapping) -> list[str]:
    """Return the savings of memory and file size, with figures; an empty list if memory or file size is worse.

    Args:
      original_file_bytes: size of the original on disk, in bytes.
      result: entries of a measured candidate, see `choose`.
    """
    measured = result["measured"]
    memory = measured["original_memory_bytes"], measured["candidate_memory_bytes"], LEAST_MEMORY_BYTES
    file = original_file_bytes, result["file_bytes"], LEAST_FILE_BYTES
    saved = []
    for what, (before, after, least) in {"less memory while it runs": memory, "a smaller file": file}.items():
        if before is None or after is None:  # the system does not report memory
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
