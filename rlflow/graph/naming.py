"""Names of the nodes and tensors that rules add, which say where they come from: `layer3/conv+relu (fused)`.

A name is made when a file is written, from the names of the original nodes that a node replaces (`Node.origins`). It
depends only on the graph, so equal steps give equal files.
"""

from collections.abc import Iterable, Sequence

from rlflow.graph.ir import MAX_ORIGINS

MAX_PART = 60  # largest number of characters of one original name in a new name


def combined(names: Sequence[str]) -> str:
    """Return one name for several: the common folder is stated once, and at most MAX_ORIGINS - 1 names are shown.

    For example, "layer3/conv" and "layer3/relu" give "layer3/conv+relu".
    """
    names = list(dict.fromkeys(names))
    paths = [name.split("/") for name in names]
    common = 0
    while all(len(path) > common + 1 and path[common] == paths[0][common] for path in paths):
        common += 1
    folder = "/".join(paths[0][:common])
    shown = [_short("/".join(path[common:])) for path in paths[: MAX_ORIGINS - 1]]
    more = ["..."] if len(paths) >= MAX_ORIGINS else []
    return (f"{_short(folder)}/" if folder else "") + "+".join([*shown, *more])


class FreshNames:
    """A maker of names that differ from each other and from the names in `taken`."""

    def __init__(self, taken: Iterable[str]):
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}  # wanted name → the last number that was tried

    def new(self, wanted: str) -> str:
        """Return `wanted`, or `wanted` with the smallest free number from 2 on, before a bracket at its end."""
        beginning, end = (wanted[:-1], ")") if wanted.endswith(")") else (wanted, "")
        name = wanted
        while name in self._taken:
            self._numbers[wanted] = self._numbers.get(wanted, 1) + 1
            name = f"{beginning} {self._numbers[wanted]}{end}"
        self._taken.add(name)
        return name


def _short(name: str) -> str:
    return name if len(name) <= MAX_PART else f"...{name[3 - MAX_PART :]}"
