"""Test optimising here for another machine: timings travel, nothing is timed here, and delivered files are judged."""

import json
from functools import partial

import onnxruntime
import pytest

from rlflow.cli.main import main
from rlflow.common.errors import RLFlowError
from rlflow.costs import analytic, database, profiled, target
from rlflow.costs.database import VERSION, TimingDatabase
from rlflow.costs.timing import Timing
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.optimisation import delivery
from rlflow.runs import config
from tests.commands import Done, in_process

HERE, THERE = "Here CPU, 2 cores", "There CPU, 8 cores"
MODEL = "tiny_squeezenet1_1"
SHORT = ("search.interactions=300", *(f"search.{key}" for key in (
    "beam.width=2", "beam.depth=2", "annealing.restarts=1", "annealing.steps=10", "grasp.patience=3",
)))  # fmt: skip
GOOD = {"signature": "x", "threads": 1, "date": "2026-01-01T00:00:00+00:00", "median_ns": 2.0, "low_ns": 1.0,
        "high_ns": 3, "repeats": 5}  # fmt: skip


def move(patch: pytest.MonkeyPatch, machine: str, times: float | None) -> None:
    """Pretend that the following code runs on `machine`, where a kernel takes `times` ns for each byte of its model.

    With None for `times`, the test fails as soon as a kernel is timed.
    """

    def time_model(timed, *_) -> Timing:
        assert times is not None, "nothing is timed here"
        return Timing(*[times * (1000 + timed.model.ByteSize())] * 3, 5)

    patch.setattr(database, "machine", lambda: machine)
    patch.setattr(profiled, "time_model", time_model)
    patch.setattr(analytic, "time_model", time_model)


def run(capsys, *words) -> Done:
    done = in_process(capsys, *words)
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """Return the folder of there.sqlite and there.json, recorded on the machine THERE."""
    folder = tmp_path_factory.mktemp("there")
    with pytest.MonkeyPatch.context() as patch:
        move(patch, THERE, 3.0)
        # shortens the searches of `costs record`
        patch.setattr(config, "load_config", partial(config.load_config, [], SHORT))
        kept = ("--database", str(folder / "there.sqlite"))
        assert main(["costs", "record", MODEL, "--threads", "2", "--seconds", "600", *kept]) == 0
        assert main(["costs", "export", str(folder / "there.json"), *kept]) == 0
    return folder


@pytest.fixture
def at(monkeypatch):
    return partial(move, monkeypatch)


@pytest.fixture
def recorded(there, at, capsys, tmp_path):
    """Return a database of the machine THERE that was imported on the machine HERE."""
    at(HERE, None)
    run(capsys, "costs", "import", there / "there.json", "--database", tmp_path / "here.sqlite")
    return tmp_path / "here.sqlite"


def test_timings_of_another_machine_drive_a_search_that_measures_nothing(
    there, recorded, at, capsys, tmp_path, monkeypatch
):
    measurements = []
    monkeypatch.setattr(delivery, "measure", lambda *given: measurements.append(given))
    words = ("optimise", MODEL, "--threads", 2, "--seconds", 600, *SHORT)
    out, results = tmp_path / "f.onnx", tmp_path / "f.json"
    done = run(capsys, *words, "--out", out, "--json", results, f"cost.database={recorded}")
    assert f"on {THERE}; not yet measured there" in done.ending["result"] and not measurements
    assert done.ending["next"].endswith(f"measure {MODEL} {out} --threads 2")
    outcome = json.loads(results.read_text())["eval"]
    assert outcome["target"] == THERE and outcome["delivered"] != "original"
    at(THERE, 3.0)
    task = EnvSpec(MODEL, threads=2, database=str(there / "there.sqlite")).make_task()
    assert outcome["original"]["estimated_ms"] == task.initial.runtime_ms and task.cost.target is None


def test_timings_for_another_model_or_other_threads_must_be_recorded_first(recorded):
    for model, threads in (("tiny_bert_base", 2), (MODEL, 1)):
        with pytest.raises(RLFlowError, match=f"rlflow costs record MODEL --threads {threads}` on {THERE}"):
            _ = EnvSpec(model, threads=threads, database=str(recorded)).make_task().initial


def test_a_graph_without_recorded_timings_is_too_expensive_for_a_search(at, capsys, tmp_path):
    at(THERE, 3.0)
    task = EnvSpec(MODEL, cost="profiled", database=str(tmp_path / "there.sqlite")).make_task()
    known = task.initial.cost.runtime_ps  # this times only the model's own kernels
    target.export_timings(TimingDatabase(tmp_path / "there.sqlite"), tmp_path / "there.json", None, None)
    at(HERE, None)
    run(capsys, "costs", "import", tmp_path / "there.json", "--database", tmp_path / "here.sqlite")
    task = EnvSpec(MODEL, database=str(tmp_path / "here.sqlite")).make_task()
    assert task.initial.cost.runtime_ps == known and not task.cost.target.missing
    costs = [task.initial.follow(match).cost.runtime_ps for match in task.initial.matches]
    assert task.cost.target.missing and max(costs) > 0.9e12  # a kernel without a timing costs about a second
    assert all(cost < 2 * known or cost > 0.9e12 for cost in costs)  # the cheap graphs have only kernels of the model


def test_nothing_is_timed_into_the_database_of_another_machine(recorded, capsys):
    for words in (("record", MODEL), ("calibrate",)):
        assert f"holds the timings of {THERE}, and nothing" in in_process(
            capsys, "costs", *words, "--database", recorded
        ).error
    with pytest.raises(RLFlowError, match="nothing is timed into it here"):
        TimingDatabase(recorded).store("x", 1, Timing(1.0, 1.0, 1.0, 1))


def test_timings_of_two_machines_are_not_mixed(there, recorded, at, tmp_path, monkeypatch):
    machine, rows = target.read_timings(there / "there.json")
    monkeypatch.setattr(database, "default_path", lambda: tmp_path / "own.sqlite")
    TimingDatabase(tmp_path / "used.sqlite").store("x", 1, Timing(1.0, 1.0, 1.0, 1))
    for name in ("own.sqlite", "used.sqlite"):
        with pytest.raises(RLFlowError, match=f"import the timings of {THERE} into another file: --database FILE"):
            TimingDatabase(tmp_path / name).import_rows(machine, rows)
        assert TimingDatabase(tmp_path / name).machine == HERE
    at(THERE, None)
    assert not TimingDatabase(recorded).is_foreign  # back on its own machine


@pytest.mark.parametrize(
    "change, said",
    [
        ({"format": "other"}, "is no file of timings"),
        ({"version": VERSION + 1}, f"recorded with version={VERSION + 1}, but here it is {VERSION}"),
        ({"onnxruntime": "0.1"}, "recorded with onnxruntime='0.1', but here it is"),
        ({"block": 3}, "recorded with block=3, but here it is"),
        ({"machine": "a\nb"}, "'machine' is not a name"),
        ({"timings": {}}, "'timings' is not a list"),
        ({"timings": [GOOD, 3]}, "timing 1: it does not have exactly signature, threads"),
        ({"timings": [GOOD | {"more": 1}]}, "timing 0: it does not have exactly"),
        ({"timings": [GOOD | {"signature": ""}]}, "'signature' or 'date' is not one"),
        ({"timings": [GOOD | {"date": "x"}]}, "'signature' or 'date' is not one"),
        ({"timings": [GOOD | {"threads": True}]}, "'threads' or 'repeats' is not a number"),
        ({"timings": [GOOD | {"repeats": 0}]}, "'threads' or 'repeats' is not a number"),
        ({"timings": [GOOD | {"median_ns": float("nan")}]}, "a time is not a number"),
        ({"timings": [GOOD | {"median_ns": "2"}]}, "a time is not a number"),
        ({"timings": [GOOD | {"low_ns": -1}]}, "its times are not in order"),
        ({"timings": [GOOD | {"high_ns": 1}]}, "its times are not in order"),
        ({"timings": [GOOD | {"high_ns": 1e300}]}, "or too long"),
        ({"timings": [GOOD | {"high_ns": 10**400}]}, "or too long"),
    ],
)
def test_a_timing_file_that_is_malformed_or_of_other_kernels_is_refused(tmp_path, change, said):
    described = {"format": target.FORMAT, "version": VERSION, "onnxruntime": onnxruntime.__version__}
    good = described | {"block": target.block(), "machine": THERE, "timings": [GOOD]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(good))
    assert target.read_timings(path) == (THERE, [GOOD | {"machine": THERE, "onnxruntime": onnxruntime.__version__}])
    path.write_text(json.dumps(good | change))
    with pytest.raises(RLFlowError) as refused:
        target.read_timings(path)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_timing_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "MOST_BYTES", 10)
    (tmp_path / "t.json").write_text(" " * 11)
    with pytest.raises(RLFlowError, match="larger than any file of timings"):
        target.read_timings(tmp_path / "t.json")
