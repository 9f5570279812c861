"""Choose which candidate is delivered, and declare the options of `eval` and `optimise`.

A measurement gives a confidence interval of the latency ratio candidate / original. A candidate that is equal to the
original is faster if the whole interval lies below 1 by more than `rlflow.costs.measured.MARGIN`, because two copies of
one file may differ by that much. Of several faster candidates the one with the lowest estimate is delivered. A
candidate whose whole interval lies above 1, at any size, is never delivered. In all other cases no difference is shown,
and the original is delivered with two exceptions. `eval.accept=equal` accepts the candidate. A candidate that needs
less memory, or has a smaller file, is accepted if it is not worse in the other respect.

Without a measurement (`eval.measure_seconds` is 0, or the estimates are for another machine), the candidate with the
lowest estimate is delivered, and the reason says that nothing was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlflow.common.options import option
from rlflow.costs.measured import MARGIN
from rlflow.optimisation.candidates import Candidate

FASTER, EQUAL, DEQUANTISED = ACCEPTED = "faster", "equal", "dequantised"  # the values of the option eval.accept


@dataclass(frozen=True)
class OptimiseOptions:
    """The options of the command `optimise`: time limit, learning, earlier receipt and trained controller."""

    seconds: float | None = option(None, "time limit of the whole command in seconds; null: 120, or 900 with learning")
    session: bool = option(
        False, "also measure which session options of ONNX Runtime make the delivered file faster, in a sixth of the "
        "seconds, and write them beside it", used_if={"optimise.learn": (False,)},
    )  # fmt: skip
    learn: bool = option(False, "after the searches, train a controller in the dream and let it act on the real graph")
    receipt: str | None = option(
        None, "receipt of the same model at another size or with other weights; its rewrites are applied first"
    )
    controller: str | None = option(
        None, "folder of a controller that observes candidates, trained on any models; it acts first"
    )


@dataclass(frozen=True)
class EvalOptions:
    """The options `eval`: acting on the real graph, controls for comparison, checks and measurements of the result."""

    samples: int = option(8, "number of sampled episodes on the real graph, in addition to the greedy one", at_least=0)
    greedy_steps: int = option(500, "largest number of rewrites of the greedy control", at_least=0)
    greedy_seconds: float = option(60.0, "time limit of the greedy control in seconds", at_least=0)
    measure_seconds: float = option(10.0, "seconds of end-to-end measurement of each candidate; 0: none", at_least=0)
    sessions: int = option(10, "largest number of pairs of sessions in a measurement, which can end after 6")
    accept: str = option(
        FASTER,
        "which result is delivered: faster (measured faster, or no slower with less memory or a smaller file), equal "
        "(also without a measured difference in speed) or dequantised (as `faster`, with a quantised model in float32, "
        "without the rounding of activations); a result that is measured slower is never delivered",
        choices=ACCEPTED,
    )
    seeds: tuple[int, ...] = option(
        (0, 1, 2), "seeds of the inputs on which outputs are compared", at_least=0, distinct=True
    )
    tolerance: float = option(0.0001, "largest accepted error of an output, relative to its largest value")


FAULT_REPORT = "fault-report.md"
# A saving of memory or file size counts if it is above both limits: LEAST_SAVING and the limit in bytes.
LEAST_SAVING = 0.05  # share of the original's memory or file size
LEAST_FILE_BYTES = 100_000  # bytes on disk
LEAST_MEMORY_BYTES = 4_000_000  # bytes of memory; processes that run the same file differ by up to 1.6 MB


def choose(
    original: Mapping,
    candidates: Sequence[Candidate],
    result: Mapping[str, Mapping],
    accept: str,
    target: str | None = None,
) -> tuple[str, str]:
    """Choose the candidate that is delivered, or the original.

    Args:
      original: the entries `objective` (estimated runtime in picoseconds) and `file_bytes` of the original.
      candidates: the candidates that were checked, after any repair.
      result: candidate name → the entries `equal`, `left_out`, `measured` and `file_bytes` of
        `rlflow.optimisation.delivery.deliver`.
      accept: the value of the option `eval.accept`, one of ACCEPTED.
      target: the name of the machine whose timings the estimates use, if it is another machine; for the reason.

    Returns:
      (name of the chosen candidate or "original", reason as text).
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
        if saved and measured[one.name]["ratio"] <= 1 + MARGIN:  # the interval of a short measurement is wide
            return one.name, f"no difference in speed is shown, but {' and '.join(saved)}"
    pairs = measured[kept[0].name]["pairs"]
    why = f"no difference in speed is shown in {pairs} pairs of runs"
    return "original", f"{why} (--accept equal would deliver {kept[0].name})"


def is_faster(measured: Mapping) -> bool:
    """Return whether a file is shown to be faster over all sizes together, and at no size to be slower.

    Args:
      measured: the result of `rlflow.costs.measured.measure`.
    """
    return measured["verdict"] == "faster" and not losses(measured)


def losses(measured: Mapping) -> list[str]:
    """Return the names of the sizes at which a file is slower: its whole confidence interval lies above 1.

    Args:
      measured: the result of `rlflow.costs.measured.measure`.

    Returns:
      Names of sizes; "" stands for the interval over all sizes together.
    """
    figures = {"": measured} | measured.get("at", {})  # older results lack "at"
    return [name for name, there in figures.items() if there["interval"][0] > 1]


def savings(original_file_bytes: int, result: Mapping) -> list[str]:
    """Return the savings of memory and file size as texts, such as "a smaller file (12.0 → 9.0 MB)".

    The list is empty if nothing is saved, or if memory or file size grows by more than the limits of a saving.

    Args:
      original_file_bytes: the size of the original on disk, in bytes.
      result: the entries of one measured candidate, see `choose`.
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
