"""The bars of the corpus, and its tables: what was measured in words. No exporter is needed."""

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.exports.corpus import CORPUS, HALVES, JUDGEMENT, LOW_PRECISION, REPEATED, of_half
from benchmarks.exports.jobs import AGAIN, OPENVINO, OURS, THREADS
from benchmarks.exports.peers import PEERS
from benchmarks.harness import bar, markdown

Figures = Mapping[str, Mapping[str, dict]]  # file → job → what it gave
NOT_RUN = {"error": "not run"}

MEAN = 0.92  # of the judgement half, geometric
FASTER, AHEAD, ALIKE = 60, 80, 90  # percent of the files
CLOSE = 0.01  # between two runs
SLOWER = 1  # where the interval begins above it, at least. Copies of one file miss 1 by up to 0.005 now and then
SECONDS = 120  # without checks
GROUPS = 25
# Relative error from which on a file is another model, and nobody is compared with it: two steps of uint8 are 0.015 of
# the largest output, and ONNX Runtime's own optimisations were seen to move one of a quantised model by one.
OTHER = 0.02
NAMED = {  # largest ratio
    "vit_base-dynamo": 0.88, "bert_base-dynamo": 0.92, "gpt2-dynamo": 0.97, "densenet121-dynamo": 0.92,
    "shufflenet_v2-dynamo": 0.86, "nasnet_mobile-keras": 0.88, "efficientnet_b0-dynamo": 0.98,
}  # fmt: skip


# -- what came of one file ---------------------------------------------------------------------------


def of(figures: Figures, name: str, job: str) -> dict:
    return figures.get(name, {}).get(job, NOT_RUN)


def contestant(figures: Figures, name: str, threads: int, who: str = OURS) -> dict:
    """Its measurement, or {"error": why there is none}."""
    measured = of(figures, name, f"measured-{threads}")
    if "error" in measured:
        return measured
    one = measured["contestants"].get(who, NOT_RUN)
    why = None if one is NOT_RUN else why_not(one)
    return {"error": why} if why else one


def why_not(one: dict) -> str | None:
    """Why its latency says nothing."""
    if "failed" in one:
        return one["failed"]
    return f"its outputs are off by {one['relative_error']:.1g}" if one["relative_error"] > OTHER else None


def ahead(measured: dict) -> bool:
    """Whether our latency is below that of every peer that gave a file, and one did."""
    peers = beside(measured)
    return bool(peers) and all(one["ours"]["ratio"] < 1 for one in peers)


def behind(measured: dict) -> float | None:
    """The lower end of the interval of our latency to a peer's, where it is highest: above SLOWER we are behind it;
    None where no peer gave a file."""
    return max((one["ours"]["interval"][0] for one in beside(measured)), default=None)


def beside(measured: dict) -> list[dict]:
    """The peers that gave the same model."""
    return [one for one in (measured["contestants"][tool] for tool in PEERS) if not why_not(one)]


# -- the bars ----------------------------------------------------------------------------------------


def bars_of(figures: Figures) -> list[dict]:
    """Of the whole corpus, whether it was run or not."""
    bars = []
    for threads in THREADS:
        bars += bars_of_all(figures, threads)
    for name in CORPUS:
        for threads in THREADS:
            bars += bars_of_one(figures, name, threads)
    return bars


def bars_of_all(figures: Figures, threads: int) -> list[dict]:
    """A file without a measurement is counted as one that misses; no mean is told while there are such."""
    judged = [contestant(figures, name, threads) for name in of_half(JUDGEMENT)]
    ratios = [one["ratio"] for one in judged if "error" not in one]
    mean = float(np.exp(np.mean(np.log(ratios)))) if len(ratios) == len(judged) else None
    without = "" if mean else f"{len(judged) - len(ratios)} of {len(judged)} files without a measurement"
    of_all = [of(figures, name, f"measured-{threads}") for name in CORPUS]
    faster = percent([one.get("verdict") == "faster" for one in judged])
    in_front = percent([made_ours(one) and ahead(one) for one in of_all])
    alike = percent([ended_alike(figures, name, threads) for name in REPEATED])
    low = percent([through(figures, name, threads) for name in LOW_PRECISION])
    at = f"{threads} {'thread' if threads == 1 else 'threads'}"
    return [
        bar(f"{at}: mean ratio, judgement half", mean, without, f"≤ {MEAN}", mean is not None and mean <= MEAN),
        bar(f"{at}: faster, judgement half", faster, "% of the files", f"≥ {FASTER}", faster >= FASTER),
        bar(f"{at}: ahead of every peer", in_front, "% of all files", f"≥ {AHEAD}", in_front >= AHEAD),
        bar(f"{at}: two runs within 1 %", alike, f"% of {len(REPEATED)} files", f"≥ {ALIKE}", alike >= ALIKE),
        bar(f"{at}: float16 and QDQ through", low, f"% of {len(LOW_PRECISION)} files", "≥ 100", low == 100),
    ]


def percent(hold: list[bool]) -> float:
    return 100 * sum(hold) / len(hold)


def made_ours(measured: dict) -> bool:
    return "error" not in measured and not why_not(measured["contestants"][OURS])


def ended_alike(figures: Figures, name: str, threads: int) -> bool:
    """Whether both runs came to the same measured ratio."""
    one, again = (contestant(figures, name, threads, who) for who in (OURS, AGAIN))
    return "error" not in one and "error" not in again and abs(again["ratio"] / one["ratio"] - 1) <= CLOSE


def through(figures: Figures, name: str, threads: int) -> bool:
    """Whether its result is equal, within its precision, and not shown to be slower."""
    made, one = of(figures, name, f"{OURS}-{threads}"), contestant(figures, name, threads)
    return made.get("equal", False) and one.get("verdict", "slower") != "slower"


def bars_of_one(figures: Figures, name: str, threads: int) -> list[dict]:
    bars, subject = [], f"{name}-{threads}"
    made = of(figures, name, f"{OURS}-{threads}")
    measured = of(figures, name, f"measured-{threads}")
    against = contestant(figures, name, threads)

    def ask(what: str, one: dict, value: Callable[[dict], float], unit: str, limit: str, most: float):
        if "error" in one:
            bars.append(bar(f"{subject}: {what}", None, one["error"], limit, False))
        else:
            reached = value(one)
            bars.append(bar(f"{subject}: {what}", reached, unit, limit, reached is not None and reached <= most))

    ask("not equal", made, lambda one: int(not one["equal"]), "", "≤ 0", 0)
    ask("lower end of the interval", against, lambda one: one["interval"][0], "", f"≤ {SLOWER}", SLOWER)
    ask("without its checks", made, seconds_without_checks, "s", f"≤ {SECONDS}", SECONDS)
    ask("groups of rewrites", made, groups, "", f"≤ {GROUPS}", GROUPS)
    ask("behind a peer, lower end", against if "error" in against else measured, behind, "", f"≤ {SLOWER}", SLOWER)
    if name in NAMED:
        ask("ratio of a named one", against, lambda one: one["ratio"], "", f"≤ {NAMED[name]}", NAMED[name])
    return bars


def seconds_without_checks(made: dict) -> float:
    return made["optimise_seconds"] - made["check_seconds"]


def groups(made: dict) -> int | None:
    """How many the explanation lists; None where there is none."""
    if made["returned_original"]:
        return 0
    return None if made["shares"] is None else len(made["shares"])


# -- for docs/results --------------------------------------------------------------------------------


def table(figures: Figures) -> str:
    """Ours, a line for each file: the judgement half, then the other."""
    heads = [
        "file", "MB", "1 thread", "2 threads", "equal", "seconds", "of which checks", "original, ms: 1 thread",
        "2 threads",
    ]  # fmt: skip
    rows = []
    for half in reversed(HALVES):
        rows.append([f"*{half}*", *[""] * (len(heads) - 1)])
        for name in of_half(half):
            made = [of(figures, name, f"{OURS}-{threads}") for threads in THREADS]
            original = [contestant(figures, name, threads, "original") for threads in THREADS]
            rows.append([
                name, cell(of(figures, name, "export"), lambda one: f"{one['bytes'] / 1e6:.0f}"),
                *(cell(contestant(figures, name, threads), of_ratio) for threads in THREADS),
                both(made, lambda one: "yes" if one["equal"] else "**no**"),
                both(made, lambda one: f"{one['optimise_seconds']:.0f}"),
                both(made, lambda one: f"{one['check_seconds']:.0f}"),
                *(cell(one, lambda one: f"{one['ms']:.1f}") for one in original),
            ])  # fmt: skip
    return markdown(heads, rows)


def peers_table(figures: Figures) -> str:
    """Latency of each to the original's, a line for each file and number of threads."""
    names = [OURS, AGAIN, *PEERS, OPENVINO]
    rows = []
    for name in figures:
        for threads in THREADS:
            if f"measured-{threads}" in figures[name]:
                all_of_it = [contestant(figures, name, threads, who) for who in names]
                rows.append([name, threads, *(cell(one, of_ratio) for one in all_of_it)])
    return markdown(["file", "threads", *names], rows)


def failures_table(figures: Figures) -> str:
    """What failed, and why."""
    rows = []
    for name, jobs in figures.items():
        for job, result in jobs.items():
            failed = {job: result["error"]} if "error" in result else {}
            for who, one in result.get("contestants", {}).items():
                if why_not(one) and "error" not in jobs.get(who, {}):  # that a tool failed is said already
                    failed[f"{who}, {job}"] = why_not(one)
            rows += [[name, who, why.replace("|", "\\|")] for who, why in failed.items()]
    return markdown(["file", "who", "says"], rows, words=3)


def cell(one: dict, words: Callable[[dict], str]) -> str:
    return "not run" if one is NOT_RUN else "failed" if "error" in one else words(one)


def both(made: list[dict], words: Callable[[dict], str]) -> str:
    """For every number of threads, where they differ."""
    return ", ".join(dict.fromkeys(cell(one, words) for one in made))


def of_ratio(one: dict) -> str:
    if one["original"]:
        return "1: the original"
    return f"{one['ratio']:.3f} ({one['interval'][0]:.3f} – {one['interval'][1]:.3f})"
