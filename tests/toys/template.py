"""The templates of docs/EXTENDING.md as modules, so that the tests run the published text."""

import importlib
import re
import sys
from pathlib import Path

from rlflow.tasks import TASKS

SECTION = (Path(__file__).parents[2] / "docs" / "EXTENDING.md").read_text().split("\n## A task\n")[1].split("\n## ")[0]
WORD, JOBS = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
MODULES = {"word": ("template_word", WORD, "WordSpec"), "jobs": ("template_jobs", JOBS, "JobsSpec")}


def register(folder: Path, monkeypatch) -> None:
    """Write both templates to the folder as modules, and register them as tasks for the duration of the test."""
    monkeypatch.syspath_prepend(str(folder))
    for name, (module, text, spec) in MODULES.items():
        (folder / f"{module}.py").write_text(text)
        monkeypatch.setitem(TASKS.entries, name, f"{module}:{spec}")
        sys.modules.pop(module, None)
        importlib.import_module(module)
