"""Models with symbolic sizes, as both torch exporters write them, beside static twins: optimised once for every size.

    python -m benchmarks.dynamic_shapes [--model NAME] [--exporter NAME] [--parts PART,PART] [--table]

For every model of `benchmarks.exports.dynamic` and each exporter, in parts:

  shapes    of how many computed tensors is the shape known, in symbols?
  matches   how many of the static twin's matches does the dynamic model have? What its preparation has applied counts.
  estimate  how far from the measured latency is the estimate, both at the typical size?
  optimise  `run.py optimise` on the dynamic model, on the static twin, and on the dynamic one with --fix, in the same
            time; each result is then measured anew beside what it was made from, at the typical size. Are the sizes of
            inputs and outputs still symbols?
  sizes     at the eight sizes: do both run, are outputs equal, and is the result measured to be slower? (It needs the
            dynamic model's result, and makes it where there is none.)
  step      a random step of the environment on BERT-Base, dynamic and static in turns.

Resumable: what each gave lies in --folder, a failure too (delete its file to try again). What lies there is reported
even if it is not asked for now; what does not is reported as not run. The models are made once, by the Python that
--exporter-python names (`pip install '.[exports]'`).
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.dynamic_parts import JOBS, PARTS, STEPPED, Case
from benchmarks.exports.asked import asked
from benchmarks.exports.dynamic import DYNAMIC, EXPORTERS
from benchmarks.harness import bar, each, finish, markdown, parser, tried
from benchmarks.judged import ENGINE
from rlflow.common.files import read_json

JUDGES = (
    *ENGINE, "rlflow/graph", "rlflow/rules/locations.py", "rlflow/env", "rlflow/deliver", "rlflow/search",
    "rlflow/costs",
    "benchmarks/dynamic_parts.py", "benchmarks/exports/dynamic.py", "benchmarks/exports/networks.py",
    "benchmarks/exports/torch_exporters.py", "benchmarks/exports/optimised.py",
)  # fmt: skip

KNOWN, MATCHED, OFF = 95, 95, 15  # percent
BEHIND = 2  # points that the dynamic ratio may be above the static twin's
TOLERANCE = 1e-4  # relative error
SLOWER_STEP = 1.5


# -- the bars ----------------------------------------------------------------------------------------


Figures = Mapping[str, Mapping[str, dict]]  # subject → job → what it gave
NOT_RUN = {"error": "not run"}


def bars_of(figures: Figures) -> list[dict]:
    """Of all models by both exporters, whether they were run or not."""
    bars = []
    for model in DYNAMIC:
        for exporter in EXPORTERS:
            bars += bars_of_one(f"{model}-{exporter}", figures.get(f"{model}-{exporter}", {}))
    return bars


def bars_of_one(subject: str, results: Mapping[str, dict]) -> list[dict]:
    bars = []

    def ask(what: str, jobs: str, value: Callable[..., float], unit: str, limit: str, holds: Callable[[float], bool]):
        asked = [results.get(name, NOT_RUN) for name in jobs.split()]
        errors = [result["error"] for result in asked if "error" in result]
        if errors:
            bars.append(bar(f"{subject}: {what}", None, errors[0], limit, False))
        else:
            reached = value(*asked)
            bars.append(bar(f"{subject}: {what}", reached, unit, limit, holds(reached)))

    def at_least(least: float) -> tuple[str, Callable[[float], bool]]:
        return f"≥ {least:g}", lambda value: value >= least

    def at_most(most: float) -> tuple[str, Callable[[float], bool]]:
        return f"≤ {most:g}", lambda value: value <= most

    ask("tensors with a shape", "shapes", lambda one: one["percent"], "%", *at_least(KNOWN))
    ask("of the static twin's matches", "matches", lambda one: one["percent"], "%", *at_least(MATCHED))
    ask("estimate off the latency", "estimate", lambda one: abs(one["error_percent"]), "%", *at_most(OFF))
    ask("ratio above the static twin's", "dynamic static", points_above, "points", *at_most(BEHIND))
    ask("ratio with --fix above the static twin's, intervals apart", "fix static", points_apart, "points", *at_most(0))
    ask("sizes no longer symbols", "dynamic", lambda one: len(one["no_longer_symbols"]), "", *at_most(0))
    ask("sizes at which only the original runs", "sizes", refused, "", *at_most(0))
    ask("largest error at any size", "sizes", largest_error, "relative error", *at_most(TOLERANCE))
    ask("sizes at which it is slower", "sizes", lambda one: len(slower_at(one)), "", *at_most(0))
    if subject.startswith(f"{STEPPED}-"):
        ask("step of the environment", "step", lambda one: one["ratio"], "times the static", *at_most(SLOWER_STEP))
    return bars


def ratio(result: dict) -> tuple[float, float, float]:
    """Of the result's latency to the original's, with its interval; 1 where the original was returned."""
    again = result["again"]
    return (again["ratio"], *again["interval"]) if again else (1.0, 1.0, 1.0)


def points_above(one: dict, other: dict) -> float:
    return 100 * (ratio(one)[0] - ratio(other)[0])


def points_apart(one: dict, other: dict) -> float:
    """How far above the other, from the one interval to the other; 0 where they meet, or it is below."""
    return 100 * max(0.0, ratio(one)[1] - ratio(other)[2])


def refused(result: dict) -> int:
    return sum(here["original_runs"] and not here["runs"] for here in result["at"].values())


def largest_error(result: dict) -> float:
    """Infinity where nothing was compared."""
    return max((here["error"] for here in result["at"].values() if here["runs"]), default=float("inf"))


def slower_at(result: dict) -> list[str]:
    return result["measured"]["slower_at"] if result["measured"] else []


# -- for docs/results --------------------------------------------------------------------------------


def table(figures: Figures) -> str:
    """A line for each model by each exporter."""
    heads = [
        "model", "exporter", "shapes", "matches", "estimate", "dynamic", "static twin", "--fix", "sizes: equal, slower",
        "optimised by the rules",
    ]  # fmt: skip
    rows = []
    for subject, results in figures.items():
        shown = [cell(results.get(name, NOT_RUN), words) for name, words in CELLS.items()]
        rows.append([*subject.split("-"), *shown, results.get("dynamic", {}).get("rules", "")])
    return markdown(heads, rows, words=2)


def step_table(figures: Figures) -> str:
    """Milliseconds of a step of the environment, median."""
    rows = []
    for subject, results in figures.items():
        if "step" in results:
            words = "{dynamic[median]:.2f}|{static[median]:.2f}|{ratio:.2f}".format
            rows.append([subject, *(cell(results["step"], lambda one, words=words: words(**one)).split("|"))])
    return markdown(["model", "dynamic, ms", "static, ms", "ratio"], rows)


def cell(result: dict, words: Callable[[dict], str]) -> str:
    return "not run" if result is NOT_RUN else "failed" if "error" in result else words(result)


def of_ratio(result: dict) -> str:
    if result["again"] is None:
        return "1: the original"
    return "{:.3f} ({:.3f} – {:.3f}), {:.1f} ms".format(*ratio(result), result["again"]["candidate_ms"])


def of_sizes(result: dict) -> str:
    runs = [here for here in result["at"].values() if here["original_runs"]]
    equal = sum(bool(here["runs"]) and here["error"] <= TOLERANCE for here in runs)
    return f"{equal} of {len(runs)}, {len(slower_at(result))}"


CELLS: dict[str, Callable[[dict], str]] = {
    "shapes": "{0[percent]:.1f} %".format,
    "matches": "{0[percent]:.1f} %".format,
    "estimate": "{0[estimated_ms]:.1f} for {0[measured_ms]:.1f} ms ({0[error_percent]:+.0f} %)".format,
    "dynamic": of_ratio,
    "static": of_ratio,
    "fix": of_ratio,
    "sizes": of_sizes,
}


# -- all of it ---------------------------------------------------------------------------------------


def parts_of(text: str) -> list[str]:
    parts = text.split(",")
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"'{part}' is none of {','.join(PARTS)}")
    return parts


def kept(folder: Path) -> dict[str, dict]:
    """All that lies in the folder."""
    figures: dict[str, dict] = {}
    for model in DYNAMIC:
        for exporter in EXPORTERS:
            for name in JOBS:
                path = folder / f"{model}-{exporter}-{name}.json"
                if path.exists():
                    figures.setdefault(f"{model}-{exporter}", {})[name] = read_json(path)
    return figures


def main() -> int:
    arguments = parser(__doc__, "runs/dynamic_shapes")
    arguments.add_argument("--model", action="append", choices=list(DYNAMIC), help="one model only; repeatable")
    arguments.add_argument("--exporter", action="append", choices=list(EXPORTERS), help="one exporter only; repeatable")
    arguments.add_argument("--parts", type=parts_of, default=list(PARTS), help=f"of {','.join(PARTS)}")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--seconds", type=float, help="what `optimise` gets (default: its own)")
    arguments.add_argument("--measure-seconds", type=float, default=20.0, help="of a measurement, at each size")
    arguments.add_argument("--sessions", type=int, default=10, help="pairs of sessions of a measurement, at most")
    arguments.add_argument("--exporter-python", default=sys.executable, metavar="PATH", help="a Python that has torch")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    todo = {}
    for part in parsed.parts:
        for model in parsed.model or [STEPPED] if part == "step" else parsed.model or DYNAMIC:
            for exporter in parsed.exporter or EXPORTERS:
                case = Case(model=model, exporter=exporter, threads=parsed.threads, **asked(parsed))
                todo |= {f"{case.subject}-{name}": (JOBS[name], case) for name in PARTS[part]}
    each(list(todo), parsed.folder, lambda key: tried(*todo[key]))
    figures = kept(parsed.folder)
    if parsed.table:
        print(table(figures), step_table(figures), sep="\n\n")
        return 0
    return finish("dynamic_shapes", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
