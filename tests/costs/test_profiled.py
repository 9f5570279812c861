"""Test the profiled cost: one timing for each signature, shared between processes; fused operators are charged once."""

import multiprocessing
import sqlite3
import time

import onnx
import pytest

from rlflow.common.errors import RLFlowError
from rlflow.costs import FREE, GraphCost, TimeIsUp, graph_cost, profiled, timing, timing_until
from rlflow.costs.analytic import AnalyticCost, RooflineCost
from rlflow.costs.database import VERSION, TimingDatabase
from rlflow.costs.kernel_layout import block
from rlflow.costs.probe import Latency
from rlflow.costs.profiled import ProfiledCost
from rlflow.costs.timing import Timing
from rlflow.graph.onnx_reader import load_graph
from tests.costs.graphs import conv, graph, only, swap

LATENCY = Latency(0.5, 0.4, 0.6, original_ms=2.0, pairs=9, seconds=1.5)


@pytest.fixture
def model(tmp_path):
    return ProfiledCost(tmp_path / "costs.sqlite", budget_ms=1)


def rows(path) -> list[tuple]:
    with sqlite3.connect(path) as database:
        return database.execute("SELECT signature, threads, median_ns, repeats FROM timings").fetchall()


def test_a_kernel_is_timed_once_and_its_timing_is_stored(tmp_path, model, monkeypatch):
    g = conv("a = Conv(x, w, b) s = Abs(a) t = Exp(s) u = Abs(t) y = Neg(u)")
    cost = graph_cost(model, g)
    # Conv, Abs, Exp, Neg, an empty run, and a reorder if the Conv runs in blocks
    assert len(rows(model.database.path)) == 5 + (block() > 0)
    assert all(repeats >= timing.MIN_REPEATS and ns > 0 for _, _, ns, repeats in rows(model.database.path))
    monkeypatch.setattr(profiled, "time_model", lambda *_: pytest.fail("timed again"))
    assert graph_cost(ProfiledCost(model.database.path), g) == cost
    assert cost.flops == graph_cost(AnalyticCost(), g).flops


def test_a_kernel_that_reads_a_sequence_costs_the_roofline(model):
    parsed = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (seq(float[4]) s, int64 k) => (float[4] y) {
          t = SequenceAt (s, k)
          y = Relu (t)
        }"""
    )
    g = load_graph(parsed)
    assert graph_cost(model, g).runtime_ps > 0 and len(model.fallbacks) >= 1


def test_equal_kernels_share_one_timing_even_after_a_repetition(model):
    folded, apart = conv("y = Conv(x, w, b)"), conv("a = Conv(x, w) y = BatchNormalization(a, b, b, b, b)")

    def runtimes(cost) -> set[int]:
        return {cost.node_cost(g, only(g, "Conv")).runtime_ps for g in (folded, apart)}

    (first,) = runtimes(model)
    convolutions = [name for name, *_ in rows(model.database.path) if "Conv" in name]
    listed = {row["signature"]: row["median_ns"] for row in model.database.rows() if "Conv" in row["signature"]}
    assert len(convolutions) == 1 and len(listed) == 2 and len(set(listed.values())) == 1
    again = ProfiledCost(model.database.path, budget_ms=1)
    again.time_again(*[name for name in again.spread(apart, only(apart, "Conv")) if "Conv" in name])
    assert len(runtimes(again)) == 1 and len(runtimes(model)) == 1
    (repeats,) = [repeats for name, _, _, repeats in rows(model.database.path) if "Conv" in name]
    assert repeats >= 2 * timing.MIN_REPEATS


def test_known_kernels_are_answered_after_the_deadline_and_none_is_timed(model):
    known, unknown = conv("y = Conv(x, w, b)"), conv("a = Conv(x, w, b) y = Exp(a)")
    cost = graph_cost(model, known)
    with timing_until(model, time.monotonic()):
        assert graph_cost(model, known) == cost
        with pytest.raises(TimeIsUp):
            graph_cost(model, unknown)
    before = len(rows(model.database.path))
    assert graph_cost(model, unknown).runtime_ps > 0 and len(rows(model.database.path)) > before


def test_timings_are_stored_by_the_number_of_threads(model):
    g = graph("g (float[2] x) => (float[2] y) {y = Neg(x)}")
    graph_cost(model, g)
    graph_cost(ProfiledCost(model.database.path, threads=2, budget_ms=1), g)
    assert sorted(threads for _, threads, _, _ in rows(model.database.path)) == [1, 1, 2, 2]


def time_all(path):
    return graph_cost(ProfiledCost(path, budget_ms=20), conv("a = Conv(x, w, b) s = Abs(a) t = Exp(s) y = Neg(t)"))


def test_two_processes_share_one_database(tmp_path):
    path = tmp_path / "costs.sqlite"
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(time_all, [path, path], chunksize=1)
    assert first == second  # a second timing of a signature would have made the insertion fail
    assert len(rows(path)) == 5 + (block() > 0)


def test_intervals_contain_their_medians(model):
    graph_cost(model, conv("a = Conv(x, w, b) y = Neg(a)"))
    with sqlite3.connect(model.database.path) as database:
        result = database.execute("SELECT low_ns, median_ns, high_ns FROM timings").fetchall()
    assert result and all(0 < low <= median <= high for low, median, high in result)


def test_fused_operators_have_no_cost_of_their_own(model):
    g = conv("a = Conv(x, w, b) c = BatchNormalization(a, b, b, b, b) y = Relu(c)")
    assert model.node_cost(g, only(g, "BatchNormalization")) == model.node_cost(g, only(g, "Relu")) == FREE
    cost = model.node_cost(g, only(g, "Conv"))
    assert cost.flops == graph_cost(AnalyticCost(), g).flops and cost.bytes < graph_cost(AnalyticCost(), g).bytes
    (timed,) = [name for name, *_ in rows(model.database.path) if "Conv" in name]
    assert "BatchNormalization" in timed and "Relu" in timed


def test_identity_and_dropout_are_free(model):
    g = graph("g (float[2] x) => (float[2] y) {a = Identity(x) d = Dropout(a) y = Neg(d)}")
    assert model.node_cost(g, only(g, "Identity")) == model.node_cost(g, only(g, "Dropout")) == FREE


def test_a_total_updated_by_difference_is_exact_across_a_fusion(model):
    current = conv("a = Conv(x, w, b) t = Relu(a) y = Neg(t)")
    start = GraphCost.of(model, current)
    cost = start
    for op, new in (("Relu", "Abs"), ("Neg", "Exp"), ("Abs", "Relu"), ("Exp", "Neg")):
        current = swap(current, op, new)
        cost = cost.after(model, current, current.touched)
        assert cost.total == graph_cost(model, current)
    assert cost.total == start.total


def test_an_operator_that_cannot_be_timed_alone_gets_its_roofline_cost_and_is_counted(model):
    branch = "g (bool c, float[2] x) => (float[2] y) {y = If(c)<then_branch=a()=>(float[2] p){p=Relu(x)},"
    branch += "else_branch=b()=>(float[2] q){q=Neg(x)}>}"
    unknown = "g (float[2] x) => (float[2] y) {y = com.microsoft.NoSuchThing(x)}"
    for count, (body, why) in enumerate(((branch, "subgraph"), (unknown, "NoSuchThing")), start=1):
        g = graph(body, bodies=False)
        assert (
            graph_cost(model, g).runtime_ps == graph_cost(RooflineCost.open(1, model.database.path), g).runtime_ps > 0
        )
        assert len(model.fallbacks) == count and why in list(model.fallbacks.values())[-1]


def test_timed_kernels_get_valid_indices_and_constant_shapes(model):
    body = """g (float[5,4] table, int64[3] i) => (float[2,6] y) <int64[2] s = {2,6}>
      {t = Gather(table, i) u = Neg(t) two = Add(s, s) half = Sub(two, s) y = Reshape(u, half)}"""
    graph_cost(model, graph(body))
    assert model.fallbacks == {}


def test_a_damaged_database_is_refused_in_one_line(tmp_path):
    path = tmp_path / "costs.sqlite"
    path.write_bytes(b"this is not a database, but it is longer than a header" * 100)
    with pytest.raises(RLFlowError, match="cannot use the cost database .*costs.sqlite.*not a database") as caught:
        ProfiledCost(path)
    assert "\n" not in str(caught.value)


def test_timings_of_an_older_format_are_dropped_with_a_warning(tmp_path, capfd):
    path = tmp_path / "costs.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE timings (signature TEXT, median_ns REAL)")
        database.execute("INSERT INTO timings VALUES ('Conv', 1.0)")
    graph_cost(ProfiledCost(path, budget_ms=1), graph("g (float[2] x) => (float[2] y) {y = Neg(x)}"))
    assert len(rows(path)) == 2 and "of an older format" in capfd.readouterr().err
    ProfiledCost(path)
    assert len(rows(path)) == 2 and capfd.readouterr().err == ""


@pytest.fixture
def measured(tmp_path) -> TimingDatabase:
    """Return a database with a timing and a measured latency."""
    database = TimingDatabase(tmp_path / "costs.sqlite")
    database.store("Conv", 1, Timing(1.0, 1.0, 1.0, 1))
    database.keep_latency("new", "old", "[]", 1, LATENCY)
    return database


def test_measured_latencies_survive_an_older_format_but_timings_do_not(measured):
    with measured.connected() as connection:
        connection.execute("PRAGMA user_version = 1")
    again = TimingDatabase(measured.path)
    assert again.rows() == [] and again.latency("new", "old", "[]", 1) == LATENCY


def test_an_older_database_gets_its_missing_table_and_keeps_its_timings(measured):
    before = measured.rows()
    with measured.connected() as connection:
        connection.execute("DROP TABLE graph_latencies")
        # a table of earlier versions, which nothing reads
        connection.execute("CREATE TABLE graphs (graph TEXT, kernels BLOB)")
    again = TimingDatabase(measured.path)
    assert again.rows() == before and again.latency("new", "old", "[]", 1) is None
    assert again.clear() == 1


def test_clear_forgets_the_latencies_of_the_chosen_threads(measured):
    measured.clear(threads=2)
    assert measured.latency("new", "old", "[]", 1) == LATENCY
    measured.clear(threads=1)
    assert measured.latency("new", "old", "[]", 1) is None


@pytest.mark.parametrize("version", [0, VERSION])
@pytest.mark.parametrize("table", ["timings", "songs"])
def test_a_database_of_another_program_is_refused_and_stays_unchanged(tmp_path, table, version):
    path = tmp_path / "songs.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {table} (name TEXT, seconds REAL)")
        database.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(RLFlowError, match="songs.sqlite is no cost database"):
        ProfiledCost(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TRIGGER t AFTER INSERT ON timings BEGIN DELETE FROM timings; END",
        "DROP TABLE timings; CREATE VIEW timings AS SELECT 'x' AS signature, 1.0 AS median_ns",
    ],
)
def test_a_database_with_triggers_or_views_is_refused_and_stays_unchanged(tmp_path, made):
    path = tmp_path / "costs.sqlite"
    TimingDatabase(path)
    with sqlite3.connect(path) as database:
        database.executescript(made)
    database.close()
    before = path.read_bytes()
    with pytest.raises(RLFlowError, match="costs.sqlite is no cost database"):
        TimingDatabase(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", [".bashrc", "run.py", "costs"])
def test_a_new_database_is_not_made_under_the_name_of_another_kind_of_file(tmp_path, name):
    with pytest.raises(RLFlowError, match="a new cost database has a name that ends in .sqlite or .db"):
        TimingDatabase(tmp_path / "folder" / name)
    assert not list(tmp_path.iterdir())


def test_an_error_under_the_lock_is_not_blamed_on_the_database(tmp_path):
    database = TimingDatabase(tmp_path / "costs.sqlite")
    with pytest.raises(OSError, match="^too many open files$"), database.lock():
        raise OSError("too many open files")
    with database.lock():  # the lock was released
        pass
    (tmp_path / "costs.sqlite.lock").unlink()
    (tmp_path / "costs.sqlite.lock").mkdir()
    with pytest.raises(RLFlowError, match="cannot use the cost database"), database.lock():
        pytest.fail("without a lock")


def test_the_error_of_a_locked_database_does_not_suggest_deletion(tmp_path, monkeypatch):
    database, connect = TimingDatabase(tmp_path / "costs.sqlite"), sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout: connect(path, timeout=0))
    with sqlite3.connect(database.path, timeout=30) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(RLFlowError, match="is locked.; name another$"):
            database.store("Conv", 1, Timing(1.0, 1.0, 1.0, 1))


def test_a_database_of_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "costs.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1000")
    with pytest.raises(RLFlowError, match="newer"):
        ProfiledCost(path)


def test_an_unwritable_database_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RLFlowError, match="cannot use the cost database"):
        ProfiledCost(tmp_path / "file" / "costs.sqlite")
