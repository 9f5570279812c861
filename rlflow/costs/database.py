"""The database of kernel timings and of end-to-end measurements, a SQLite file that several processes may share.

The table of timings has one row for each signature, machine, number of threads and version of ONNX Runtime. Other
tables hold end-to-end measurements: the effect of rule families on whole files (`rlflow.optimisation.contest`) and the
latencies of graphs (`rlflow.costs.measurements`). Timings are a cache: they are deleted if the file has an older
format. End-to-end measurements stay. Tables that only earlier versions used, `measurements`, `graphs`, `kernels` and
`latencies`, are ignored.

Look-ups return the timings of one machine. This is the present machine, or the machine whose timings were imported
(`rlflow.costs.target`). After such an import the database belongs to that other machine, and the present machine adds
no timings to it.
"""

import contextlib
import math
import os
import re
import sqlite3
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import markdown_table, say
from rlflow.common.system import locked
from rlflow.costs.probe import Latency
from rlflow.costs.timing import Timing
from rlflow.graph.onnx_runtime import machine

VERSION = 6  # version of the tables below, of the meaning of a signature and of how kernels are timed
COLUMNS = ("signature", "threads", "machine", "onnxruntime", "date", "median_ns", "low_ns", "high_ns", "repeats")
TABLE = """CREATE TABLE IF NOT EXISTS timings (
    signature TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT,
    median_ns REAL, low_ns REAL, high_ns REAL, repeats INTEGER,
    PRIMARY KEY (signature, threads, machine, onnxruntime))"""
# Digests of the kernels that ONNX Runtime makes of timed operators (`rlflow.costs.signatures.kernel_digest`).
KERNELS = """CREATE TABLE IF NOT EXISTS kernel_digests (
    signature TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT, kernel TEXT,
    PRIMARY KEY (signature, threads, machine, onnxruntime))"""
KERNEL_INDEX = "CREATE INDEX IF NOT EXISTS kernel_digest ON kernel_digests (kernel)"
_KEY = "signature = ? AND threads = ? AND machine = ? AND onnxruntime = ?"
# For each signature in `kernel_digests`: a timed signature of an equal kernel, the first in the order of texts.
_EQUAL = """SELECT own.signature AS signature, own.threads AS threads, own.machine AS machine,
        own.onnxruntime AS onnxruntime, min(timings.signature) AS timed
    FROM (SELECT * FROM kernel_digests WHERE {where}) AS own
    JOIN kernel_digests AS other USING (kernel, threads, machine, onnxruntime)
    JOIN timings ON (timings.signature, timings.threads, timings.machine, timings.onnxruntime)
        = (other.signature, own.threads, own.machine, own.onnxruntime)
    GROUP BY 1, 2, 3, 4"""
TIMED_AS = f"""SELECT signature FROM timings WHERE {_KEY} UNION ALL SELECT timed FROM ({_EQUAL.format(where=_KEY)})
    UNION ALL SELECT signature FROM kernel_digests WHERE {_KEY}"""
# Measured effects of rule families: the latency of a file with a family's rewrites / its latency without them.
FAMILIES = """CREATE TABLE IF NOT EXISTS families (
    family TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT, ratio REAL, low REAL, high REAL)"""
# Measured latencies of graphs, relative to their originals: one row for each graph and each set of conditions.
LATENCIES = """CREATE TABLE IF NOT EXISTS graph_latencies (
    graph TEXT, original TEXT, conditions TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT,
    ratio REAL, low REAL, high REAL, original_ms REAL, pairs INTEGER, seconds REAL,
    PRIMARY KEY (graph, original, conditions, threads, machine, onnxruntime))"""
BESIDE = ("kernel_digests", "families", "graph_latencies")  # tables from which `clear` also deletes rows
TARGET = "CREATE TABLE IF NOT EXISTS target (machine TEXT)"  # a row if the timings are of another machine
OURS = {"signature", "median_ns"}  # columns that the table of timings has in all formats so far
SUFFIXES = ".sqlite", ".db"  # endings of the name of a new database
LEAST_WIDTH = 0.005  # smallest value used for the width log(high / low) of a 95 % interval of a ratio
INSERT = f"INTO timings VALUES ({','.join(f':{column}' for column in COLUMNS)})"


def default_path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlflow" / "costs.sqlite"


class TimingDatabase:
    """A database of timings and measurements.

    Every method raises RLFlowError if the file is damaged, has a newer format, is another database or cannot be
    written.

    Attributes:
      path: the SQLite file.
      machine: name of the machine whose timings and measurements the look-ups return.
    """

    def __init__(self, path: Path | str | None = None):
        self.path = Path(path or default_path())
        if self.path.suffix not in SUFFIXES and not (self.path.is_file() and self.path.stat().st_size):
            # The config of another person cannot make other files, such as scripts that a shell runs.
            raise RLFlowError(f"a new cost database has a name that ends in {' or '.join(SUFFIXES)}, not {self.path}")
        with self.connected() as connection:  # An unusable path fails here, not in the middle of an episode.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            kinds = {kind for (kind,) in connection.execute("SELECT type FROM sqlite_master")}
            columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(timings)")}
        # Views and triggers would run what another person wrote.
        if kinds and not (columns >= OURS and kinds <= {"table", "index"}):
            raise RLFlowError(f"{self.path} is no cost database; name another file (cost.database=FILE)")
        if version > VERSION:
            raise RLFlowError(
                f"the cost database {self.path} was written by a newer RLFlow (format {version}, not {VERSION}); "
                "update RLFlow or name another file (cost.database=FILE)"
            )
        if version < VERSION:
            self._renew(bool(kinds))
        with self.connected() as connection:
            connection.execute(TARGET)
            for table in (KERNELS, KERNEL_INDEX, FAMILIES, LATENCIES):
                connection.execute(table)
            target = connection.execute("SELECT machine FROM target").fetchone()
        self.machine = target[0] if target else machine()

    @property
    def is_foreign(self) -> bool:
        """True if the timings are of a machine other than the present machine."""
        return self.machine != machine()

    def _renew(self, used: bool) -> None:
        with self.lock(), self.connected() as connection:
            connection.execute("PRAGMA journal_mode=WAL")  # The mode is stored in the file.
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
                return  # Another process has renewed it meanwhile.
            for name, table in (("timings", TABLE), ("kernel_digests", KERNELS)):
                connection.execute(f"DROP TABLE IF EXISTS {name}")
                connection.execute(table)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        if used:
            say(
                f"the timings in {self.path} were of an older format of RLFlow; they are deleted, and kernels are "
                "timed again when they are needed"
            )

    def check_here(self) -> None:
        """Check that this machine may add timings and measurements.

        Raises:
          RLFlowError: the timings are of another machine (`is_foreign`).
        """
        if self.is_foreign:
            raise RLFlowError(
                f"{self.path} holds the timings of {self.machine}, and nothing is timed into it here; run "
                "`costs record` on that machine, or name another file (cost.database=FILE)"
            )

    def look_up(self, signature: str, threads: int) -> Timing | None:
        """Return the timing of a kernel on `self.machine` with the installed ONNX Runtime; None if it was never timed.

        Args:
          signature: signature of the kernel as text.
          threads: threads of ONNX Runtime.
        """
        columns = ("median_ns", "low_ns", "high_ns", "repeats")
        rows = self._select(columns, "timings", threads, signature=signature)
        return Timing(*rows[0]) if rows else None

    def threads(self) -> list[int]:
        """Return the numbers of threads for which `self.machine` has timings with the installed ONNX Runtime."""
        where = "machine = ? AND onnxruntime = ?"
        with self.connected() as connection:
            query = f"SELECT DISTINCT threads FROM timings WHERE {where} ORDER BY threads"
            return [count for (count,) in connection.execute(query, (self.machine, onnxruntime.__version__))]

    def timings(self, threads: int) -> dict[str, Timing]:
        """Return signature → timing, for all signatures that `look_up` knows.

        A signature whose timing is stored under the signature of an equal kernel (`timed_as`) has no entry.

        Args:
          threads: threads of ONNX Runtime.
        """
        rows = self._select(("signature", "median_ns", "low_ns", "high_ns", "repeats"), "timings", threads)
        return {signature: Timing(*timing) for signature, *timing in rows}

    def equal_kernels(self, threads: int) -> dict[str, str]:
        """Return signature → the signature under which an equal kernel was timed, for signatures with such a kernel.

        Args:
          threads: threads of ONNX Runtime.
        """
        where = "threads = ? AND machine = ? AND onnxruntime = ?"
        with self.connected() as connection:
            values = threads, self.machine, onnxruntime.__version__
            return {own: timed for own, *_, timed in connection.execute(_EQUAL.format(where=where), values)}

    def keep_kernel(self, signature: str, threads: int, kernel: str) -> None:
        """Store the digest of the kernel that ONNX Runtime makes of operators.

        Args:
          signature: signature of the operators as text.
          threads: threads of ONNX Runtime.
          kernel: the digest.
        """
        self._add("INSERT OR REPLACE INTO kernel_digests", (signature,), threads, kernel)

    def timed_as(self, signature: str, threads: int) -> str | None:
        """Return the signature under which the timing of a kernel is or will be stored.

        Args:
          signature: signature of the operators as text.
          threads: threads of ONNX Runtime.

        Returns:
          The signature of the timed operators of an equal kernel, or the signature itself if no such operators were
          timed. None if the kernel is not known (`keep_kernel`).
        """
        with self.connected() as connection:
            values = signature, threads, self.machine, onnxruntime.__version__
            return next((timed for timed, in connection.execute(TIMED_AS, values * 3)), None)

    def store(self, signature: str, threads: int, timing: Timing) -> None:
        """Add the timing of a kernel.

        Args:
          signature: signature of the kernel as text.
          threads: threads of ONNX Runtime.
          timing: the timing.

        Raises:
          RLFlowError: the kernel has a timing already, or the timings are of another machine (`is_foreign`).
        """
        self._add("INSERT INTO timings", (signature,), threads, *timing)

    def replace(self, signature: str, threads: int, timing: Timing) -> None:
        """Add the timing of a kernel, or replace its stored timing; the arguments are as in `store`."""
        self._add("INSERT OR REPLACE INTO timings", (signature,), threads, *timing)

    def _add(self, insert: str, key: Sequence, threads: int, *values) -> None:
        """Add a row of the present time to a table.

        Args:
          insert: the statement up to the name of the table.
          key: values of the columns before `threads`.
          threads: threads of ONNX Runtime.
          *values: values of the columns after `date`.

        Raises:
          RLFlowError: the timings are of another machine (`is_foreign`).
        """
        self.check_here()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        row = (*key, threads, self.machine, onnxruntime.__version__, date, *values)
        with self.connected() as connection:
            connection.execute(f"{insert} VALUES ({','.join('?' * len(row))})", row)

    def _select(self, columns: Sequence[str], table: str, threads: int, **equal: str) -> list[tuple]:
        """Return rows of a table on `self.machine` with the installed ONNX Runtime, in the order of storing.

        Args:
          columns: names of the columns to return.
          table: name of the table.
          threads: threads of ONNX Runtime.
          **equal: name of a further column → its value in the rows.
        """
        equal |= {"threads": threads, "machine": self.machine, "onnxruntime": onnxruntime.__version__}
        where = " AND ".join(f"{column}=?" for column in equal)
        with self.connected() as connection:
            query = f"SELECT {','.join(columns)} FROM {table} WHERE {where} ORDER BY rowid"
            return connection.execute(query, tuple(equal.values())).fetchall()

    def import_rows(self, machine: str, rows: Sequence[Mapping]) -> None:
        """Add the timings of a machine, and replace timings of the same kernels.

        If the database is empty and `machine` is not its machine, the database belongs to `machine` afterwards.

        Args:
          machine: name of the machine.
          rows: for each timing, a mapping from the names in COLUMNS to values.

        Raises:
          RLFlowError: `machine` is not the machine of the database, and the database holds timings, belongs to another
            machine (`is_foreign`), or is the user's default database.
        """
        with self.lock(), self.connected() as connection:
            (held,) = connection.execute("SELECT count(*) FROM timings").fetchone()
            if machine != self.machine:
                if held or self.is_foreign or self.path == default_path():
                    raise RLFlowError(
                        f"{self.path} is the database of {self.machine}; import the timings of {machine} into another "
                        "file: --database FILE"
                    )
                connection.execute("INSERT INTO target VALUES (?)", (machine,))
            connection.executemany(f"INSERT OR REPLACE {INSERT}", rows)
        self.machine = machine

    def rows(self, threads: int | None = None, machine: str | None = None) -> list[dict]:
        """Return all timings that meet the conditions, each as a mapping from the names in COLUMNS to values.

        A signature without a timing of its own has the timing of an equal kernel (`timed_as`).

        Args:
          threads: number of threads; None for any number.
          machine: text that the name of the machine contains, in upper or lower case; None for any machine.
        """
        where, values = _where(threads, machine)
        with self.connected() as connection:
            timings = connection.execute(f"SELECT {','.join(COLUMNS)} FROM timings{where}", values).fetchall()
            equal = connection.execute(_EQUAL.format(where=True)).fetchall()
        found = {row[:4]: row for row in timings}
        for signature, *where, timed in equal:
            if (timed, *where) in found:
                found.setdefault((signature, *where), (signature, *found[timed, *where][1:]))
        return [dict(zip(COLUMNS, found[key], strict=True)) for key in sorted(found)]

    def clear(self, threads: int | None = None, machine: str | None = None) -> int:
        """Delete timings, digests of kernels and end-to-end measurements, and return the number of deleted timings.

        Args:
          threads: number of threads; None for any number.
          machine: text that the name of the machine contains, in upper or lower case; None for any machine.
        """
        where, values = _where(threads, machine)
        with self.lock(), self.connected() as connection:
            for table in BESIDE:
                connection.execute(f"DELETE FROM {table}{where}", values)
            return connection.execute(f"DELETE FROM timings{where}", values).rowcount

    def keep_family(self, family: str, threads: int, ratio: float, low: float, high: float) -> None:
        """Store the measured effect of a rule family on a file.

        Args:
          family: name of the family.
          threads: threads of ONNX Runtime.
          ratio: latency of the file with the rewrites of the family / latency without these rewrites.
          low, high: the 95 % interval of the ratio.
        """
        self._add("INSERT INTO families", (family,), threads, ratio, low, high)

    def families(self, threads: int) -> dict[str, float]:
        """Return the mean latency ratio of each rule family over all files for which `keep_family` stored a ratio.

        The mean is geometric. A ratio with the 95 % interval [low, high] has the weight 1 / log(high / low)².

        Args:
          threads: threads of ONNX Runtime in the measurements.

        Returns:
          name of the family → ratio; below 1, the family makes files faster.
        """
        sums: dict[str, tuple[float, float]] = {}
        for family, ratio, low, high in self._select(("family", "ratio", "low", "high"), "families", threads):
            weight = 1 / max(math.log(high / low), LEAST_WIDTH) ** 2
            total, weights = sums.get(family, (0.0, 0.0))
            sums[family] = total + weight * math.log(ratio), weights + weight
        return {family: math.exp(total / weights) for family, (total, weights) in sorted(sums.items())}

    def keep_latency(self, graph: str, original: str, conditions: str, threads: int, latency: Latency) -> None:
        """Store the latency of a graph relative to its original.

        Args:
          graph, original: hashes of the graph and its original.
          conditions: conditions of the measurement as text (`Probe.conditions`).
          threads: threads of ONNX Runtime.
          latency: the latency.

        Raises:
          RLFlowError: a latency is stored already for these arguments.
        """
        self._add("INSERT INTO graph_latencies", (graph, original, conditions), threads, *latency)

    def latency(self, graph: str, original: str, conditions: str, threads: int) -> Latency | None:
        """Return the latency that `keep_latency` stored with the same arguments; None if it stored nothing."""
        key = {"graph": graph, "original": original, "conditions": conditions}
        rows = self._select(Latency._fields, "graph_latencies", threads, **key)
        return Latency(*rows[0]) if rows else None

    @contextlib.contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """Open a connection to the database for one transaction, which the end of the block commits.

        The object holds no connection between transactions, so it can be forked, pickled and shared.
        """
        with self._sqlite_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
                yield connection

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock file of the database within the block, so that only one process at a time measures.

        Raises:
          RLFlowError: the lock file cannot be used. Errors of the block are passed on unchanged.
        """
        with contextlib.ExitStack() as held:
            with self._sqlite_errors():
                held.enter_context(locked(self.path.with_name(f"{self.path.name}.lock")))
            yield

    @contextlib.contextmanager
    def _sqlite_errors(self) -> Iterator[None]:
        """Raise errors of SQLite and of the file system within the block as RLFlowError.

        For a damaged file or a file of another kind, SQLite raises DatabaseError itself instead of one of its
        subclasses.
        """
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            advice = "delete it or name another" if type(error) is sqlite3.DatabaseError else "name another"
            raise RLFlowError(f"cannot use the cost database {self.path} ({error}); {advice}") from error


def _where(threads: int | None, machine: str | None) -> tuple[str, list]:
    clauses = [("threads = ?", threads), ("instr(lower(machine), lower(?)) > 0", machine)]
    chosen = [(clause, value) for clause, value in clauses if value is not None]
    return " WHERE " + " AND ".join(clause for clause, _ in chosen) if chosen else "", [value for _, value in chosen]


# -- summary ---------------------------------------------------------------------------------------


def summary(rows: list[dict]) -> list[dict]:
    """Summarise timings in groups with equal operators, threads, machine and version of ONNX Runtime.

    Args:
      rows: timings as `TimingDatabase.rows` returns them.

    Returns:
      for each group, a mapping with operator, threads, machine, onnxruntime, count, median_us, first and last date.
    """
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((operators(row["signature"]), row["threads"], row["machine"], row["onnxruntime"]), []).append(
            row
        )
    return [
        {
            **dict(zip(("operator", "threads", "machine", "onnxruntime"), key, strict=True)),
            "count": len(result),
            "median_us": statistics.median(row["median_ns"] for row in result) / 1e3,
            "first": min(row["date"] for row in result),
            "last": max(row["date"] for row in result),
        }
        for key, result in sorted(groups.items())
    ]


def operators(signature: str) -> str:
    """Return the operators in a signature, e.g. 'Conv + Relu'; for another stored value its name, e.g. 'session'."""
    result = re.findall(r"\('[^']*','([^']+)',\d+,", signature)
    return " + ".join(result) or re.sub(r"\W*(\w[\w: ]*).*", r"\1", signature)


def summary_table(result: list[dict]) -> str:
    """Return the result of `summary` as a Markdown table."""
    head = ("operator", "threads", "machine", "onnxruntime", "timings", "median, µs", "from", "to")
    rows = [
        (
            row["operator"], str(row["threads"]), row["machine"], row["onnxruntime"], str(row["count"]),
            f"{row['median_us']:.1f}", row["first"][:10], row["last"][:10],
        )
        for row in result
    ]  # fmt: skip
    return markdown_table(head, rows)
