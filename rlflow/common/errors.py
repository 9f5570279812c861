"""The one exception type whose message is meant for a person."""


class RLFlowError(Exception):
    """Something the user can act on; commands print it as one line and exit non-zero."""


def first_line(error: Exception) -> str:
    """The first line of an error that says anything, else the error's name."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
