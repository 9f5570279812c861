"""The scripts of docs/EXTENDING.md, run as they stand there."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

from rlflow.deliver.validate import validate
from rlflow.graph.onnx_writer import save_model
from rlflow.zoo import load

ROOT = Path(__file__).parent.parent
SECTION = (ROOT / "docs" / "EXTENDING.md").read_text().split("\n## Somebody else's agent\n")[1].split("\n## ")[0]
SCRIPTS = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "number, needs, least", [(0, (), 0.01), (1, ("torch", "sb3_contrib"), 0.0)], ids=["bandit", "ppo"]
)
def test_the_script_trains_an_agent_and_writes_an_equal_model(number, needs, least, tmp_path, monkeypatch, capsys):
    """`least` is what it must gain, as a fraction of the estimate."""
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (pip install '.[agents]')")
    (tmp_path / "agent.py").write_text(SCRIPTS[number])
    monkeypatch.chdir(tmp_path)
    runpy.run_path("agent.py", run_name="__main__")
    before, after = map(float, re.fullmatch(r"estimated: (\S+) ms, then (\S+) ms\n", capsys.readouterr().out).groups())
    assert after <= before * (1 - least)
    save_model(load("tiny_resnet18"), tmp_path / "original.onnx")
    assert validate(tmp_path / "original.onnx", tmp_path / "faster.onnx").ok


def test_there_are_two_scripts_and_the_first_needs_nothing_more():
    assert len(SCRIPTS) == 2
    assert re.findall(r"^(?:from|import) (\w+)", SCRIPTS[0], re.MULTILINE) == ["gymnasium", "numpy", "rlflow", "rlflow"]
    assert "sb3_contrib" in SCRIPTS[1]
