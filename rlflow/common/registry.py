"""Names that configs use for things that can be plugged in.

A registry maps a name to "module:attribute" and imports it only when asked for, so that choosing one
thing never pays for importing the others.
"""

import difflib
import importlib

from rlflow.common.errors import RLFlowError


class Registry:
    def __init__(self, kind: str, entries: dict[str, str]):
        self.kind, self.entries = kind, dict(entries)

    def __iter__(self):
        return iter(self.entries)

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def check(self, name: str) -> None:
        """Raises RLFlowError naming the nearest known name if the name is not registered. Imports nothing."""
        if name not in self.entries:
            near = difflib.get_close_matches(str(name), self.entries, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(self.entries)}"
            raise RLFlowError(f"unknown {self.kind} '{name}'; {hint}")

    def get(self, name: str):
        """The registered object. Raises RLFlowError naming the nearest known name."""
        self.check(name)
        module, attribute = self.entries[name].split(":")
        return getattr(importlib.import_module(module), attribute)
