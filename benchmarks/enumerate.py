"""The generator on TASO's operators: how many graphs, how many rules, how long, and the same bytes again.

`--folder` keeps checkpoints, so that a run that is cut off goes on; `--twice` runs it once more, from nothing.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import psutil

from benchmarks import harness
from rlflow.common.files import write_text
from rlflow.common.system import peak_process_memory
from rlflow.proving.generator.enumerate import enumerate_rules
from rlflow.rules.language import parse

JUDGES = ("rlflow/rules/generator", "rlflow/proving")

MINUTES = 30


def table(figures: dict) -> str:
    """The worlds, and why rules that they kept were not written."""
    rows = []
    for result in figures["worlds"]:
        graphs = sum(
            count
            for size in result["sizes"]
            for what, count in size.items()
            if what not in ("size", "representatives", "candidates")
        )
        verdicts = [
            result["verdicts"].get(verdict, 0) for verdict in ("kept", "derived", "instance of a rule", "coincidence")
        ]
        pairs = sum(size["candidates"] for size in result["sizes"])
        rows.append([result["world"], *(f"{count:,}" for count in (graphs, pairs, *verdicts)), result["seconds"]])
    heads = ["world", "graphs", "equal pairs", "kept", "derived", "instance", "equal by coincidence", "seconds"]
    why = harness.markdown(["why not written", "rules"], figures["not written"].items())
    return harness.markdown(heads, rows) + "\n\n" + why


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--max-ops", type=int, default=4)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=None, help="where checkpoints are kept")
    parser.add_argument("--rules", type=Path, default=None, help="write the rules there")
    parser.add_argument("--twice", action="store_true", help="run again from nothing and compare the bytes")
    arguments = parser.parse_args()
    started = time.monotonic()
    report = enumerate_rules(
        arguments.max_ops, folder=arguments.folder, workers=arguments.workers, seconds=MINUTES * 60
    )
    seconds = time.monotonic() - started
    if arguments.rules and report.finished:
        write_text(arguments.rules, report.rules)
    used, largest = psutil.Process().cpu_times(), peak_process_memory()
    figures = {
        "rules": len(parse(report.rules, "generated")),
        "sha256": hashlib.sha256(report.rules.encode()).hexdigest(),
        "seconds": round(seconds, 1),
        "seconds of the processors": round(used.user + used.system + used.children_user + used.children_system, 1),
        "MB of the largest process": None if largest is None else round(largest / 2**20),
        "worlds": report.worlds,
        "implied by other worlds": report.derived,
        "not written": dict(report.unwritten),
    }
    bars = [
        harness.bar("finished", report.finished, "", "all worlds", report.finished),
        harness.bar("time", round(seconds / 60, 1), "minutes", f"≤ {MINUTES}", seconds <= MINUTES * 60),
    ]
    if arguments.twice:
        again = enumerate_rules(arguments.max_ops, workers=arguments.workers, seconds=MINUTES * 60)
        same = report.finished and again.rules == report.rules
        bars.append(harness.bar("the same file again", same, "", "byte for byte", same))
    return harness.finish("enumerate", arguments, figures, bars)


if __name__ == "__main__":
    sys.exit(main())
