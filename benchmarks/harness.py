"""What every benchmark shares: its arguments, its JSON, its bars.

It prints one JSON object: the command, when it was made and how long it took, machine, versions, seed, the rule set and
the code that it judged (`benchmarks.judged`), figures, and bars, a list of {name, value, unit, limit, holds}.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path

from benchmarks.judged import judged
from rlflow.common.files import write_json
from rlflow.common.processes import fresh_processes
from rlflow.graph.onnx_runtime import machine
from rlflow.reports.run_comparison import mean_interval
from rlflow.rules.language import families, load_rules
from rlflow.runs.folder import versions

SHORT = 8  # digits of a hash, where people read it
STARTED = time.monotonic()
THREADS = 1  # of ONNX Runtime, in what is published and names no other number


def parser(description: str, folder: str | None = None, seeded: bool = True) -> argparse.ArgumentParser:
    """The arguments that benchmarks have.

    folder: the default of --folder, where a benchmark that depends on the rules keeps finished parts.
    seeded: whether there is a --seed; what is run may have seeds of its own.
    """
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", metavar="FILE", help="write the result there too")
    if seeded:
        made.add_argument("--seed", type=int, default=0)
    if folder:
        made.add_argument(
            "--folder", type=of_these_rules, default=folder,
            help="where finished parts are kept, for a restart; apart for every rule set",
        )  # fmt: skip
    return made


def of_these_rules(folder: str) -> Path:
    """The part of the folder that belongs to the rules of today: what others have left is not gone on with."""
    return Path(folder) / f"rules-{load_rules(families()).hash[:SHORT]}"


def rule_set() -> dict:
    """Of the rules that are had without naming them, as a result names them."""
    rules = load_rules()
    return {"hash": rules.hash, "count": len(rules)}


def bar(name: str, value: float | bool | None, unit: str, limit: str, holds: bool) -> dict:
    """One requirement. `limit` is the requirement in words, e.g. "≤ 900"; `value` None was not reached.

    A name "SUBJECT: WHAT" is one of several bars that ask the same of other subjects: pages show them as one.
    """
    return {"name": name, "value": value, "unit": unit, "limit": limit, "holds": bool(holds)}


def finish(name: str, arguments: argparse.Namespace, figures: dict, bars: list[dict], by_rules: bool = True) -> int:
    """Prints (and writes) the JSON object; the exit status is 0 whether the bars hold or not.

    by_rules: False for a benchmark on which the rules have no influence, whose result no change of them makes stale.
    """
    result = {
        "benchmark": name,
        "command": command_of(name, sys.argv[1:]),
        "made": date.today().isoformat(),
        "seconds": round(time.monotonic() - STARTED),
        "machine": machine(),
        "versions": versions(),
        "seed": getattr(arguments, "seed", None),
        "rules": rule_set() if by_rules else None,
        "judged": judged(name),
        "figures": figures,
        "bars": bars,
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        write_json(arguments.json, result)
    return 0


def command_of(name: str, arguments: list[str]) -> str:
    """What makes the result again, without --json FILE; of a folder of this machine its last name alone."""
    without = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    without.add_argument("--json")
    words = []
    for argument in without.parse_known_args(arguments)[1]:
        option, equals, value = argument.rpartition("=")
        words.append(option + equals + (Path(value).name if Path(value).is_absolute() else value))
    return shlex.join(["python", "-m", f"benchmarks.{name}", *words])


def markdown(heads: Sequence[str], rows: Iterable[Sequence], words: int = 1) -> str:
    """A table; its first so many columns are words, the others numbers."""
    align = ["---"] * words + ["---:"] * (len(heads) - words)
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (heads, align, *rows))


def mean_and_half(values: Sequence[float], digits: int = 2) -> str:
    """The mean, with half of its 95 % interval where there are several; "–" of none."""
    result = mean_interval(values)
    if result["mean"] is None:
        return "–"
    half = "" if result["high"] is None else f" ± {result['high'] - result['mean']:.{digits}f}"
    return f"{result['mean']:.{digits}f}{half}"


def tried(work: Callable[..., dict], *arguments) -> dict:
    """What it gave, how long it took and by which rules, in a process of its own, or why it gave nothing."""
    started = time.monotonic()
    with fresh_processes(1) as process:
        try:
            result = process.submit(work, *arguments).result()
        except Exception as error:  # whatever it is, the others are to be run
            result = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return result | {"seconds": time.monotonic() - started, "rules": load_rules().hash[:SHORT]}


def each(names: list[str], folder: Path, work: Callable[[str], dict]) -> dict[str, dict]:
    """`work` for every name, resumably: a result that lies in the folder as NAME.json is not made again."""
    result = {}
    for name in names:
        path = folder / f"{name}.json"
        if not path.exists():
            write_json(path, work(name))
        result[name] = json.loads(path.read_text())
    return result
