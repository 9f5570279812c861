"""The exception `RLFlowError`, whose message is written for the user, and helpers for the messages of exceptions."""

import difflib
from collections.abc import Iterable

# Beginning of the message of a diverged training; a sweep recognises a diverged run by this text in its error.
DIVERGED = "diverged at training step"


class RLFlowError(Exception):
    """An error that the user can act on; commands print its message on one line and exit with a non-zero status."""


def first_line(error: Exception) -> str:
    """Return the first non-empty line of an error's message, or the name of its class if the message is empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; did you mean 'OTHER'?" for the known name that resembles `name` most, or "" if none does.

    Args:
      name: an unknown name.
      known: the known names.
      cutoff: the smallest similarity of names that resemble each other, from 0 to 1 (`difflib.get_close_matches`).
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean '{near[0]}'?" if near else ""
