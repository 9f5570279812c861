"""Test `rlflow memory`: the file in a better order, the printed lines that load it, and the messages."""

import json
import re

import numpy as np
import onnx
import pytest

from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_runtime import Setup, run, session
from rlflow.memory import pipeline
from tests.commands import in_process
from tests.memory.irregular import irregular, peaks
from tests.memory.test_cost import ONE, chain
from tests.suite import at_night

WIDTH = 4096  # wide enough that the options change memory by megabytes


@pytest.fixture
def short(monkeypatch):
    """Use two setups and few measurements, because each setup takes three processes."""
    bare = Setup(pattern=False, arena=False, reuse=False)
    monkeypatch.setattr(pipeline, "SETUPS", {"defaults": Setup(), "bare": bare})
    monkeypatch.setattr(pipeline, "SESSION_PAIRS", at_night(2, 1))


@pytest.fixture
def unmeasured(monkeypatch):
    """Replace the measurements, as on a system that does not report resident memory; there are no latencies either."""
    monkeypatch.setattr(pipeline, "measure_setups", lambda *_: [pipeline.Row("defaults", None, None, None)])


@pytest.fixture
def source(tmp_path):
    onnx.save(irregular(WIDTH), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.nightly
def test_the_memory_command_writes_a_model_that_needs_less_memory(capsys, tmp_path, source, short):
    out, given = tmp_path / "smaller.onnx", ("--seconds", "0.4", "--threads", "1", "--slowdown", "900")
    done = in_process(capsys, "memory", source, "--out", out, "--json", tmp_path / "r.json", *given)
    assert done.code == 0, done.err
    ending, usual, best = done.ending, *peaks(WIDTH)
    assert f"{best / 1e6:.3f} MB of activations instead of {usual / 1e6:.3f}; proved" in ending["result"]
    assert "the same bits on 3 random inputs" in ending["sure"] and len(ending) == 6
    for name in ("model", "receipt", "page"):
        assert (tmp_path / ending[name]).exists()
    results = json.loads((tmp_path / "r.json").read_text())
    assert (results["bytes"]["usual_peak"], results["bytes"]["peak"], results["bytes"]["bound"]) == (usual, best, best)
    assert results["proved"] and [row["setup"] for row in results["rows"]] == ["defaults", "bare"]
    assert all(row["latency"]["ratio"] > 0 for row in results["rows"])
    assert re.search(rf"peak of activations +{usual / 1e6:.3f} +{best / 1e6:.3f}", done.out)
    assert "<svg" in (tmp_path / "smaller.memory.html").read_text()
    check_snippet(done.out, source, out)


def check_snippet(printed: str, source, out) -> None:
    """Check that the printed lines load the file and that its outputs equal the original's bit for bit."""
    names: dict = {}
    exec(printed[printed.index("import onnxruntime") : printed.index("result:")], names)
    inputs = random_inputs(source, 9)
    wanted, given = run(session(source, 1), inputs), run(names["session"], inputs)
    assert [array.tobytes() for array in wanted] == [array.tobytes() for array in given]
    assert str(out) in printed


def test_a_receipt_repeats_the_file_and_a_damaged_one_is_refused(capsys, tmp_path, source, unmeasured):
    out, again, receipt = (tmp_path / name for name in ("a.onnx", "b.onnx", "a.receipt.json"))
    done = in_process(capsys, "memory", source, "--out", out, "--seconds", "5")
    assert done.code == 0 and "resident memory is not counted" in done.ending["sure"]
    repeated = in_process(capsys, "memory", source, "--out", again, "--receipt", receipt)
    assert repeated.code == 0 and "byte for byte" in repeated.ending["result"]
    assert again.read_bytes() == out.read_bytes()
    content = json.loads(receipt.read_text())
    receipt.write_text(json.dumps(content | {"order": content["usual_order"]}))
    again.unlink()
    refused = in_process(capsys, "memory", source, "--out", again, "--receipt", receipt)
    assert "the receipt says peak" in refused.error and not again.exists()


def test_the_memory_command_writes_nothing_if_no_order_gains(capsys, tmp_path, unmeasured):
    done = in_process(capsys, "memory", "tiny_squeezenet1_1", "--out", tmp_path / "out" / "smaller.onnx")
    assert done.code == 0 and done.ending["result"].startswith("nothing to gain from another order")
    assert "resident memory is not counted" in done.ending["sure"] and list((tmp_path / "out").iterdir()) == []
    assert "best order" not in done.out and "import onnxruntime" not in done.out


@pytest.mark.parametrize("words, said", [
    (("--seconds", "0"), "--seconds and --rewrite above 0"),
    (("--slowdown", "nan"), "--slowdown of at least 0"),
    (("--rewrite", "0"), "--rewrite above 0"),
    (("--threads", "0"), "--threads is at least 1"),
    (("--shape", "nope=3"), "nope"),
    (("--receipt", "gone.json"), "cannot read gone.json"),
    (("--receipt", "{tmp}/model.json"), "not a receipt of `memory`"),
    (("--receipt", "{tmp}/model.json", "--shape", "N=3"), "Leave out --shape"),
    (("--receipt", "{tmp}/model.json", "--rewrite"), "Leave out --shape, --fix and --rewrite"),
    (("--out", "{tmp}/model.onnx"), "is the model itself"),
])  # fmt: skip
def test_the_memory_command_refuses_bad_arguments_in_one_line(capsys, tmp_path, source, words, said):
    (tmp_path / "model.json").write_text("[]")
    given = [word.format(tmp=tmp_path) for word in words]
    done = in_process(capsys, "memory", source, "--out", tmp_path / "out.onnx", *given)
    assert said in done.error and not (tmp_path / "out.onnx").exists()


def test_a_model_is_rewritten_if_no_order_helps_and_its_receipt_reproduces_the_file(capsys, tmp_path, unmeasured):
    """All orders of the chain need 12 images; rewritten, with its joined convolution split into parts, it needs 3."""
    source, out, again = (tmp_path / name for name in ("model.onnx", "smaller.onnx", "again.onnx"))
    onnx.save(chain(), source)
    given = ("--out", out, "--rewrite", "4", "--json", tmp_path / "r.json")
    done = in_process(capsys, "memory", source, *given)
    assert done.code == 0 and "the best order alone needs" in done.ending["result"], done.err
    assert "the same, best order alone" in done.out and "rewritten" in done.out
    assert "checks passed between the model and the rewritten one" in done.ending["sure"]
    results = json.loads((tmp_path / "r.json").read_text())
    sizes, rewritten = results["bytes"], results["rewritten"]
    assert (sizes["usual_peak"], rewritten["best_order"], sizes["peak"]) == (12 * ONE, 12 * ONE, 3 * ONE)
    assert sum(rewritten["rules"].values()) >= 5
    inputs = random_inputs(source, 3)
    wanted, had = (run(session(path, 1), inputs)[0] for path in (source, out))
    assert np.abs(wanted - had).max() <= 1e-4 * np.abs(wanted).max()
    repeated = in_process(capsys, "memory", source, "--out", again, "--receipt", tmp_path / "smaller.receipt.json")
    assert repeated.code == 0 and again.read_bytes() == out.read_bytes()


def test_only_the_order_changes_if_rewrites_gain_nothing(capsys, tmp_path, source, unmeasured):
    out = tmp_path / "out.onnx"
    done = in_process(capsys, "memory", source, "--out", out, "--rewrite", "1", "--json", tmp_path / "r.json")
    assert done.code == 0 and "; proved: no order needs less" in done.ending["result"]
    assert json.loads((tmp_path / "r.json").read_text())["rewritten"] is None and "best order" in done.out


def test_the_search_command_refuses_a_cost_that_is_not_time(capsys, tmp_path):
    words = ("--model", "tiny_squeezenet1_1", "--out", tmp_path / "o.onnx", "--method", "greedy", "cost.name=memory")
    assert "the cost counts MB" in in_process(capsys, "search", *words).error


def test_a_file_that_is_no_model_is_refused_and_leaves_no_output(capsys, tmp_path):
    (tmp_path / "text.onnx").write_text("no model\n" * 9)
    done = in_process(capsys, "memory", tmp_path / "text.onnx", "--out", tmp_path / "out.onnx")
    assert "is not an ONNX file" in done.error
    assert list(tmp_path.iterdir()) == [tmp_path / "text.onnx"]
