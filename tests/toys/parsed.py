"""The text of a family of rules is parsed once in a process: it takes 0.2 s, a command asks several times, and rules
are values.
"""

from functools import cache

from rlflow.rules import language


def parse_once() -> None:
    """`load_rules` reads the files each time, and gives the same rules for the same text."""
    parsed = cache(lambda text, family, parse=language.parse: tuple(parse(text, family)))
    language.parse = lambda text, family: list(parsed(text, family))
