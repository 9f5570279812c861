"""Registries: names that configs use to select pluggable parts such as searches, costs and controllers.

A registry maps a name to "module:attribute" and imports a module only when its name is selected.
"""

import importlib

from rlflow.common.errors import RLFlowError, nearest


class Registry:
    """A mapping from names to objects of one kind, whose modules are imported only when a name is used.

    Args:
      kind: the kind of the objects, for error messages, such as "search".
      entries: name → "module:attribute".
    """

    def __init__(self, kind: str, entries: dict[str, str]):
        self.kind, self.entries = kind, dict(entries)

    def __iter__(self):
        return iter(self.entries)

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def check(self, name: str) -> None:
        """Raise RLFlowError with the closest registered name if `name` is not registered. Import nothing."""
        if name not in self.entries:
            hint = nearest(str(name), self.entries) or f"; known: {', '.join(self.entries)}"
            raise RLFlowError(f"unknown {self.kind} '{name}'{hint}")

    def get(self, name: str):
        """Import and return the object registered as `name`. Raise RLFlowError if `name` is not registered."""
        self.check(name)
        module, attribute = self.entries[name].split(":")
        return getattr(importlib.import_module(module), attribute)
