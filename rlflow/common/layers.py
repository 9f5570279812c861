"""A dictionary whose copies are cheap: large dictionaries that a rewrite copies and changes in a few entries.

`layered` returns a small dictionary unchanged, because copies of it are fast. A large dictionary becomes a `Layered`: a
base that all copies share and never change, and the entries in which the copy differs from the base. The time and
memory of a copy depend on the number of these entries. A copy merges them into a new base if there are more than four
times the square root of the base's size.

    nodes = layered({1: "a", 2: "b"})
    after = nodes.copy()
    del after[1]  # `nodes` is unchanged
"""

from collections.abc import Iterator, MutableMapping
from typing import TypeVar

K, V = TypeVar("K"), TypeVar("V")

LARGE = 2_000  # number of entries from which on copies of the whole dictionary would dominate the time of a rewrite
_MISSING, _DELETED = object(), object()


def layered(entries: "dict[K, V] | Layered[K, V]") -> "dict[K, V] | Layered[K, V]":
    """Return the dictionary itself if it is small or layered, otherwise a `Layered` with its entries."""
    if isinstance(entries, Layered) or len(entries) < LARGE:
        return entries
    return Layered(entries, {}, len(entries))


class Layered(MutableMapping[K, V]):
    """A dictionary that shares most entries with its copies.

    A deleted entry that returns keeps its old position, unless a copy has merged the entries in between.

    Args:
      base: entries that are never changed.
      own: entries that replace or extend the base, or delete an entry of it.
      size: number of entries.
    """

    __slots__ = ("_base", "_own", "_size")

    def __init__(self, base: dict[K, V], own: dict, size: int):
        self._base, self._own, self._size = base, own, size

    def copy(self) -> "Layered[K, V]":
        if len(self._own) ** 2 > 16 * len(self._base):
            self._base, self._own = self._merged(), {}
        return Layered(self._base, self._own.copy(), self._size)

    def __getitem__(self, key: K) -> V:
        value = self._own.get(key, _MISSING)
        if value is _MISSING:
            return self._base[key]
        if value is _DELETED:
            raise KeyError(key)
        return value

    def get(self, key: K, default=None):
        value = self._own.get(key, _MISSING)
        if value is _MISSING:
            return self._base.get(key, default)
        return default if value is _DELETED else value

    def __contains__(self, key) -> bool:
        value = self._own.get(key, _MISSING)
        return key in self._base if value is _MISSING else value is not _DELETED

    def __setitem__(self, key: K, value: V) -> None:
        self._size += key not in self
        self._own[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._size -= 1
        if key in self._base:
            self._own[key] = _DELETED
        else:
            del self._own[key]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        own, base = self._own, self._base
        yield from (key for key in base if own.get(key) is not _DELETED)
        yield from (key for key, value in own.items() if key not in base)

    def __reduce__(self):
        return layered, (self._merged(),)

    def _merged(self) -> dict[K, V]:
        result = self._base.copy()
        for key, value in self._own.items():
            if value is _DELETED:
                del result[key]
            else:
                result[key] = value
        return result
