"""Estimates for another machine, by timings that were recorded there.

    on the target:  rlflow costs record MODEL.onnx && rlflow costs export target.json
    elsewhere:      rlflow costs import target.json --database target.sqlite
                    rlflow optimise MODEL.onnx --out FASTER.onnx cost.database=target.sqlite

This machine neither times nor measures anything for the target. A kernel that was not recorded costs so much that no
search uses it; all kernels of the model itself must have been recorded (`check_recorded`).

A file holds the timings of one machine with one ONNX Runtime: as a table for people (.csv) or for `costs import`
(.json). The version of ONNX Runtime, the format and the number of channels in a block must be the same on both sides.
Imported files are untrusted: every value is checked, and sizes are bounded.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_bytes, write_json
from rlflow.costs.database import COLUMNS, VERSION, TimingDatabase
from rlflow.costs.kernel_layout import NoTimingOfItsOwn, block
from rlflow.costs.timing import Timed, Timing
from rlflow.graph.onnx_runtime import session

UNRECORDED = Timing(1e9, 1e9, 1e9, 1)  # a second


@dataclass
class Target:
    """The machine that a cost estimates for.

    Attributes:
      machine: its name.  threads: with so many.  database: the file of its timings.
      missing: signatures that were asked about and not recorded.
    """

    machine: str
    threads: int
    database: Path
    missing: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, database: TimingDatabase, threads: int) -> "Target | None":
        """None where the database is this machine's."""
        return cls(database.machine, threads, database.path) if database.is_foreign else None

    def unrecorded(self, name: str, build: Callable[[], Timed]) -> Timing:
        """Of a kernel that the database does not hold. Raises NoTimingOfItsOwn if it has none on any machine."""
        timed = build()
        try:
            session(timed.model, self.threads, timed.optimise)
        except RLFlowError as error:
            raise NoTimingOfItsOwn(str(error)) from error
        self.missing.add(name)
        return UNRECORDED


def target_of(cost) -> Target | None:
    """The other machine that a cost model estimates for; None where it is this one, or all."""
    return getattr(cost, "target", None)


def check_recorded(cost) -> None:
    """To be asked once a model's own cost is known. Raises RLFlowError if a timing of it was not recorded."""
    target = target_of(cost)
    if target is not None and target.missing:
        record = f"rlflow costs record MODEL --threads {target.threads}"
        raise RLFlowError(
            f"{target.database} lacks {len(target.missing)} timings of this model's kernels with threads="
            f"{target.threads}; on {target.machine}: {record}, then export and import again"
        )


FORMAT = "rlflow timings"
OF_FILE = ("machine", "onnxruntime")  # columns that are the same in all rows of a file
OF_ROW = tuple(name for name in COLUMNS if name not in OF_FILE)
MOST_BYTES = 200_000_000
LONGEST = {"machine": 200, "signature": 100_000}  # characters
MOST_THREADS, MOST_NS = 4096, 1e15


def export_timings(database: TimingDatabase, path: Path | str, threads: int | None, machine: str | None) -> int:
    """Writes timings, chosen as `TimingDatabase.rows` does; how many.

    A .csv holds all of them; a .json those that the database answers with: of its machine and the installed ONNX
    Runtime. Raises RLFlowError for another suffix, or where nothing is left for a .json.
    """
    rows, suffix = database.rows(threads, machine), Path(path).suffix
    if suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        write_bytes(path, text.getvalue().encode())
        return len(rows)
    if suffix != ".json":
        raise RLFlowError(f"{path}: the name must end in .json (for `costs import`) or .csv (a table)")
    described = {"format": FORMAT, **_described(), "machine": database.machine}
    rows = [row for row in rows if all(row[name] == described[name] for name in OF_FILE)]
    if not rows:
        raise RLFlowError(f"{database.path} holds no such timings of {database.machine} with this ONNX Runtime")
    write_json(path, described | {"timings": [{name: row[name] for name in OF_ROW} for row in rows]})
    return len(rows)


def read_timings(path: Path | str) -> tuple[str, list[dict]]:
    """(the machine, rows as `TimingDatabase.take` takes them) of a file that `export` wrote.

    Raises RLFlowError if it is not one, or is of kernels that this ONNX Runtime does not have.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise RLFlowError(f"{path} is larger than any file of timings ({MOST_BYTES / 1e6:.0f} MB)")
    held = read_json(path)
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise RLFlowError(f"{path} is no file of timings: `costs export NAME.json` writes one")
    for name, ours in _described().items():
        if held.get(name) != ours:
            raise RLFlowError(f"{path} was recorded with {name}={held.get(name)!r}, here it is {ours!r}: other kernels")
    if not _is_text(held.get("machine"), LONGEST["machine"]):
        raise RLFlowError(f"{path} is damaged: 'machine' is not a name")
    timings = held.get("timings")
    if not isinstance(timings, list):
        raise RLFlowError(f"{path} is damaged: 'timings' is not a list")
    for number, row in enumerate(timings):
        if wrong := _wrong(row):
            raise RLFlowError(f"{path} is damaged: timing {number}: {wrong}")
    return held["machine"], [row | {name: held[name] for name in OF_FILE} for row in timings]


def _described() -> dict[str, object]:
    """What must be the same on the machine that a file comes from and on that where it is read."""
    return {"version": VERSION, "onnxruntime": onnxruntime.__version__, "block": block()}


def _wrong(row: object) -> str | None:
    """What is wrong with the timing of a file."""
    if not isinstance(row, Mapping) or set(row) != set(OF_ROW):
        return f"it does not have exactly {', '.join(OF_ROW)}"
    if not _is_text(row["signature"], LONGEST["signature"]) or not _is_date(row["date"]):
        return "'signature' or 'date' is not one"
    if not _is_whole(row["threads"], MOST_THREADS) or not _is_whole(row["repeats"], 2**53):
        return "'threads' or 'repeats' is not a number above 0"
    times = [row[name] for name in ("low_ns", "median_ns", "high_ns")]
    if any(type(ns) not in (int, float) or not abs(ns) < math.inf for ns in times):
        return "a time is not a number"
    low, median, high = times
    return None if 0 <= low <= median <= high <= MOST_NS else "its times are not in order, or too long"


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= longest and value.isprintable()


def _is_whole(value: object, most: int) -> bool:
    return type(value) is int and 0 < value <= most


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value) is not None
    except ValueError:
        return False
