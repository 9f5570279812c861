"""What the `**a` of an operator's pattern holds in a case."""

from typing import Any

from rlflow.rules.prover import draws
from rlflow.rules.prover.interrupts import NotHere


class Rest:
    """What `**a` holds: pairs for the rule language, values for the semantics."""

    def __init__(self, case: Any, name: str, op: str, rank: int, named: set[str]):
        self.case, self.name, self.op, self.rank = case, name, op, rank
        self.spec = {key: value for key, value in draws.REST.get(op, {}).items() if key not in named}

    def __contains__(self, key: str) -> bool:
        if key in self.spec and self.spec[key][0].startswith("maybe "):
            return self.case.world.pick(f"{self.name}.{key} given", (False, True))
        return key in self.spec

    def __getitem__(self, key: str):
        kind, default = self.spec[key]
        if kind in ("sizes", "pads", "more", "size", "real", "axis") and default is not None:
            if self.case.world.picked(f"{self.name}.{key} given") is False or self._clash(key):
                return self._default(kind, default)
        return self.case.draw(f"{self.name}.{key}", kind, default, self.rank)

    def _clash(self, key: str) -> bool:
        return key == "pads" and "auto_pad" in self.spec and self["auto_pad"] != b"NOTSET"

    def _default(self, kind: str, default):
        count = {"sizes": self.rank - 2, "more": self.rank - 2, "pads": 2 * (self.rank - 2)}.get(kind)
        return default if count is None else (default,) * count

    def keys(self) -> list[str]:
        return [key for key in self.spec if self.is_given(key)]

    def is_given(self, key: str) -> bool:
        kind, default = self.spec[key]
        if kind == "pick":
            return self[key] != default[0]
        if default is None:
            return key in self
        if self._clash(key) or not self.case.world.pick(f"{self.name}.{key} given", (False, True)):
            return False
        if kind != "real":
            usual = self._default(kind, default)
            same = self[key] == usual
            if same:
                raise NotHere
        return True
