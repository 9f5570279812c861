"""What `benchmarks.exports` does with one file of the corpus: make it, have it optimised, measure all of that."""

import filecmp
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.exports.asked import Asked
from benchmarks.exports.corpus import CORPUS, MADE_FROM, REPEATED, Export
from benchmarks.exports.dynamic import draw
from benchmarks.exports.optimised import optimised
from benchmarks.exports.peers import PEERS, attempted, optimised_by
from benchmarks.exports.together import ORIGINAL, Contestant, Together, together
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.costs.measured import Ratio
from rlflow.optimisation.validate import validate

OURS, AGAIN, OPENVINO = "ours", "again", "openvino"  # the second: made once more, from another seed and no timings
SEEDS = (100, 101, 102)  # of inputs that no run has seen
WIDE = 0.02  # of an interval: once all that the bars ask for are narrower, measuring ends


@dataclass(frozen=True, kw_only=True)
class Case(Asked):
    """A file of the corpus, and what is asked of all."""

    name: str

    @property
    def declared(self) -> Export:
        return CORPUS[self.name]

    @property
    def file(self) -> Path:
        """Exported, whatever the rules are."""
        return self.folder.parent / "models" / f"{self.name}.onnx"

    def result(self, job: str) -> Path:
        """The file that a job writes."""
        return self.folder / f"{self.name}-{job}.onnx"


def exported(case: Case) -> Path:
    """The file of the corpus, which is made where it is not there; from another one, that too."""
    path = case.file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".part.onnx")
        command = [case.exporter_python, "-m", "benchmarks.exports.make", case.name, str(made)]
        if case.declared.exporter in MADE_FROM:
            command += ["--source", str(exported(replace(case, name=case.declared.network)))]
        result = attempted([*command, "--seed", str(case.seed)], made)
        if "error" in result:
            raise RLFlowError(f"{case.name} could not be exported: {result['error']}")
        made.rename(path)
    return path


def export(case: Case) -> dict:
    return {"bytes": exported(case).stat().st_size}


def ours(case: Case, which: str, threads: int) -> dict:
    """`run.py optimise`, knowing no timings, as at its first use; what it wrote is compared on SEEDS."""
    source, out = exported(case), case.result(f"{which}-{threads}")
    with tempfile.TemporaryDirectory() as folder:
        options = ["--seed", str(case.seed + (which == AGAIN)), "--threads", str(threads)]
        options.append(f"cost.database={folder}/costs.sqlite")
        result = optimised(source, out, case.seconds, [*options, *case.overrides])
    findings = validate(source, out, seeds=SEEDS, threads=threads)
    return result | {"equal": findings.ok, "max_relative_error": findings.max_error}


def peer(case: Case, tool: str) -> dict:
    return optimised_by(tool, exported(case), case.result(tool), case.declared.family, case.exporter_python)


def measured(case: Case, threads: int) -> dict:
    """All of them in turns: how many a session had, and `figures_of` the contestants."""
    source, (files, failed) = exported(case), written(case, threads)
    same = [name for name, path in files.items() if filecmp.cmp(path, source, shallow=False)]
    contestants = {
        ORIGINAL: Contestant(source, "onnxruntime", sys.executable),
        OPENVINO: Contestant(source, "openvino", case.exporter_python),
    }
    for name, path in files.items():
        if name not in same:
            contestants[name] = Contestant(path, "onnxruntime", sys.executable)
    inputs = draw(case.declared.inputs, {}, 1000 + case.seed)
    result = together(contestants, inputs, threads, case.measure_seconds, case.sessions, case.seed, narrow)
    result.failed.update(failed)
    turns = [len(session) for session in result.seconds[ORIGINAL]]
    return {"turns": turns, "contestants": figures_of(result, same, case.seed)}


def narrow(result: Together) -> bool:
    """Whether our latency to that of the original, of each peer and of ours made again is known closely enough.

    It asks for widths alone: to stop where an interval is clear would make chance look clear.
    """
    one = OURS if OURS in result.errors else ORIGINAL  # which has the same bytes, or ours has failed
    others = result.errors.keys() - {one, OPENVINO}
    intervals = [result.ratio(one, other, seed=0) for other in others]
    return all(between.high - between.low <= WIDE * between.ratio for between in intervals)


def written(case: Case, threads: int) -> tuple[dict[str, Path], dict[str, str]]:
    """Contestant → the file that earlier jobs wrote, or why there is none."""
    jobs = {which: f"{which}-{threads}" for which in made_by_us(case.name)} | {tool: tool for tool in PEERS}
    files, failed = {}, {}
    for name, job in jobs.items():
        result = read_json(case.folder / f"{case.name}-{job}.json")
        if "error" in result:
            failed[name] = result["error"]
        elif case.result(job).exists():
            files[name] = case.result(job)
        else:
            raise RLFlowError(f"its files are gone; to have them made again, delete {case.name}-*.json")
    return files, failed


def figures_of(result: Together, same: list[str], seed: int) -> dict:
    """For each its latency, its ratio to the original's with the interval, and its error; or why it failed.

    same: those that have the original's bytes and were not run beside it; their ratio is 1. Of every peer `ours` says
    the ratio of our latency to its.
    """
    figures: dict[str, dict] = {name: {"failed": why} for name, why in result.failed.items()}
    stands_for = {name: name for name in result.seconds if name not in result.failed} | dict.fromkeys(same, ORIGINAL)
    for name, run in stands_for.items():
        figures[name] = {
            "ms": result.ms(run), "relative_error": result.errors[run], "original": run == ORIGINAL,
            **ratio(result, run, ORIGINAL, seed),
        }  # fmt: skip
        if OURS in stands_for and name in PEERS:
            figures[name]["ours"] = ratio(result, stands_for[OURS], run, seed)
    return figures


def ratio(result: Together, one: str, other: str, seed: int) -> dict:
    between = Ratio(1.0, 1.0, 1.0) if one == other else result.ratio(one, other, seed)
    return {"ratio": between.ratio, "interval": [between.low, between.high], "verdict": between.verdict}


def made_by_us(name: str) -> tuple[str, ...]:
    return (OURS, AGAIN) if name in REPEATED else (OURS,)


def jobs_of(name: str, threads: Sequence[int]) -> dict[str, Callable[[Case], dict]]:
    """All that is done with a file, in order: a measurement reads what the others wrote."""
    jobs: dict[str, Callable[[Case], dict]] = {"export": export}
    jobs |= {tool: partial(peer, tool=tool) for tool in PEERS}
    for count in threads:
        jobs |= {f"{which}-{count}": partial(ours, which=which, threads=count) for which in made_by_us(name)}
        jobs[f"measured-{count}"] = partial(measured, threads=count)
    return jobs


THREADS = (1, 2)
