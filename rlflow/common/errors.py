"""The exception `RLFlowError`, whose message is written for the user, and a helper for the messages of exceptions."""

# Beginning of the message of a diverged training, by which a sweep recognises it in the log of a run.
DIVERGED = "diverged at training step"


class RLFlowError(Exception):
    """An error that the user can act on; commands print its message on one line and exit with a non-zero status."""


def first_line(error: Exception) -> str:
    """Return the first non-empty line of an error's message, or the name of its class if the message is empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
