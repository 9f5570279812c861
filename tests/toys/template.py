"""The templates of docs/EXTENDING.md as modules, so that what stands there is what is tested."""

import importlib
import re
import sys
from pathlib import Path

from rlflow.tasks import TASKS

SECTION = (Path(__file__).parents[2] / "docs" / "EXTENDING.md").read_text().split("\n## A task\n")[1].split("\n## ")[0]
WORD, JOBS = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
MODULES = {"word": ("template_word", WORD, "WordSpec"), "jobs": ("template_jobs", JOBS, "JobsSpec")}


def register(folder: Path, monkeypatch) -> None:
    """Writes both templates into the folder as modules, and registers them as tasks as long as the test lasts."""
    monkeypatch.syspath_prepend(str(folder))
    for name, (module, text, spec) in MODULES.items():
        (folder / f"{module}.py").write_text(text)
        monkeypatch.setitem(TASKS.entries, name, f"{module}:{spec}")
        sys.modules.pop(module, None)
        importlib.import_module(module)
