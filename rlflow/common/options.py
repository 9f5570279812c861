"""Options: frozen dataclasses, whose fields carry their default, a line of help and which values are allowed.

    @dataclass(frozen=True)
    class BeamOptions:
        width: int = option(8, "graphs that are kept at each depth")
        radius: int = option(1, "edges between two rewrites of a chain", at_least=0)

They are the one source of what is allowed and of what holds where nobody says anything: configs/default.yaml is
written from them, and configs are checked by them. The type of a value is the field's: `tuple[int, ...]` is a list,
`str | None` may be null.
"""

import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache

from rlflow.common.errors import RLFlowError


@dataclass(frozen=True)
class Option:
    """One option, as a field declares it.

    Attributes:
      kind: the type of a value; of a list, that of an element.
      many: a list, in the field's type a `tuple[X, ...]`.  nullable: may be null, in the field's type `X | None`.
      at_least: the smallest number; None: any above 0.  at_most: the largest.
      choices: the values, where these can be listed.
      distinct: a list has at least one element, and none twice.
    """

    kind: type
    many: bool
    nullable: bool
    default: object
    help: str
    at_least: float | None
    at_most: float
    choices: tuple[str, ...]
    distinct: bool

    def wrong(self, value) -> str | None:
        """What is wrong with a value, to be said after the option's name."""
        if value is None and self.nullable:
            return None
        outer = list if self.many else self.kind
        if not _fits(value, outer):
            return f"is a {outer.__name__}, not {value!r}"
        for element in value if self.many else [value]:
            if not _fits(element, self.kind):
                return f"is a list of {self.kind.__name__}, not {value!r}"
            if wrong := self._outside(element):
                return wrong
        if self.distinct and (not value or len(set(value)) < len(value)):
            return "needs at least one value, and none twice"
        return None

    def _outside(self, value) -> str | None:
        if self.choices and value not in self.choices:
            return f"is one of {', '.join(self.choices)}, not {value!r}"
        if not self.is_number:
            return None
        if not abs(value) <= sys.float_info.max:  # a whole number may be larger than any float
            return f"must be finite, not {value}"
        if self.at_least is None and value <= 0:
            return f"must be above 0, not {value}"
        if self.at_least is not None and value < self.at_least:
            return f"must be {self.at_least} or more, not {value}"
        return f"must be at most {self.at_most}, not {value}" if value > self.at_most else None

    @property
    def is_number(self) -> bool:
        return self.kind in (int, float)


def option(
    default,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float = math.inf,
    choices: tuple[str, ...] = (),
    distinct: bool = False,
):
    """A field of a dataclass of options; see `Option`."""
    declared = {"help": help, "at_least": at_least, "at_most": at_most, "choices": choices, "distinct": distinct}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata={"option": declared | {"default": default}})
    return field(default=default, metadata={"option": declared | {"default": default}})


def options_from(group: str, kind: type):
    """A field that holds the options of another group, e.g. of "search.beam", which are declared there alone."""
    return field(default_factory=kind, metadata={"group": group})


@cache
def options_of(kind: type) -> Mapping[str, Option]:
    """The options that a dataclass declares, in their order."""
    hints, result = typing.get_type_hints(kind), {}
    for one in fields(kind):
        if "option" in one.metadata:
            result[one.name] = Option(*_read_type(hints[one.name]), **one.metadata["option"])
    return types.MappingProxyType(result)


def groups_from(kind: type) -> dict[str, tuple[str, type]]:
    """The fields of a dataclass that hold options of other groups → (the name of the group, its dataclass)."""
    return {one.name: (one.metadata["group"], one.default_factory) for one in fields(kind) if "group" in one.metadata}


def check(options, name: str) -> None:
    """For `__post_init__`. Raises RLFlowError, in the name of who has the options, if a value is not allowed."""
    for key, declared in options_of(type(options)).items():
        if wrong := declared.wrong(getattr(options, key)):
            raise RLFlowError(f"{name}: '{key}' {wrong}")


def read(kind: type, section: Mapping) -> dict[str, object]:
    """What a section of a config says of the options of a dataclass, as its arguments."""
    return {key: tuple(section[key]) if declared.many else section[key] for key, declared in options_of(kind).items()}


def _read_type(hint) -> tuple[type, bool, bool]:
    """(kind, many, nullable)."""
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, False
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not types.NoneType), False, True
    return hint, False, False


def _fits(value, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    wider = {float: (int, float), list: (list, tuple)}
    return isinstance(value, wider.get(kind, kind))
