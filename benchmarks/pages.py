"""Writes docs/results/README.md, what docs/RESULTS.md shows of docs/results/*.json (conditions, bars, tables), and
configs/default.yaml.

    python -m benchmarks.pages            write all three
    python -m benchmarks.pages --check    exit with 1 if one of them is not what would be written

In docs/RESULTS.md all that stands between `<!-- begin: NAME -->` and `<!-- end -->` is written from NAME.json: its rule
set and its bars. Where a second word follows the name, it is what that function of the benchmark makes of the figures
(Markdown).

A result is stale if its rules are not those of today, or if it states none; `"rules": null` says that rules do not
matter to it.
"""

import argparse
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.harness import SHORT, markdown, rule_set
from rlflow.common.files import read_json, write_text
from rlflow.runs.options import PAGE, page

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"(<!-- begin: (\w+)(?: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
NOT_STATED = {"hash": None}
LONGEST = 26  # bars that RESULTS.md shows one by one; of more, those that do not hold


# -- what one result says ------------------------------------------------------------------------------


def rules_of(result: dict) -> dict | None:
    """{"hash", "count"} of the rules that it was made with; NOT_STATED; None if they do not matter to it."""
    if "benchmark" not in result and "hash" in result:  # of `run.py rules prove`, which lists them
        return {"hash": result["hash"], "count": len(result["rules"])}
    return result.get("rules", NOT_STATED)


def is_stale(result: dict, today: dict) -> bool:
    rules = rules_of(result)
    return rules is not None and rules["hash"] != today["hash"]


def rules_in_words(result: dict) -> str:
    rules = rules_of(result)
    if rules is None:
        return "–"
    return "not stated" if rules is NOT_STATED else f"{rules['hash'][:SHORT]} ({rules['count']})"


def revision(result: dict) -> str:
    commit, *changes = result.get("versions", {}).get("git_commit", "–").split(" ")
    return " ".join([commit[:SHORT], *changes])


def held(result: dict) -> str:
    bars = result.get("bars", [])
    return f"{sum(bar['holds'] for bar in bars)} of {len(bars)}" if bars else "–"


def bars_table(bars: list[dict]) -> str:
    rows = [[bar["name"], with_unit(bar), bar["limit"], "yes" if bar["holds"] else "**no**"] for bar in bars]
    return markdown(["bar", "value", "limit", "holds"], rows)


def with_unit(bar: dict) -> str:
    value = bar["value"]
    if isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "–"}[value]
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    else:
        text = value
    return f"{text} {bar['unit']}".rstrip()


# -- the pages -----------------------------------------------------------------------------------------


def index(results: dict[str, dict], today: dict) -> str:
    """docs/results/README.md."""
    stale = [name for name, result in results.items() if is_stale(result, today)]
    rows = [
        [
            f"[{name}]({name}.json)", f"`{result['command']}`" if "command" in result else "–", rules_in_words(result),
            "**STALE**" if name in stale else "current", revision(result), held(result),
        ]
        for name, result in results.items()
    ]  # fmt: skip
    missed = [
        [name, bar["name"], with_unit(bar), bar["limit"]]
        for name, result in results.items()
        for bar in result.get("bars", [])
        if not bar["holds"]
    ]
    return f"""# Results, and what they were made with

Written by `python -m benchmarks.pages` from the JSON files of this folder; [RESULTS.md](../RESULTS.md) says what they
mean.

The rule set of today is {today["hash"][:SHORT]} ({today["count"]} rules). A result that was made with another one is
**STALE**, and so is one that does not state its rules ("not stated"): run its command again, with
`--json docs/results/NAME.json`. "–": rules do not matter to it. Stale now: {len(stale)} of {len(results)}.

{markdown(["result", "command", "rules", "state", "revision", "bars that hold"], rows, words=5)}

## Bars that do not hold

{markdown(["result", "bar", "value", "limit"], missed, words=2)}
"""


def block(name: str, result: dict, today: dict) -> str:
    """What stands in docs/RESULTS.md of a result as a whole."""
    state = "**stale**" if is_stale(result, today) else "current"
    made = {"–": "does not depend on the rules", "not stated": f"does not state its rules: {state}"}
    words = rules_in_words(result)
    text = f"[{name}.json](results/{name}.json) {made.get(words, f'was made with the rules {words}: {state}')}."
    bars = result.get("bars", [])
    if not bars:
        return text
    shown = bars if len(bars) <= LONGEST else [bar for bar in bars if not bar["holds"]]
    text += f" Bars that hold: {held(result)}" + ("." if shown == bars or not shown else "; the others:")
    return "\n\n".join([text, bars_table(shown)] if shown else [text])


def refilled(text: str, results: dict[str, dict], today: dict) -> str:
    """docs/RESULTS.md with its blocks written anew.

    Raises ValueError if one has no end, KeyError if there is no such result.
    """

    def fill(match: re.Match) -> str:
        begin, name, function, end = match.groups()
        result = results[name]
        return (
            f"{begin}{made_by(result, function)(result['figures']) if function else block(name, result, today)}\n{end}"
        )

    if text.count("<!-- begin: ") != len(BLOCK.findall(text)) or text.count("<!-- begin: ") != text.count(
        "<!-- end -->"
    ):
        raise ValueError("a block of RESULTS.md has no end, or no beginning")
    return BLOCK.sub(fill, text)


def made_by(result: dict, function: str) -> Callable[[dict], str]:
    return getattr(import_module(f"benchmarks.{result['benchmark']}"), function)


def pages(docs: Path) -> dict[Path, str]:
    """What the two files of docs should hold."""
    results, today = {path.stem: read_json(path) for path in sorted((docs / "results").glob("*.json"))}, rule_set()
    report = docs / "RESULTS.md"
    return {docs / "results" / "README.md": index(results, today), report: refilled(report.read_text(), results, today)}


def main(arguments: list[str] | None = None, docs: Path = DOCS) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    check, status = parser.parse_args(arguments).check, 0
    for path, text in {**pages(docs), PAGE: page()}.items():
        if path.exists() and path.read_text() == text:
            continue
        if check:
            print(f"{path} is not up to date: python -m benchmarks.pages", file=sys.stderr)
            status = 1
        else:
            write_text(path, text)
    return status


if __name__ == "__main__":
    sys.exit(main())
