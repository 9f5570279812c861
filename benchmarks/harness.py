"""What every benchmark shares: its arguments, its JSON, its bars.

A benchmark is `python -m benchmarks.NAME [--json FILE] [--seed N]`; it prints one JSON object: machine,
versions, command, seed, figures, and bars, a list of {name, value, unit, limit, holds}.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from rlflow.files import write_json
from rlflow.run_folder import versions
from rlflow.runtime import machine


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", metavar="FILE", help="write the result there too")
    made.add_argument("--seed", type=int, default=0)
    return made


def bar(name: str, value: float | bool | None, unit: str, limit: str, holds: bool) -> dict:
    """One requirement. `limit` is the requirement in words, e.g. "≤ 900"; `value` None was not reached."""
    return {"name": name, "value": value, "unit": unit, "limit": limit, "holds": bool(holds)}


def finish(name: str, arguments: argparse.Namespace, figures: dict, bars: list[dict]) -> int:
    """Prints (and writes) the JSON object; the exit status is 0 whether the bars hold or not."""
    result = {
        "benchmark": name,
        "command": " ".join([f"python -m benchmarks.{name}", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "seed": arguments.seed,
        "figures": figures,
        "bars": bars,
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        write_json(arguments.json, result)
    return 0


def each(names: list[str], folder: Path, work: Callable[[str], dict]) -> dict[str, dict]:
    """`work` for every name, resumably: a result that lies in the folder as NAME.json is not made again."""
    found = {}
    for name in names:
        path = folder / f"{name}.json"
        if not path.exists():
            write_json(path, work(name))
        found[name] = json.loads(path.read_text())
    return found
