"""Test that each model of tests/field ends as its case says: one line, the documented exit status, an equal file."""

import re

import numpy as np
import onnx
import pytest

from tests.commands import in_process
from tests.field import kinds
from tests.suite import at_night

# The searches end by their number of rewrites, not by the clock.
OPTIONS = (
    "--seconds", "60", "cost.name=analytic", "eval.measure_seconds=0", "search.interactions=100",
    "search.grasp.patience=3",
)  # fmt: skip
FIRST = 1  # number of cases of each kind in `make test`; the night runs all of them


def cases():
    for kind, named in kinds().items():
        for name in list(named)[: at_night(len(named), FIRST)]:
            yield pytest.param(named[name], id=f"{kind}-{name}")


@pytest.mark.parametrize("case", list(cases()))
def test_optimise_ends_as_documented_on_every_field_model(case, tmp_path, capsys):
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(case.make(), path)
    given = [word for library in case.custom_ops for word in ("--custom-ops", library)]
    if case.inputs is not None:
        np.savez(tmp_path / "data.npz", **case.inputs)
        given += ["--inputs", tmp_path / "data.npz"]
    done = in_process(capsys, "optimise", path, "--out", out, *given, *OPTIONS, *case.options)
    assert done.code == case.status, done
    if case.status:
        assert re.search(case.says, done.error), done.err
        assert not out.exists() and not (tmp_path / "out.run").exists()
        return
    assert re.search(case.says, done.ending["result"]), done.err
    sizes = case.options if "--shape" in case.options else ()
    again = in_process(capsys, "validate", path, out, *given, *sizes)
    assert again.code == 0, again
