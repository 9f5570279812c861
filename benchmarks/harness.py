"""What every benchmark shares: its arguments, its JSON, its bars.

A benchmark is `python -m benchmarks.NAME [--json FILE] [--seed N]`; it prints one JSON object: machine,
versions, command, seed, the rule set that it was made with, figures, and bars, a list of {name, value, unit, limit,
holds}. What lies in docs/results/ is shown by `python -m benchmarks.pages`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rlflow.common.files import write_json
from rlflow.graph.onnx_runtime import machine
from rlflow.rules.language import load_rules
from rlflow.runs.folder import versions

SHORT = 8  # digits of a hash, where people read it

def parser(description: str, folder: str | None = None) -> argparse.ArgumentParser:
    """`folder`: the default of --folder, where a benchmark that depends on the rules keeps finished parts."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", metavar="FILE", help="write the result there too")
    made.add_argument("--seed", type=int, default=0)
    if folder:
        made.add_argument(
            "--folder", type=of_these_rules, default=folder,
            help="where finished parts are kept, for a restart; apart for every rule set",
        )  # fmt: skip
    return made


def of_these_rules(folder: str) -> Path:
    """The part of the folder that belongs to the rule set of today: what another one has left is not gone on with."""
    return Path(folder) / f"rules-{load_rules().hash[:SHORT]}"


def rule_set() -> dict:
    """Of all rules, as a result names them."""
    rules = load_rules()
    return {"hash": rules.hash, "count": len(rules)}


def bar(name: str, value: float | bool | None, unit: str, limit: str, holds: bool) -> dict:
    """One requirement. `limit` is the requirement in words, e.g. "≤ 900"; `value` None was not reached."""
    return {"name": name, "value": value, "unit": unit, "limit": limit, "holds": bool(holds)}


def finish(name: str, arguments: argparse.Namespace, figures: dict, bars: list[dict], by_rules: bool = True) -> int:
    """Prints (and writes) the JSON object; the exit status is 0 whether the bars hold or not.

    by_rules: False for a benchmark on which the rules have no influence, whose result no change of them makes stale.
    """
    result = {
        "benchmark": name,
        "command": " ".join([f"python -m benchmarks.{name}", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "seed": arguments.seed,
        "rules": rule_set() if by_rules else None,
        "figures": figures,
        "bars": bars,
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        write_json(arguments.json, result)
    return 0


def markdown(heads: Sequence[str], rows: Iterable[Sequence], words: int = 1) -> str:
    """A table; its first so many columns are words, the others numbers."""
    align = ["---"] * words + ["---:"] * (len(heads) - words)
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (heads, align, *rows))


def each(names: list[str], folder: Path, work: Callable[[str], dict]) -> dict[str, dict]:
    """`work` for every name, resumably: a result that lies in the folder as NAME.json is not made again."""
    result = {}
    for name in names:
        path = folder / f"{name}.json"
        if not path.exists():
            write_json(path, work(name))
        result[name] = json.loads(path.read_text())
    return result
