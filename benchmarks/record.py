"""Storage of the finished parts of a benchmark, and publication of its record.

A record consists of tables and of the code and machine that produced them. Each benchmark is a module of this package
that makes one page of docs/results.

    def main() -> int:
        arguments = parser(__doc__, seeds=3).parse_args()
        record = Record("transfer", arguments)
        parts = record.all_parts({f"seed-{seed}": (measure, seed) for seed in range(arguments.seeds)})
        record.publish({"gains": Table(["model", "gain"], rows_of(parts))})
        return record.status

    if __name__ == "__main__":
        sys.exit(run(main))

A *part* is the unit of resumption: one function call whose result is a file below ``runs/results``. The name of the
file's folder contains a hash of commit, processor, packages and options, so a part is reused only if all of these are
equal. The tables of one record therefore never mix two commits or two machines. The date of a record is the date on
which its parts were computed, not the date of its publication.

The commit of a record is the last commit that changed CODE, so a commit of documentation alone leaves parts valid.
Uncommitted changes of CODE are refused. With ``--draft`` they are accepted, and the record stays below
``runs/results``.

``publish`` writes ``docs/results/NAME.json`` and updates the pages. ``python -m benchmarks.record`` only updates the
pages: it writes the Markdown of all records between markers in docs/results/*.md, docs/*.md and README.md. ``--check``
writes nothing and fails if a page would change.

    <!-- begin: NAME -->           how the record NAME was made
    <!-- begin: NAME TABLE -->     the table TABLE of the record NAME
    <!-- begin: index -->          one row for each record (docs/RESULTS.md)
    <!-- end -->
"""

import argparse
import hashlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash, read_json, write_json, write_text
from rlflow.common.processes import fresh_processes
from rlflow.graph.onnx_runtime import machine
from rlflow.runs.folder import versions

ROOT = Path(__file__).parent.parent
MAIN = sys.modules["__main__"]  # kept, because `fresh_processes` replaces it while another thread starts a process
RUNS = ROOT / "runs" / "results"
DOCS = ROOT / "docs"
# Paths whose content can change a result; tests and documentation are not among them.
CODE = ("rlflow", "worldmodel", "controllers", "benchmarks", "configs", "run.py", "setup.py", "constraints.txt")
PAGES = {  # name of each page → approximate minutes of its benchmark on two idle cores
    "speed": 10, "searches": 20, "optimise": 43, "first_use": 80, "warm": 35, "memory": 24, "transfer": 25,
    "world_models": 100, "equal_seconds": 38, "exports": 95, "slow_kernels": 9, "valleys": 65, "placement": 60,
    "expressions": 90, "expression_programs": 30, "ablations": 50, "temperatures": 200,
}  # fmt: skip
PACKAGES = ("numpy", "scipy", "numba", "onnx", "onnxruntime", "ortools", "tensorflow-cpu", "tensorflow")
LONGEST_PART_SECONDS = 3600  # an interrupted part is lost, so a warning is printed for a longer part
SHORT = 8  # number of hexadecimal digits of a hash in texts and folder names
BLOCK = re.compile(r"(<!-- begin: ([\w-]+)(?: ([\w-]+))? -->\n).*?(<!-- end -->)", re.DOTALL)


class RecordError(RLFlowError):
    """Raised when a record would mix parts of different code or machines, or when a record or a page is incomplete."""


# -- what made a result --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """The code and the machine that produce a result.

    Attributes:
        version: the version of RLFlow.
        commit: hash of the last commit that changed CODE; "unknown" outside a repository.
        changes: hash of the uncommitted changes of CODE; empty if everything is committed.
        machine: name of the processor, its vector extension and number of cores.
        packages: "python" and each installed package of PACKAGES → version.
    """

    version: str
    commit: str
    changes: str
    machine: str
    packages: Mapping[str, str]

    def __str__(self) -> str:
        changes = " with uncommitted changes" if self.changes else ""
        return f"RLFlow {self.version}, commit {self.commit[:SHORT]}{changes}, {self.machine}"


def current_identity() -> Identity:
    """Return the identity of this machine and of the code in this repository."""
    known = versions()
    packages = {name: known[name] for name in ("python", *PACKAGES) if name in known}
    return Identity(known["rlflow"], *_code_state(ROOT), machine(), packages)


def _code_state(root: Path) -> tuple[str, str]:
    """Return the last commit that changed CODE, and a hash of the uncommitted changes of CODE ("" without changes).

    The result is ("unknown", "") if `root` is no repository or git is missing.
    """
    try:
        commit = _git(root, "log", "-1", "--format=%H", "--", *CODE).decode().strip()
        digest = hashlib.sha256(_git(root, "diff", "HEAD", "--", *CODE))
        untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return "unknown", ""
    names = sorted(filter(None, untracked.decode().split("\0")))
    for name in names:
        digest.update(f"\n{name}\n".encode() + (root / name).read_bytes())
    is_clean = not names and digest.digest() == hashlib.sha256().digest()
    return commit, "" if is_clean else digest.hexdigest()[:SHORT]


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout


# -- tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table of a page, with formatted cells.

    Attributes:
        columns: the column heads, including units.
        rows: one sequence of formatted cells for each row.
        text_columns: number of leading columns that are aligned left; the other columns, of numbers, are aligned right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1

    def __post_init__(self):
        for row in self.rows:
            if len(row) != len(self.columns):
                raise RecordError(f"the row {list(row)} has {len(row)} cells for {len(self.columns)} columns.")

    def markdown(self) -> str:
        """Return the table in Markdown."""
        align = ["---"] * self.text_columns + ["---:"] * (len(self.columns) - self.text_columns)
        lines = (self.columns, align, *self.rows)
        return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


# -- making a record -----------------------------------------------------------------------------------


def parser(description: str, seeds: int | None = None) -> argparse.ArgumentParser:
    """Return an argument parser with the options --draft, --only-finished and, for a benchmark with seeds, --seeds.

    Args:
        description: text of `--help`: the docstring of the benchmark's module.
        seeds: default of --seeds, the number of seeds; None for a benchmark without this option.
    """
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if seeds is not None:
        result.add_argument("--seeds", type=int, default=seeds, metavar="N", help=f"seeds 0 to N - 1 (default {seeds})")
    result.add_argument("--draft", action="store_true", help="accept uncommitted changes; write no page of docs")
    result.add_argument("--only-finished", action="store_true", help="start no part; publish the finished parts")
    return result


class Record:
    """The parts of one benchmark for the current code, machine and options, and their publication as a record.

    Attributes:
        status: exit status of the command: 1 if a part failed, else 0.
        parts: name → file content of each finished part: "identity", "made" (date), "seconds" and "result".
        missing: names of the parts that have no result; the note of the record lists them.
    """

    def __init__(self, name: str, arguments: argparse.Namespace, runs: Path = RUNS, docs: Path = DOCS):
        """Choose the folder of parts by the current code, this machine, the options, and the files that they name.

        Args:
            name: name of the benchmark and of its page docs/results/NAME.md.
            arguments: the arguments that a parser made by `parser` has parsed.
            runs: folder that holds the parts of all benchmarks.
            docs: folder of the documentation.

        Raises:
            RecordError: CODE has uncommitted changes and `--draft` was not passed.
        """
        self.name, self.docs, self.status = name, docs, 0
        self.identity = current_identity()
        self.is_draft, self.only_finished = arguments.draft, arguments.only_finished
        self.seeds = getattr(arguments, "seeds", 0)
        if self.identity.changes and not self.is_draft:
            raise RecordError(
                f"the working tree has uncommitted changes in {', '.join(CODE)}, so no commit makes these results "
                "again. Commit the changes, or pass --draft to keep the record out of docs/."
            )
        chosen = {key: value for key, value in vars(arguments).items() if key not in _NOT_OPTIONS}
        self.options = _as_json(chosen)
        values = [value for given in self.options.values() for value in (given if isinstance(given, list) else [given])]
        named = [value for value in values if isinstance(value, str) and Path(value).is_file()]
        made_by = [asdict(self.identity), self.options, *map(file_hash, named)]
        self.folder = runs / name / f"{self.identity.commit[:SHORT]}-{_digest(made_by)}"
        self.parts: dict[str, dict] = {}
        self.missing: list[str] = []

    def part(self, name: str, work: Callable[..., dict], *arguments, isolated: bool = True) -> dict | None:
        """Return the result of `work(*arguments)`, read from the file of the part if an earlier run has finished it.

        If `work` raises an exception, the exception is printed and `status` becomes 1. The next run of the command
        tries the part again.

        Args:
            name: file name of the part. Calls with different functions or seeds need different names. A part that was
                made with other arguments, for instance another number of seeds, is made again.
            work: a module-level function whose result can be written as JSON.
            arguments: positional arguments of `work`.
            isolated: True to call `work` in a new process, so that caches and memory of other parts have no influence.

        Returns:
            The result; None if the part failed, or if it is unfinished and `--only-finished` was passed.

        Raises:
            RecordError: the code has changed since this object was made.
        """
        path = self.folder / f"{name}.json"
        if not self._is_finished(path, arguments) and not self.only_finished:
            self._make(path, work, arguments, isolated)
        if not self._is_finished(path, arguments):
            self.missing.append(name)
            return None
        self.parts[name] = read_json(path)
        return self.parts[name]["result"]

    def _is_finished(self, path: Path, arguments: Sequence) -> bool:
        return path.exists() and read_json(path)["arguments"] == _as_json(arguments)

    def all_parts(self, calls: Mapping[str, Sequence], at_once: int = 1) -> dict[str, dict]:
        """Compute all parts and return name → result of the parts with a result, in the order of `calls`.

        Args:
            calls: name of the part → (function, *arguments), see `part`.
            at_once: number of parts that run at the same time; 1 if the parts measure latencies.
        """
        with ThreadPoolExecutor(at_once) as pool:
            results = list(pool.map(lambda name: self.part(name, *calls[name]), calls))
        return {name: result for name, result in zip(calls, results, strict=True) if result is not None}

    def _check_code(self) -> None:
        if current_identity() != self.identity:
            raise RecordError("the code was changed while the benchmark ran. Start it again: it begins a new record.")

    def _make(self, path: Path, work: Callable[..., dict], arguments: Sequence, isolated: bool) -> None:
        self._check_code()
        print(f"{self.name}: {path.stem} …", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            result = _in_own_process(work, *arguments) if isolated else work(*arguments)
        except Exception as error:  # the other parts do not depend on this one, so they can still be computed
            print(f"{self.name}: {path.stem} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self.status = 1
            return
        seconds = time.monotonic() - started
        self._check_code()  # a part may start processes, which would have run the changed code
        made, given = datetime.now(UTC).isoformat(timespec="seconds"), _as_json(arguments)
        part = {"identity": asdict(self.identity), "arguments": given, "made": made, "seconds": seconds}
        write_json(path, part | {"result": result})
        print(f"{self.name}: {path.stem} took {seconds:.0f} s", file=sys.stderr, flush=True)
        if seconds > LONGEST_PART_SECONDS:
            print(f"{self.name}: {path.stem} took more than an hour; split this part.", file=sys.stderr, flush=True)

    def publish(self, tables: Mapping[str, Table], note: str = "") -> Path:
        """Write docs/results/NAME.json and all pages whose text changes, and return the path of the JSON file.

        A draft is written to the folder of its parts, as JSON and Markdown, and no page changes.

        Args:
            tables: name → table; the markers of the pages refer to tables by these names.
            note: a sentence for the header of the record, for instance a limit of this run.

        Raises:
            RecordError: no part is finished, or a part was computed by other code or on another machine.
        """
        if not self.parts:
            raise RecordError(f"no part of {self.name} is finished for {self.identity}. Run: {self.command}")
        if any(part["identity"] != asdict(self.identity) for part in self.parts.values()):
            raise RecordError(f"{self.folder} holds parts of other code or of another machine; remove the folder.")
        days = sorted(part["made"][:10] for part in self.parts.values())
        value = {
            "name": self.name,
            "command": self.command,
            **asdict(self.identity),
            "made": [days[0], days[-1]],
            "seconds": round(sum(part["seconds"] for part in self.parts.values())),
            "seeds": list(range(self.seeds)),
            "parts": len(self.parts),
            "note": " ".join(filter(None, (note, self._missing_parts()))),
            "tables": {name: asdict(table) for name, table in tables.items()},
        }
        path = (self.folder if self.is_draft else self.docs / "results") / f"{self.name}.json"
        write_json(path, value)
        if self.is_draft:
            texts = [header(value), *(table.markdown() for table in tables.values())]
            write_text(path.with_suffix(".md"), "\n\n".join(texts) + "\n")
        else:
            write_pages(self.docs)
        print(f"{self.name}: {path}", file=sys.stderr)
        return path

    def _missing_parts(self) -> str:
        if not self.missing:
            return ""
        all_parts = len(self.missing) + len(self.parts)
        return f"{len(self.missing)} of {all_parts}{MISSING}{', '.join(self.missing)}."

    @property
    def command(self) -> str:
        """The shell command that repeats this benchmark, without --draft and --only-finished.

        Absolute paths are shortened to their last component.
        """
        words = [word for word in sys.argv[1:] if word not in ("--draft", "--only-finished")]
        words = [Path(word).name if Path(word).is_absolute() else word for word in words]
        return shlex.join(["python", "-m", f"benchmarks.{self.name}", *words])


MISSING = " parts are missing: "  # in the note of a record

# Options that do not change the folder of parts: a run with more seeds reuses the parts of a run with fewer seeds.
_NOT_OPTIONS = ("draft", "only_finished", "seeds")


def _as_json(value):
    return json.loads(json.dumps(value, default=str))


def _digest(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:SHORT]


def _in_own_process(work: Callable[..., dict], *arguments) -> dict:
    # A new process has another main module, so it imports this one by name.
    module = MAIN.__spec__.name if work.__module__ == "__main__" else work.__module__
    with fresh_processes(1) as process:
        return process.submit(_call, module, work.__qualname__, *arguments).result()


def _call(module: str, function: str, *arguments) -> dict:
    return getattr(import_module(module), function)(*arguments)


def run(main: Callable[[], int]) -> int:
    """Call a benchmark's `main` and return its exit status; if it raises RLFlowError, print one line and return 2."""
    try:
        return main()
    except RLFlowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


# -- the pages -----------------------------------------------------------------------------------------


def header(record: Mapping) -> str:
    """Return a Markdown list of a record's command, version, date, machine, seeds, duration, packages and note."""
    seeds = record["seeds"]
    named_seeds = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}" if seeds else "no seeds"
    packages = ", ".join(f"{name} {number}" for name, number in record["packages"].items())
    lines = [
        f"- `{record['command']}`",
        f"- {_origin(record)}, {record['machine']}",
        f"- {named_seeds}, {_duration(record['seconds'])}, {packages}",
    ]
    return "\n".join(lines + [f"- {record['note']}"] * bool(record.get("note")))


def _origin(record: Mapping) -> str:
    first, last = record["made"]
    days = first if first == last else f"{first} to {last}"
    changes = " with uncommitted changes" if record["changes"] else ""
    return f"RLFlow {record['version']}, commit {record['commit'][:SHORT]}{changes}, {days}"


def _duration(seconds: float | None) -> str:
    """Return a duration such as "12 min", at least "1 min"; "duration not stated" for None."""
    return "duration not stated" if seconds is None else f"{max(1, round(seconds / 60))} min"


def table_of(record: Mapping, name: str) -> Table:
    """Return the table with this name from the JSON content of a record.

    Raises:
        RecordError: the record has no table with this name.
    """
    try:
        return Table(**record["tables"][name])
    except KeyError:
        raise RecordError(f"{record['name']} has no table {name!r}; it has {', '.join(record['tables'])}.") from None


def index(records: Iterable[Mapping]) -> str:
    """Return the Markdown table of docs/RESULTS.md: page, command, version and machine of each record."""
    rows = []
    for one in records:
        *words, rest = one["command"].split(" ", 3) if one["command"].count(" ") > 2 else (one["command"], "")
        command = f"`{' '.join(words)}{' …' * bool(rest)}`"
        rows.append([f"[{one['name']}](results/{one['name']}.md)", command, _origin(one), one["machine"]])
    return Table(["page", "command", "made by", "machine"], rows, text_columns=4).markdown()


def refill(text: str, fill: Callable[[str, str | None], str]) -> str:
    """Return the text of a page with new content in every block, that is between a begin and an end marker.

    Args:
        text: the text of the page.
        fill: function from (FIRST, SECOND) to the content of the block `<!-- begin: FIRST SECOND -->`. A block
            `<!-- begin: FIRST -->` passes None for SECOND.

    Raises:
        RecordError: a begin marker has no end marker, or an end marker has no begin marker.
    """
    if not text.count("<!-- begin: ") == text.count("<!-- end -->") == len(BLOCK.findall(text)):
        raise RecordError("a block has no end, or no beginning")
    return BLOCK.sub(lambda block: f"{block[1]}{fill(block[2], block[3])}\n{block[4]}", text)


def new_page(record: Mapping) -> str:
    """Return the text of a page for a new record: a title and empty blocks for the header and for every table."""
    blocks = [record["name"], *(f"{record['name']} {table}" for table in record["tables"])]
    title = f"# {record['name'].replace('_', ' ').capitalize()}"
    return "\n\n".join([title, *(f"<!-- begin: {block} -->\n<!-- end -->" for block in blocks)]) + "\n"


def filled_pages(docs: Path = DOCS) -> dict[Path, str]:
    """Return path → new text of every page that has blocks: in README.md, docs/*.md and docs/results/*.md.

    A record without a page gets a new page docs/results/NAME.md.

    Raises:
        RecordError: a marker names a record or a table that does not exist, or a begin or end marker is missing.
    """
    records = {path.stem: read_json(path) for path in sorted((docs / "results").glob("*.json"))}

    def fill(path: Path, name: str, table: str | None) -> str:
        if name == "index":
            return index(records.values())
        if name in PAGES and name not in records:
            return f"*There is no record yet. `python -m benchmarks.{name}` makes it.*"
        if name not in records:
            raise RecordError(f"{path} shows {name!r}, but docs/results/{name}.json does not exist.")
        if table is None:
            return header(records[name])
        if table not in records[name]["tables"] and MISSING in records[name]["note"]:
            return "*The part of this table is missing in the record.*"
        content = table_of(records[name], table).markdown()
        if path.parent.name == "results":  # the header stands on the same page
            return content
        link = Path("docs/results") if path.name == "README.md" else Path("results")
        return f"{content}\n\n([{name}]({link}/{name}.md): {_origin(records[name])}, {records[name]['machine']})"

    texts = {docs / "results" / f"{name}.md": new_page(record) for name, record in records.items()}
    for path in (docs.parent / "README.md", *docs.glob("*.md"), *(docs / "results").glob("*.md")):
        texts[path] = path.read_text(encoding="utf-8")
    return {
        path: refill(text, lambda name, table, path=path: fill(path, name, table))
        for path, text in texts.items()
        if "<!-- begin: " in text
    }


def write_pages(docs: Path) -> None:
    """Write the pages whose text changes, see `filled_pages`."""
    for path, text in _changed_pages(docs).items():
        write_text(path, text)


def _changed_pages(docs: Path) -> dict[Path, str]:
    return {
        path: text
        for path, text in filled_pages(docs).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }


def main(arguments: Sequence[str] | None = None, docs: Path = DOCS) -> int:
    """Update all pages; with `--check`, only report the pages that would change and return 1 if there are any.

    Args:
        arguments: command-line arguments; None for the arguments of the process.
        docs: folder of the documentation.
    """
    options = argparse.ArgumentParser(description="Write the tables of all records into the pages.")
    options.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page would change")
    if not options.parse_args(arguments).check:
        write_pages(docs)
        return 0
    changed = _changed_pages(docs)
    for path in changed:
        print(f"{path} is not up to date. Run: python -m benchmarks.record", file=sys.stderr)
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(run(main))
