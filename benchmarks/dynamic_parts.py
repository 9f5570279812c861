"""What `benchmarks.dynamic_shapes` asks of one model by one exporter, part by part."""

import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.environment_step import milliseconds, play
from benchmarks.exports.asked import Asked
from benchmarks.exports.dynamic import DYNAMIC, Dynamic, Sizes, at, draw
from benchmarks.exports.optimised import optimised
from rlflow.common.errors import RLFlowError
from rlflow.costs import runtime_ms
from rlflow.costs.measured import measure
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import Task
from rlflow.graph.ir import ABSENT
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.typical import sizes_text
from rlflow.optimisation.validate import relative_error

STEPPED = "bert_base"  # the model whose steps of the environment are timed
STEPS = 1000
LISTED = 10  # things that are listed of many


@dataclass(frozen=True, kw_only=True)
class Case(Asked):
    """A model by one exporter, and how it is looked at."""

    model: str
    exporter: str
    threads: int

    @property
    def subject(self) -> str:
        return f"{self.model}-{self.exporter}"

    @property
    def declared(self) -> Dynamic:
        return DYNAMIC[self.model]

    @property
    def database(self) -> Path:
        """The timings of operators, of all models together."""
        return self.folder / "costs.sqlite"

    def result(self, kind: str) -> Path:
        """What `optimise` has written."""
        return self.folder / f"{self.subject}-{kind}.onnx"

    def spec(self, file: Path, static: bool, **options) -> EnvSpec:
        shapes = () if static else tuple(self.declared.typical.items())
        return EnvSpec(str(file), shapes, threads=self.threads, database=str(self.database), **options)

    def inputs_at(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Input → its shape."""
        return {name: at(given.shape, sizes) for name, given in self.declared.inputs.items()}

    def measured(self, original: Path, candidate: Path, sizes: Mapping[str, Sizes]) -> dict:
        """sizes: by what they are called."""
        shapes = {name: self.inputs_at(each) for name, each in sizes.items()}
        seconds = self.measure_seconds * len(sizes)
        return measure(
            original, candidate, self.threads, seconds, self.sessions, 1000 + self.seed, shapes, memory=False
        )


# -- the models --------------------------------------------------------------------------------------


def exported(case: Case, static: bool) -> Path:
    """The file of a model, whatever the rules are; made by another Python, as exporters are heavy."""
    path = case.folder.parent / "models" / f"{case.subject}-{'static' if static else 'dynamic'}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".part.onnx")
        command = [case.exporter_python, "-m", "benchmarks.exports.dynamic", case.model, case.exporter, str(made)]
        command += ["--seed", str(case.seed), *(["--static"] if static else [])]
        if subprocess.run(command).returncode:
            raise RLFlowError(f"{path.name} could not be exported")
        made.rename(path)
    return path


def tasks(case: Case, **options) -> tuple[Task, Task]:
    """Of the dynamic model at its typical size, and of the static twin."""
    dynamic, static = [case.spec(exported(case, static), static, **options).make_task() for static in (False, True)]
    return dynamic, static


# -- what is known of a model ------------------------------------------------------------------------


def shapes(case: Case) -> dict:
    graph = case.spec(exported(case, False), False, cost="analytic").make_task().original
    computed = [t for node in graph.nodes.values() if not node.constant for t in node.outputs if t != ABSENT]
    known = [t for t in computed if t in graph.types and graph.types[t].shape is not None]
    lost = [f"{graph.nodes[node_id].op}: {reason}" for node_id, reason in graph.lost]
    return {
        "tensors": len(computed), "known": len(known), "percent": 100 * len(known) / len(computed),
        "symbols": graph.interface.symbols, "lost": len(lost), "lost_first": lost[:LISTED],
    }  # fmt: skip


def matches(case: Case) -> dict:
    dynamic, static = tasks(case, cost="analytic")
    names = [rule.name for rule in static.rules]
    there = Counter(dict(zip(names, dynamic.initial.table.counts.tolist(), strict=True)))
    there += Counter(names[xfer_id] for xfer_id, _ in dynamic.preparation)
    wanted = Counter(dict(zip(names, static.initial.table.counts.tolist(), strict=True)))
    missing = wanted - there
    return {
        "dynamic": there.total(), "static": wanted.total(), "preparation": len(dynamic.preparation),
        "percent": 100 * (1 - missing.total() / wanted.total()), "missing": dict(missing.most_common()),
    }  # fmt: skip


def estimate(case: Case) -> dict:
    """Of both files as they were exported, by the default cost."""
    dynamic, static = (runtime_ms(task.original_cost) for task in tasks(case))
    files = exported(case, False), exported(case, True)
    together = case.measured(*files, {"typical": case.declared.typical})
    return {
        "estimated_ms": dynamic, "measured_ms": together["original_ms"],
        "error_percent": 100 * (dynamic / together["original_ms"] - 1),
        "static_estimated_ms": static, "static_measured_ms": together["candidate_ms"],
        "static_error_percent": 100 * (static / together["candidate_ms"] - 1),
    }  # fmt: skip


# -- what comes of it --------------------------------------------------------------------------------


def optimise(case: Case, kind: str) -> dict:
    """kind: dynamic, static (the twin), or fix (the dynamic model with --fix)."""
    source, out = exported(case, kind == "static"), case.result(kind)
    typical = case.declared.typical
    options = ["--seed", str(case.seed), "--threads", str(case.threads), f"cost.database={case.database}"]
    if kind != "static":
        options += [word for name, size in typical.items() for word in ("--shape", f"{name}={size}")]
    options += ["--fix"] if kind == "fix" else []
    ended = optimised(source, out, case.seconds, [*options, *case.overrides])
    ended |= {
        "overrides": list(case.overrides),
        "again": None if ended["returned_original"] else case.measured(source, out, {"typical": typical}),
        "no_longer_symbols": bound(source, out),
    }
    if kind != "dynamic":  # whose result the sizes are looked at with
        out.unlink()
    return ended


def bound(original: Path, candidate: Path) -> list[str]:
    """The sizes of inputs and outputs that are another, or a number, in the candidate: "seq of input_ids is 128"."""
    changed = []
    before, after = (onnx.load(path, load_external_data=False).graph for path in (original, candidate))
    for old, new in zip((*before.input, *before.output), (*after.input, *after.output), strict=True):
        sizes = zip(old.type.tensor_type.shape.dim, new.type.tensor_type.shape.dim, strict=True)
        for then, now in sizes:
            if then != now:
                changed.append(f"{then.dim_param or then.dim_value} of {old.name} is {now.dim_param or now.dim_value}")
    return changed


def at_all_sizes(case: Case) -> dict:
    original, result = exported(case, False), case.result("dynamic")
    if not result.exists():
        raise RLFlowError("there is no result of the dynamic model")
    running = [session(path, case.threads) for path in (original, result)]
    at_size, runs = {}, {}
    for sizes in case.declared.sizes:
        name = sizes_text(sizes)
        at_size[name] = compared(*running, draw(case.declared.inputs, sizes, 100 + case.seed))
        if at_size[name]["runs"]:
            runs[name] = sizes
    del running
    same = original.read_bytes() == result.read_bytes()
    measured = None if same else case.measured(original, result, runs)
    return {"at": at_size, "returned_original": same, "measured": measured}


def compared(original, result, inputs: dict[str, np.ndarray]) -> dict:
    """Both sessions on the same inputs: whether they run, and the largest relative error of an output."""
    try:
        wanted = run(original, inputs)
    except RLFlowError as error:
        return {"original_runs": False, "runs": None, "says": str(error)}
    try:
        made = run(result, inputs)
    except RLFlowError as error:
        return {"original_runs": True, "runs": False, "says": str(error)}
    if [array.shape for array in made] != [array.shape for array in wanted]:
        return {"original_runs": True, "runs": False, "says": "an output has another shape"}
    errors = [relative_error(old, new) for old, new in zip(wanted, made, strict=True)]
    return {"original_runs": True, "runs": True, "error": max(errors)}


def step(case: Case) -> dict:
    """Milliseconds of a step as `benchmarks.environment_step` times it, the dynamic and the static model in turns."""
    both = tasks(case, cost="analytic")
    for task in both:
        list(play(task, STEPS // 4, case.seed + 1))  # caches as they are in a collection that runs
    dynamic, static = zip(
        *((one[2], other[2]) for one, other in zip(*(play(task, STEPS, case.seed) for task in both), strict=True)),
        strict=True,
    )
    times = {"dynamic": milliseconds(dynamic), "static": milliseconds(static)}
    return times | {"steps": STEPS, "ratio": statistics.median(dynamic) / statistics.median(static)}


JOBS: dict[str, Callable[[Case], dict]] = {
    "shapes": shapes,
    "matches": matches,
    "estimate": estimate,
    "dynamic": partial(optimise, kind="dynamic"),
    "static": partial(optimise, kind="static"),
    "fix": partial(optimise, kind="fix"),
    "sizes": at_all_sizes,
    "step": step,
}
PARTS = {
    "shapes": ("shapes",),
    "matches": ("matches",),
    "estimate": ("estimate",),
    "optimise": ("dynamic", "static", "fix"),
    "sizes": ("dynamic", "sizes"),
    "step": ("step",),
}
