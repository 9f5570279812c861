"""Texts of strangers in Markdown, names from their models first of all."""

import re

MEANS_SOMETHING = re.compile(r"[\\|<\[!]")  # begins a cell, HTML, a link or a picture


def escaped(text: str) -> str:
    """A text that is read as it stands, in a line or a cell of a table; nobody's viewer fetches anything for it."""
    return MEANS_SOMETHING.sub(r"\\\g<0>", " ".join(text.split()))
