"""The database of timings: one row a signature, machine, number of threads and version of ONNX Runtime.

A SQLite file that several processes may share; it is a cache, so that of an older format the timings are dropped, and
what is seen of graphs, which holds estimates by them. What was measured end to end stays, and so does a file of others.

Beside them stands what families of rules were measured to do to whole files (`rlflow.optimisation.contest`), what whole
graphs were measured to take (`rlflow.costs.measurements`), and of all that was measured what a learned latency sees
of it
(`rlflow.costs.measurements`).

A database answers with the timings of one machine: this one, or that of which somebody took timings into it from a file
(`rlflow.costs.target`). Then it is that machine's for good, and nothing is timed into it elsewhere.
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
from typing import NamedTuple

import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.common.system import locked
from rlflow.costs.measured import Latency
from rlflow.costs.timing import Timing
from rlflow.graph.onnx_runtime import machine

VERSION = 4  # of the format below and of what a signature means: timings of another version are of other things
COLUMNS = ("signature", "threads", "machine", "onnxruntime", "date", "median_ns", "low_ns", "high_ns", "repeats")
TABLE = """CREATE TABLE IF NOT EXISTS timings (
    signature TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT,
    median_ns REAL, low_ns REAL, high_ns REAL, repeats INTEGER,
    PRIMARY KEY (signature, threads, machine, onnxruntime))"""
# What a family of rules did to files on this machine: their latency with its rewrites, of that without them.
FAMILIES = """CREATE TABLE IF NOT EXISTS families (
    family TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT, ratio REAL, low REAL, high REAL)"""
# What a graph takes, end to end, as a share of what the graph takes that it was rewritten from.
LATENCIES = """CREATE TABLE IF NOT EXISTS latencies (
    graph TEXT, original TEXT, sizes TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT,
    ratio REAL, low REAL, high REAL, original_ms REAL, pairs INTEGER, seconds REAL,
    PRIMARY KEY (graph, original, sizes, threads, machine, onnxruntime))"""
# Every measurement of a graph beside the one that it was rewritten from, whoever took it.
MEASUREMENTS = """CREATE TABLE IF NOT EXISTS measurements (
    graph TEXT, original TEXT, sizes TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT,
    ratio REAL, low REAL, high REAL, original_ms REAL)"""
# What is seen of graphs that were measured: `rlflow.costs.measurements.to_bytes`.
GRAPHS = """CREATE TABLE IF NOT EXISTS graphs (
    graph TEXT, sizes TEXT, threads INTEGER, machine TEXT, onnxruntime TEXT, date TEXT, kernels BLOB,
    PRIMARY KEY (graph, sizes, threads, machine, onnxruntime))"""
MEASURED = ("families", "latencies", "measurements", "graphs")  # what `clear` deletes beside the timings
TARGET = "CREATE TABLE IF NOT EXISTS target (machine TEXT)"  # a row where the database is another machine's
OURS = {"signature", "median_ns"}  # columns of the timings in all formats so far
LEAST_WIDTH = 0.005  # of an interval: no measurement is surer
INSERT = f"INTO timings VALUES ({','.join(f':{column}' for column in COLUMNS)})"


class Pair(NamedTuple):
    """graph, original: hashes.  sizes: those of their symbols, as text."""

    graph: str
    original: str
    sizes: str


class MeasuredPair(NamedTuple):
    """ratio, low, high: what the graph takes of what the original takes, with its 95 % interval.  original_ms: what
    that takes; None where it is not known."""

    pair: Pair
    ratio: float
    low: float
    high: float
    original_ms: float | None


def default_path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlflow" / "costs.sqlite"


class TimingDatabase:
    """Raises RLFlowError, from any method, if the file is damaged, is of a newer format, is a database of something
    else or cannot be written.

    Attributes:
      machine: whose timings it answers with.
    """

    def __init__(self, path: Path | str | None = None):
        self.path = Path(path or default_path())
        with self.connected() as connection:  # a bad path shows now, not in the middle of an episode
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(timings)")}
        if tables and not columns >= OURS:
            raise RLFlowError(f"{self.path} is no cost database; name another")
        if version > VERSION:
            raise RLFlowError(
                f"the cost database {self.path} is of a newer RLFlow (format {version}, not {VERSION}); name another"
            )
        if version < VERSION:
            self._renew(tables > 0)
        with self.connected() as connection:
            connection.execute(TARGET)
            for table in (FAMILIES, LATENCIES, MEASUREMENTS, GRAPHS):
                connection.execute(table)
            target = connection.execute("SELECT machine FROM target").fetchone()
        self.machine = target[0] if target else machine()

    @property
    def is_foreign(self) -> bool:
        """Whether it is another machine's."""
        return self.machine != machine()

    def _renew(self, used: bool) -> None:
        with self.lock(), self.connected() as connection:
            connection.execute("PRAGMA journal_mode=WAL")  # for good: it stands in the file
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
                return  # another process was first
            connection.execute("DROP TABLE IF EXISTS timings")
            connection.execute("DROP TABLE IF EXISTS graphs")
            connection.execute(TABLE)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        if used:
            say(
                f"the timings in {self.path} were of an older format of RLFlow; they are dropped and will be taken anew"
            )

    def check_here(self) -> None:
        """Raises RLFlowError if it is another machine's: nothing is timed into it here."""
        if self.is_foreign:
            raise RLFlowError(f"{self.path} holds the timings of {self.machine}, and nothing is timed into it here")

    def look_up(self, signature: str, threads: int) -> Timing | None:
        query = (
            "SELECT median_ns, low_ns, high_ns, repeats FROM timings"
            " WHERE signature=? AND threads=? AND machine=? AND onnxruntime=?"
        )
        with self.connected() as connection:
            row = connection.execute(query, (signature, threads, self.machine, onnxruntime.__version__)).fetchone()
        return Timing(*row) if row else None

    def store(self, signature: str, threads: int, timing: Timing) -> None:
        """Raises RLFlowError if the signature is there."""
        self._insert("INSERT", signature, threads, timing)

    def replace(self, signature: str, threads: int, timing: Timing) -> None:
        self._insert("INSERT OR REPLACE", signature, threads, timing)

    def _insert(self, verb: str, signature: str, threads: int, timing: Timing) -> None:
        self.check_here()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        row = (signature, threads, self.machine, onnxruntime.__version__, date, *timing)
        with self.connected() as connection:
            connection.execute(f"{verb} {INSERT}", dict(zip(COLUMNS, row, strict=True)))

    def take(self, machine: str, rows: Sequence[Mapping]) -> None:
        """Keeps rows of a machine, instead of what there was of the same kernels. An empty database becomes that
        machine's.

        Raises RLFlowError if it holds timings of another one, or is the user's own and they are of another one.
        """
        with self.lock(), self.connected() as connection:
            (held,) = connection.execute("SELECT count(*) FROM timings").fetchone()
            if machine != self.machine:
                if held or self.is_foreign or self.path == default_path():
                    raise RLFlowError(
                        f"{self.path} is the database of {self.machine}; the timings of {machine} go into one of their "
                        "own: --database FILE"
                    )
                connection.execute("INSERT INTO target VALUES (?)", (machine,))
            connection.executemany(f"INSERT OR REPLACE {INSERT}", rows)
        self.machine = machine

    def rows(self, threads: int | None = None, machine: str | None = None) -> list[dict]:
        """All rows, or those of so many threads, or of machines whose name holds the text."""
        where, values = _where(threads, machine)
        with self.connected() as connection:
            result = connection.execute(
                f"SELECT {','.join(COLUMNS)} FROM timings{where} ORDER BY 1, 2, 3, 4", values
            ).fetchall()
        return [dict(zip(COLUMNS, row, strict=True)) for row in result]

    def clear(self, threads: int | None = None, machine: str | None = None) -> int:
        """Deletes what `rows` would give, and what was measured there; returns how many timings."""
        where, values = _where(threads, machine)
        with self.lock(), self.connected() as connection:
            for table in MEASURED:
                connection.execute(f"DELETE FROM {table}{where}", values)
            return connection.execute(f"DELETE FROM timings{where}", values).rowcount

    def keep_family(self, family: str, threads: int, ratio: float, low: float, high: float) -> None:
        """Keeps what a family of rules was measured to do to a file: its latency with them, of that without."""
        self.check_here()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        row = (family, threads, self.machine, onnxruntime.__version__, date, ratio, low, high)
        with self.connected() as connection:
            connection.execute(f"INSERT INTO families VALUES ({','.join('?' * len(row))})", row)

    def families(self, threads: int) -> dict[str, float]:
        """Family → the geometric mean of what it was measured to do; what is surer counts more, as its square."""
        query = "SELECT family, ratio, low, high FROM families WHERE threads=? AND machine=? AND onnxruntime=?"
        with self.connected() as connection:
            rows = connection.execute(query, (threads, self.machine, onnxruntime.__version__)).fetchall()
        sums: dict[str, tuple[float, float]] = {}
        for family, ratio, low, high in rows:
            weight = 1 / max(math.log(high / low), LEAST_WIDTH) ** 2
            total, weights = sums.get(family, (0.0, 0.0))
            sums[family] = total + weight * math.log(ratio), weights + weight
        return {family: math.exp(total / weights) for family, (total, weights) in sorted(sums.items())}

    def keep_latency(self, graph: str, original: str, sizes: str, threads: int, latency: Latency) -> None:
        """Keeps what a graph was measured to take. graph, original: hashes.  sizes: those of its symbols.

        Raises RLFlowError if it is there.
        """
        self.check_here()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        row = (graph, original, sizes, threads, self.machine, onnxruntime.__version__, date, *latency)
        with self.connected() as connection:
            connection.execute(f"INSERT INTO latencies VALUES ({','.join('?' * len(row))})", row)

    def latency(self, graph: str, original: str, sizes: str, threads: int) -> Latency | None:
        query = (
            f"SELECT {','.join(Latency._fields)} FROM latencies"
            " WHERE graph=? AND original=? AND sizes=? AND threads=? AND machine=? AND onnxruntime=?"
        )
        key = (graph, original, sizes, threads, self.machine, onnxruntime.__version__)
        with self.connected() as connection:
            row = connection.execute(query, key).fetchone()
        return Latency(*row) if row else None

    def keep_measurement(self, pair: "Pair", threads: int, ratio: Sequence[float], original_ms: float | None) -> None:
        """Keeps what one graph was measured to take of what another one takes. ratio: and its 95 % interval.
        original_ms: what the other one took; None where that is not known."""
        self.check_here()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        row = (*pair, threads, self.machine, onnxruntime.__version__, date, *ratio, original_ms)
        with self.connected() as connection:
            connection.execute(f"INSERT INTO measurements VALUES ({','.join('?' * len(row))})", row)

    def measurements(self, threads: int) -> list["MeasuredPair"]:
        """All that were taken, the first one first."""
        query = (
            f"SELECT {','.join((*Pair._fields, *MeasuredPair._fields[1:]))} FROM measurements"
            " WHERE threads=? AND machine=? AND onnxruntime=? ORDER BY rowid"
        )
        with self.connected() as connection:
            rows = connection.execute(query, (threads, self.machine, onnxruntime.__version__)).fetchall()
        return [MeasuredPair(Pair(*row[:3]), *row[3:]) for row in rows]

    def keep_graph(self, graph: str, sizes: str, threads: int, kernels: bytes) -> None:
        """Keeps what is seen of a graph, instead of what there was. graph: its hash."""
        self.check_here()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        row = (graph, sizes, threads, self.machine, onnxruntime.__version__, date, kernels)
        with self.connected() as connection:
            connection.execute(f"INSERT OR REPLACE INTO graphs VALUES ({','.join('?' * len(row))})", row)

    def graphs(self, threads: int) -> dict[tuple[str, str], bytes]:
        """(hash, sizes) → what is seen of the graph."""
        query = "SELECT graph, sizes, kernels FROM graphs WHERE threads=? AND machine=? AND onnxruntime=?"
        with self.connected() as connection:
            rows = connection.execute(query, (threads, self.machine, onnxruntime.__version__)).fetchall()
        return {(graph, sizes): kernels for graph, sizes, kernels in rows}

    @contextlib.contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: an object that holds none may be forked, pickled and shared."""
        with self._said_plainly():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
                yield connection

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process times at a time, so that timings do not disturb each other.

        What its block raises is its own; only that there is no lock is the database's.
        """
        with contextlib.ExitStack() as held:
            with self._said_plainly():
                held.enter_context(locked(self.path.with_name(f"{self.path.name}.lock")))
            yield

    @contextlib.contextmanager
    def _said_plainly(self) -> Iterator[None]:
        """Only of what is damaged, or no database at all, SQLite says DatabaseError and nothing more special."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            advice = "delete it or name another" if type(error) is sqlite3.DatabaseError else "name another"
            raise RLFlowError(f"cannot use the cost database {self.path} ({error}); {advice}") from error


def _where(threads: int | None, machine: str | None) -> tuple[str, list]:
    clauses = [("threads = ?", threads), ("instr(lower(machine), lower(?)) > 0", machine)]
    chosen = [(clause, value) for clause, value in clauses if value is not None]
    return " WHERE " + " AND ".join(clause for clause, _ in chosen) if chosen else "", [value for _, value in chosen]


# -- what is in it ---------------------------------------------------------------------------------


def summary(rows: list[dict]) -> list[dict]:
    """For each kind of kernel, threads, machine and version: count of timings, median in µs, first and last date."""
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
    """The operators of a signature, e.g. 'Conv + Relu'; of other rows their name."""
    result = re.findall(r"\('[^']*','([^']+)',\d+,", signature)
    return " + ".join(result) or re.sub(r"\W*(\w[\w: ]*).*", r"\1", signature)


def summary_table(result: list[dict]) -> str:
    """Markdown."""
    lines = [
        "| operator | threads | machine | onnxruntime | timings | median, µs | from | to |",
        "| --- |" + " --- |" * 7,
    ]
    for row in result:
        shown = (
            row["operator"], row["threads"], row["machine"], row["onnxruntime"], row["count"],
            f"{row['median_us']:.1f}", row["first"][:10], row["last"][:10],
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return "\n".join(lines)
