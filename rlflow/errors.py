"""The one exception type whose message is meant for a person."""


class RLFlowError(Exception):
    """Something the user can act on; commands print it as one line and exit non-zero."""
