"""Estimates for another machine, from timings that were recorded there.

    on the target:  rlflow costs record MODEL.onnx && rlflow costs export target.json
    elsewhere:      rlflow costs import target.json --database target.sqlite
                    rlflow optimise MODEL.onnx --out FASTER.onnx cost.database=target.sqlite

This machine neither times nor measures anything for the target. A kernel that was not recorded gets a cost of one
second, so that no search uses it. All kernels of the original model must have been recorded (`check_recorded`).

`costs export` writes a .json file for `costs import`, with the timings of one machine and one version of ONNX Runtime,
or a .csv table of all timings. The version of ONNX Runtime, the version of the database's format and the number of
channels in a block must be equal on both machines. Imported files are untrusted: every value is checked, and sizes are
bounded.
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
from rlflow.costs.kernel_models import Timed
from rlflow.costs.timing import Timing
from rlflow.graph.onnx_runtime import session

UNRECORDED = Timing(1e9, 1e9, 1e9, 1)  # one second; the timing of a kernel that was not recorded


@dataclass
class Target:
    """Another machine for which a cost model estimates costs.

    Attributes:
      machine: name of the machine.
      threads: threads of ONNX Runtime in its timings.
      database: the database file with its timings.
      missing: signatures of the kernels that were looked up and not found.
    """

    machine: str
    threads: int
    database: Path
    missing: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, database: TimingDatabase, threads: int) -> "Target | None":
        """Return the other machine whose timings a database holds; None if the timings are of this machine.

        Args:
          database: the database of timings.
          threads: threads of ONNX Runtime.
        """
        return cls(database.machine, threads, database.path) if database.is_foreign else None

    def unrecorded(self, name: str, build: Callable[[], Timed]) -> Timing:
        """Add the signature of a kernel that was not recorded to `missing`, and return the timing UNRECORDED.

        Args:
          name: signature of the kernel as text.
          build: function that makes the model of the kernel.

        Raises:
          NoTimingOfItsOwn: the kernel cannot be timed by itself on any machine.
        """
        timed = build()
        try:
            session(timed.model, self.threads, timed.optimise, apart=timed.apart)
        except RLFlowError as error:
            raise NoTimingOfItsOwn(str(error)) from error
        self.missing.add(name)
        return UNRECORDED


def target_of(cost) -> Target | None:
    """Return the target of a cost model; None if the model estimates costs for this machine or for every machine."""
    return getattr(cost, "target", None)


def check_recorded(cost) -> None:
    """Check that the target of a cost model has recorded all kernels whose cost was computed so far.

    Call this function after the cost of the original model was computed.

    Raises:
      RLFlowError: the target has not recorded a kernel.
    """
    target = target_of(cost)
    if target is not None and target.missing:
        record = f"rlflow costs record MODEL --threads {target.threads}"
        raise RLFlowError(
            f"{target.database} lacks {len(target.missing)} timings of this model's kernels with threads="
            f"{target.threads}; run `{record}` on {target.machine}, then export and import again"
        )


FORMAT = "rlflow timings"  # the entry "format" of every file
FILE_COLUMNS = ("machine", "onnxruntime")  # columns of a timing that a file states once for all rows
ROW_COLUMNS = tuple(name for name in COLUMNS if name not in FILE_COLUMNS)
MOST_BYTES = 200_000_000  # largest size of an imported file
LONGEST = {"machine": 200, "signature": 100_000}  # largest numbers of characters
MOST_THREADS, MOST_NS = 4096, 1e15


def export_timings(database: TimingDatabase, path: Path | str, threads: int | None, machine: str | None) -> int:
    """Write timings of a database to a file and return the number of timings written.

    Args:
      database: the database.
      path: NAME.csv for a table of all timings that meet the conditions below; NAME.json for the subset of them that
        was taken on the database's machine with the installed version of ONNX Runtime.
      threads: number of threads; None for any number.
      machine: text that the name of the machine contains, in upper or lower case; None for any machine.

    Raises:
      RLFlowError: the path has another suffix, or there are no timings for a .json file.
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
    described = {"format": FORMAT, **_required_values(), "machine": database.machine}
    rows = [row for row in rows if all(row[name] == described[name] for name in FILE_COLUMNS)]
    if not rows:
        raise RLFlowError(
            f"{database.path} holds no such timings of {database.machine} with this ONNX Runtime; take some with "
            "`costs record MODEL.onnx`"
        )
    write_json(path, described | {"timings": [{name: row[name] for name in ROW_COLUMNS} for row in rows]})
    return len(rows)


def read_timings(path: Path | str) -> tuple[str, list[dict]]:
    """Read a .json file of `export_timings`.

    Returns:
      (machine, rows), the arguments of `TimingDatabase.import_rows`.

    Raises:
      RLFlowError: the file holds something else or is damaged, or `_required_values` differ.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise RLFlowError(f"{path} is larger than any file of timings ({MOST_BYTES / 1e6:.0f} MB); name another file")
    held = read_json(path)
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise RLFlowError(f"{path} is no file of timings: `costs export NAME.json` writes one")
    for name, ours in _required_values().items():
        if held.get(name) != ours:
            raise RLFlowError(
                f"{path} was recorded with {name}={held.get(name)!r}, but here it is {ours!r}, so the kernels differ; "
                "both machines need the same RLFlow, ONNX Runtime and number of channels in a block"
            )
    if not _is_text(held.get("machine"), LONGEST["machine"]):
        raise RLFlowError(f"{path} is damaged: 'machine' is not a name")
    timings = held.get("timings")
    if not isinstance(timings, list):
        raise RLFlowError(f"{path} is damaged: 'timings' is not a list")
    for number, row in enumerate(timings):
        if wrong := _row_error(row):
            raise RLFlowError(f"{path} is damaged: timing {number}: {wrong}")
    return held["machine"], [row | {name: held[name] for name in FILE_COLUMNS} for row in timings]


def _required_values() -> dict[str, object]:
    """Return the values that must be equal on the machine that writes a file and on the machine that reads it."""
    return {"version": VERSION, "onnxruntime": onnxruntime.__version__, "block": block()}


def _row_error(row: object) -> str | None:
    """Return the reason why an element of the list `timings` in a file is invalid; None for a valid timing."""
    if not isinstance(row, Mapping) or set(row) != set(ROW_COLUMNS):
        return f"it does not have exactly {', '.join(ROW_COLUMNS)}"
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
