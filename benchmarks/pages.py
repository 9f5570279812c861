"""Writes docs/RESULTS.md, docs/results/*.md, the figures of README.md and docs/IDIOMS.md, and configs/default.yaml.

    python -m benchmarks.pages            write them; exit with 1 if a result is stale, naming what renews it
    python -m benchmarks.pages --check    write nothing; exit with 1 if a page is not what would be written

docs/RESULTS.md has the bars of all results, docs/results/NAME.md all that is to say of benchmarks.NAME. What stands
there between `<!-- begin: RESULT -->` and `<!-- end -->` is written from docs/results/RESULT.json: how it was made, and
its bars. Where a second word follows, it is what that function of the benchmark makes of the figures (Markdown). All
else is written by hand.

A result is stale if the rule set is another than the one that it was made with, or the code that it judges
(`benchmarks.judged`), or ONNX Runtime; also if it does not state them. `"rules": null` says that rules do not matter.
"""

import argparse
import re
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getdoc
from pathlib import Path

from benchmarks.bars import bars_table, groups_of, groups_table, holding, most_telling, names_of, worst
from benchmarks.harness import SHORT, markdown, rule_set
from benchmarks.judged import judged
from rlflow.common.files import read_json, write_text
from rlflow.runs.config import PAGE, page

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"(<!-- begin: (\w+)(?: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
LONGEST = 60  # characters of a command on docs/RESULTS.md; its page has it in full


# -- what one result says of itself --------------------------------------------------------------------


def aged(result: dict) -> list[str]:
    """What has changed since, in words; empty if it is current."""
    why, then, now = [], result.get("judged", {}), judged(result["benchmark"])
    if "rules" not in result:
        why.append("its rules are not stated")
    elif result["rules"] and result["rules"]["hash"] != rule_set()["hash"]:
        why.append("the rules have changed")
    changed = [path for path in now if path in then and then[path] != now[path]]
    unstated = [path for path in now if path not in then]
    forgotten = [path for path in then if path not in now]
    version = result.get("versions", {}).get("onnxruntime")
    if changed:
        why.append(f"changed: {in_code(changed)}")
    if unstated:
        why.append(f"not stated: {in_code(unstated)}")
    if forgotten:
        why.append(f"no longer judged: {in_code(forgotten)}")
    if version and version != pinned("onnxruntime"):
        why.append(f"ONNX Runtime was {version}")
    return why


def pinned(package: str) -> str:
    """Its version in constraints.txt."""
    text = (DOCS.parent / "constraints.txt").read_text(encoding="utf-8")
    return re.search(rf"^{package}==(\S+)", text, re.MULTILINE)[1]


def in_code(paths: list[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def renewal(name: str, result: dict) -> str:
    """The command that makes the result anew, and how long that took."""
    seconds = result.get("seconds")
    took = f"    ({seconds / 60:.0f} min)" if seconds else ""
    return f"{result['command']} --json docs/results/{name}.json{took}"


def origin(name: str, result: dict) -> str:
    """How it was made, and whether that is still so: one list."""
    rules = result.get("rules", {})
    if rules:
        rules = f"{rules['hash'][:SHORT]} ({rules['count']})"
    else:
        rules = "do not matter" if rules is None else "not stated"
    made = [f"made on {result['made']}"]
    if "versions" in result:
        commit, *changes = result["versions"]["git_commit"].split(" ")
        made.append(" ".join(["at revision", commit[:SHORT], *changes]))
    if "machine" in result:
        made.append(f"on {result['machine']}")
    why = "; ".join(aged(result))
    return "\n".join([
        f"- `{result['command']}`",
        f"- [{name}.json]({name}.json), {' '.join(made)}; rules: {rules}",
        f"- **STALE**: {why}" if why else "- current: rules and judged code are those of today",
    ])  # fmt: skip


def bars_of(result: dict) -> str:
    """Its bars: grouped, with the single ones unfolding, where several ask the same; else one by one."""
    bars = result["bars"]
    if len(groups_of(bars)) == len(bars):
        return bars_table(bars)
    return (
        f"{groups_table(bars)}\n\n<details><summary>All {len(bars)} bars</summary>\n\n{bars_table(bars)}\n\n</details>"
    )


# -- the pages -----------------------------------------------------------------------------------------


def overview(results: dict[str, dict]) -> str:
    """The bars of docs/RESULTS.md."""
    rows = []
    for name, result in results.items():
        link = f"[{name}](results/{result['benchmark']}.md)"
        made = result["made"] + (" **STALE**" if aged(result) else "")
        command = short(result["command"])
        shown, others = most_telling(result["bars"])
        for group in shown:
            name = f"{link}: {names_of(group)}"
            rows.append([name, worst(group), group[0]["limit"], holding(group), made, command])
            command = ""  # once is enough
        if others:
            rows.append([f"{link}: also {names_of(others)}", "", "", holding(others), made, command])
    return markdown(["bar", "worst value", "limit", "holds", "made", "command"], rows, words=6)


def short(command: str) -> str:
    return f"`{command}`" if len(command) <= LONGEST else f"`{command[:LONGEST].rpartition(' ')[0]} …`"


def summary(results: dict[str, dict]) -> str:
    bars = [bar for result in results.values() for bar in result["bars"]]
    stale = sum(bool(aged(result)) for result in results.values())
    return f"{len(results)} results, {stale} of them stale; bars that hold: {holding(bars)}."


def template(benchmark: str, names: list[str]) -> str:
    """A page to begin with: the first line of the benchmark's docstring, and its blocks."""
    module = import_module(f"benchmarks.{benchmark}")
    blocks = []
    for name in names:
        blocks += [f"<!-- begin: {name} -->\n<!-- end -->"]
        blocks += [f"<!-- begin: {name} table -->\n<!-- end -->"] if hasattr(module, "table") else []
    return "\n\n".join([f"# {getdoc(module).splitlines()[0].rstrip('.')}", *blocks]) + "\n"


def refilled(text: str, fill: Callable[[str, str | None], str]) -> str:
    """A page with its blocks written anew. `fill`: both words of a block → its text.

    Raises ValueError if one has no end or no beginning.
    """
    if not text.count("<!-- begin: ") == text.count("<!-- end -->") == len(BLOCK.findall(text)):
        raise ValueError("a block has no end, or no beginning")
    return BLOCK.sub(lambda match: f"{match[1]}{fill(match[2], match[3])}\n{match[4]}", text)


def drawn_by(result: dict, function: str) -> str:
    """What a function of its benchmark makes of a result's figures."""
    return getattr(import_module(f"benchmarks.{result['benchmark']}"), function)(result["figures"])


def filled_page(text: str, results: dict[str, dict]) -> str:
    """The page of a benchmark. Raises ValueError if one of its results is not on it, KeyError for another's."""

    def fill(name: str, function: str | None) -> str:
        result = results[name]
        return drawn_by(result, function) if function else "\n\n".join([origin(name, result), bars_of(result)])

    filled = refilled(text, fill)
    for name in results:
        if f"<!-- begin: {name} -->" not in text:
            raise ValueError(f"{name}.json is not on its page")
    return filled


def with_figures(text: str, results: dict[str, dict], folder: str) -> str:
    """A page of which each block shows figures of a result, and says when that was made, and whether it is stale.

    folder: of the results' pages, as this page links to them.
    """

    def fill(name: str, function: str) -> str:
        result = results[name]
        made = f"{result['made']}, **STALE**" if aged(result) else result["made"]
        return f"{drawn_by(result, function)}\n\n([{name}]({folder}/{result['benchmark']}.md), {made})"

    return refilled(text, fill)


def pages(docs: Path, results: dict[str, dict]) -> dict[Path, str]:
    """What the README and the pages of docs should hold."""
    report, made = docs / "RESULTS.md", {}
    blocks = {"summary": summary, "bars": overview}
    made[report] = refilled(report.read_text(encoding="utf-8"), lambda name, _: blocks[name](results))
    for path, folder in ((docs.parent / "README.md", "docs/results"), (docs / "IDIOMS.md", "results")):
        if path.exists():
            made[path] = with_figures(path.read_text(encoding="utf-8"), results, folder)
    for benchmark in dict.fromkeys(result["benchmark"] for result in results.values()):
        path = docs / "results" / f"{benchmark}.md"
        own = {name: result for name, result in results.items() if result["benchmark"] == benchmark}
        made[path] = filled_page(path.read_text() if path.exists() else template(benchmark, list(own)), own)
    return made


def main(arguments: list[str] | None = None, docs: Path = DOCS) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    check = parser.parse_args(arguments).check
    results = {path.stem: read_json(path) for path in sorted((docs / "results").glob("*.json"))}
    other = {
        path: text
        for path, text in {**pages(docs, results), PAGE: page()}.items()
        if not path.exists() or path.read_text() != text
    }
    if check:
        for path in other:
            print(f"{path} is not up to date: python -m benchmarks.pages", file=sys.stderr)
        return int(bool(other))
    for path, text in other.items():
        write_text(path, text)
    stale = [renewal(name, result) for name, result in results.items() if aged(result)]
    if stale:
        print(f"{len(stale)} of {len(results)} results are stale:", *stale, sep="\n", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
