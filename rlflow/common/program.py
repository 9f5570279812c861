"""What people type to call RLFlow: `rlflow` where it is installed, `python run.py` in a checkout."""

import sys
from pathlib import Path

IN_A_CHECKOUT = "python run.py"
ROOT = Path(__file__).parents[2]  # of the checkout, or of the installed packages


def program() -> str:
    """As this process was called; where it was not by a command, as it can be."""
    called_installed = Path(sys.argv[0]).stem == "rlflow"
    return "rlflow" if called_installed or not (ROOT / "run.py").exists() else IN_A_CHECKOUT


def as_called(text: str) -> str:
    """A text that says what to type in a checkout, as it is typed here."""
    return text.replace(IN_A_CHECKOUT, program())
