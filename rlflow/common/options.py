"""Options: frozen dataclasses whose fields declare a default, a line of help and the allowed values.

    @dataclass(frozen=True)
    class BeamOptions:
        width: int = option(8, "graphs that are kept at each depth")
        radius: int = option(1, "edges between two rewrites of a chain", at_least=0)

These dataclasses are the only place that defines defaults and allowed values: configs/default.yaml is generated from
them and every config is checked against them. The annotation of a field gives the type of its values: `tuple[int, ...]`
is a list of integers, and `str | None` may be null.
"""

import json
import math
import sys
import types
import typing
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from functools import cache

from rlflow.common.errors import RLFlowError


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    Attributes:
      kind: type of the value, or of the elements of a list.
      many: True if the value is a list (field type `tuple[X, ...]`).
      nullable: True if the value may be null (field type `X | None`).
      default: the default value.
      help: one line about the option.
      at_least: smallest allowed number; None allows every number above 0.
      at_most: largest allowed number.
      choices: the allowed values; () allows all values.
      distinct: True if a list must not be empty and must not repeat an element.
      used_if: other option → the values of that option with which this option has an effect; a name without a dot is
        an option of the same group. {} if the option always has an effect.
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
    used_if: Mapping[str, Container]

    def error_of(self, value) -> str | None:
        """Return what is wrong with a value, as a text after the option's name ("must be above 0, not -1"), or None."""
        if value is None and self.nullable:
            return None
        outer = list if self.many else self.kind
        if not _has_type(value, outer):
            return f"is a {outer.__name__}, not {value!r}"
        for element in value if self.many else [value]:
            if not _has_type(element, self.kind):
                return f"is a list of {self.kind.__name__}, not {value!r}"
            if wrong := self._range_error(element):
                return wrong
        if self.distinct and (not value or len(set(value)) < len(value)):
            return "needs at least one value, and none twice"
        return None

    def _range_error(self, value) -> str | None:
        if self.choices and value not in self.choices:
            return f"is one of {', '.join(self.choices)}, not {value!r}"
        if self.kind not in (int, float):
            return None
        if not abs(value) <= sys.float_info.max:  # This comparison also works for integers larger than any float.
            return f"must be finite, not {value}"
        if self.at_least is None and value <= 0:
            return f"must be above 0, not {value}"
        if self.at_least is not None and value < self.at_least:
            return f"must be {self.at_least} or more, not {value}"
        return f"must be at most {self.at_most}, not {value}" if value > self.at_most else None


def option(
    default,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float = math.inf,
    choices: tuple[str, ...] = (),
    distinct: bool = False,
    used_if: Mapping[str, Container] | None = None,
):
    """Return a dataclass field that declares an option.

    Args:
      default: default value.
      help: one line for configs/default.yaml and `--help`.
      at_least, at_most, choices, distinct, used_if: see `Option`.
    """
    declared = {
        "help": help, "at_least": at_least, "at_most": at_most, "choices": choices, "distinct": distinct,
        "used_if": used_if or {},
    }  # fmt: skip
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata={"option": declared | {"default": default}})
    return field(default=default, metadata={"option": declared | {"default": default}})


def options_from(group: str, kind: type):
    """Return a dataclass field for an instance of another group's options, which a component uses beside its own.

    Args:
      group: name of the other group in a config, such as "search.beam".
      kind: the dataclass that declares the other group.
    """
    return field(default_factory=kind, metadata={"group": group})


@cache
def options_of(kind: type) -> Mapping[str, Option]:
    """Return name → `Option` for the fields of a dataclass that declare options, in the order of declaration."""
    hints, result = typing.get_type_hints(kind), {}
    for one in fields(kind):
        if "option" in one.metadata:
            result[one.name] = Option(*_read_type(hints[one.name]), **one.metadata["option"])
    return types.MappingProxyType(result)


def groups_from(kind: type) -> dict[str, tuple[str, type]]:
    """Return field name → (group name, dataclass of the group) for the fields declared by `options_from`."""
    return {one.name: (one.metadata["group"], one.default_factory) for one in fields(kind) if "group" in one.metadata}


def check(options, name: str) -> None:
    """Check the values of an instance of an options dataclass; its `__post_init__` calls this function.

    Args:
      options: an instance of an options dataclass.
      name: name of the component, for the error message.

    Raises:
      RLFlowError: a value is not allowed.
    """
    for key, declared in options_of(type(options)).items():
        if wrong := declared.error_of(getattr(options, key)):
            raise RLFlowError(f"{name}: '{key}' {wrong}")


def check_group(group: str, kind: type, values: Mapping[str, object]) -> None:
    """Check values of a group's options that did not come through a config, with the messages of a config.

    Args:
      group: name of the group in a config, such as "env".
      kind: the dataclass that declares the group.
      values: name of each option → its value.

    Raises:
      RLFlowError: a value is not allowed.
    """
    for key, declared in options_of(kind).items():
        if wrong := declared.error_of(values[key]):
            raise RLFlowError(f"'{group}.{key}' {wrong}")


def read(kind: type, section: Mapping) -> dict[str, object]:
    """Return name → value for the constructor of an options dataclass; lists become tuples.

    Args:
      kind: the dataclass.
      section: the part of a config that has the values of the dataclass's options.
    """
    return {key: tuple(section[key]) if declared.many else section[key] for key, declared in options_of(kind).items()}


def _read_type(hint) -> tuple[type, bool, bool]:
    """Return (kind, many, nullable) of a field's annotation."""
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, False
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not types.NoneType), False, True
    return hint, False, False


def _has_type(value, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    wider = {float: (int, float), list: (list, tuple)}
    return isinstance(value, wider.get(kind, kind))


def is_shape(value) -> bool:
    """Return whether the value is an integer of at least 1, or a list of at least one such integer."""
    sizes = value if isinstance(value, list) else [value]
    return bool(sizes) and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes)


def plain_shapes(shapes: Mapping | None) -> dict[str, int | list[int]]:
    """Convert the argument `shapes` to int and list, as a config holds sizes. Raise RLFlowError for other values."""
    if not isinstance(shapes or {}, Mapping):
        raise RLFlowError(f"shapes map names to sizes, such as {{'batch': 1}}, not {type(shapes).__name__}")
    plain = {}
    for name, given in (shapes or {}).items():
        size = plain_number(given)
        if isinstance(size, tuple | list):
            size = [plain_number(n) for n in size]
        if not is_shape(size):
            text = " ".join(repr(given).split())
            raise RLFlowError(f"shapes: '{name}' is a size such as 128 or (1, 128), not {text}")
        plain[str(name)] = size
    return plain


def plain_number(value):
    """Convert a NumPy number or array to Python numbers; return any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def setting(key: str, value) -> str:
    """Return KEY=VALUE for the command line, with the value as JSON, so that YAML reads the same value and type back.

    For example, the text "2024" remains a text, and the text "run #1" is not cut at its comment sign.

    Args:
      key: the dotted name of the option.
      value: a JSON value, a path (written as text), or a number or array of NumPy.
    """

    def plain(other):
        return other.tolist() if hasattr(other, "tolist") else str(other)

    return f"{key}={json.dumps(value, ensure_ascii=False, default=plain)}"


def dotted(options: Mapping, prefix: str = "") -> dict[str, object]:
    """Return dotted name → value of all options in nested dictionaries."""
    result: dict[str, object] = {}
    for name, value in options.items():
        result |= dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return result
