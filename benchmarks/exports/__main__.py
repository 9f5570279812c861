"""Models as people export them: made faster by us and by others, and all of it measured in the same run.

    python -m benchmarks.exports [--model NAME] [--half HALF] [--threads N] [--list] [--table NAME]

For every file of `benchmarks.exports.corpus`, by name or of one half:

  export      make it (`pip install '.[exports]'`, for the Python that --exporter-python names)
  peers       onnxsim, onnxslim, onnxscript's optimiser, and ONNX Runtime's for transformers, each in that Python
  ours        `run.py optimise` as a user runs it, for each number of threads
  again       the same once more with another seed, of every third file (`corpus.REPEATED`)
  measured    the original and all of these in turns, and OpenVINO for reference: ratio, interval, error; until the
              intervals are narrow

Resumable: what each gave lies in --folder, a failure too (delete NAME-*.json to try again). What lies there is reported
even if it is not asked for now. The files that tools wrote are deleted once they were measured with one and two
threads; those of the corpus stay.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.exports.asked import asked
from benchmarks.exports.corpus import CORPUS, HALVES, of_half
from benchmarks.exports.jobs import THREADS, Case, jobs_of
from benchmarks.exports.results import Figures, bars_of, failures_table, peers_table, table
from benchmarks.harness import each, finish, markdown, parser, tried
from rlflow.common.files import read_json

TABLES = {"ours": table, "peers": peers_table, "failures": failures_table}


def work(case: Case, threads: Sequence[int]) -> None:
    """All jobs of a file, for so many threads; none but the first if that could not make it."""
    jobs = {f"{case.name}-{job}": does for job, does in jobs_of(case.name, threads).items()}
    first, *others = jobs
    made = each([first], case.folder, lambda key: tried(jobs[key], case))
    if "error" in made[first]:
        return
    each(others, case.folder, lambda key: tried(jobs[key], case))
    if all((case.folder / f"{case.name}-measured-{count}.json").exists() for count in THREADS):
        for job in jobs_of(case.name, THREADS):
            case.result(job).unlink(missing_ok=True)


def kept(folder: Path) -> Figures:
    """All that lies in the folder."""
    figures: dict[str, dict] = {}
    for name in CORPUS:
        for job in jobs_of(name, THREADS):
            path = folder / f"{name}-{job}.json"
            if path.exists():
                figures.setdefault(name, {})[job] = read_json(path)
    return figures


def listed(names: Sequence[str]) -> str:
    rows = []
    for name in names:
        one = CORPUS[name]
        shapes = ", ".join(f"{key} {list(given.shape)}" for key, given in list(one.inputs.items())[:3])
        more = f", and {len(one.inputs) - 3} more" if len(one.inputs) > 3 else ""
        rows.append([name, one.half, one.family, one.exporter, one.opset or "", shapes + more])
    return markdown(["file", "half", "family", "exporter", "opset", "inputs"], rows, words=6)


def main() -> int:
    arguments = parser(__doc__, "runs/exports")
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments.add_argument("--model", action="append", choices=list(CORPUS), metavar="NAME", help="only this one")
    arguments.add_argument("--half", choices=HALVES, help="only these files")
    arguments.add_argument("--threads", type=int, action="append", choices=THREADS, help="default: one, then two")
    arguments.add_argument("--seconds", type=float, help="what `optimise` gets (default: its own)")
    arguments.add_argument("--measure-seconds", type=float, default=60.0, help="of the runs of a measurement, at most")
    arguments.add_argument("--sessions", type=int, default=10, help="of a measurement, at most; at least two")
    arguments.add_argument("--exporter-python", default=sys.executable, metavar="PATH", help="with exporters and peers")
    arguments.add_argument("--list", action="store_true", help="print which files there are, and run nothing")
    arguments.add_argument("--table", choices=list(TABLES), help="print this one of what lies there, and run nothing")
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of configs/default.yaml")
    parsed = arguments.parse_args()
    names = parsed.model or (of_half(parsed.half) if parsed.half else list(CORPUS))
    if parsed.list:
        print(listed(names))
        return 0
    if parsed.table:
        print(TABLES[parsed.table](kept(parsed.folder)))
        return 0
    for name in names:
        work(Case(name=name, **asked(parsed)), parsed.threads or THREADS)
    figures = kept(parsed.folder)
    return finish("exports", parsed, figures, bars_of(figures))


if __name__ == "__main__":
    sys.exit(main())
