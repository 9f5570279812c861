"""All options, as one tree of groups, and the page that shows them: configs/default.yaml.

A group is a dataclass (rlflow/common/options.py). Those of world models and controllers stand in packages above this
one: they are known here by their names alone, as entries of a registry, and looked up when a config is read.

    python -m benchmarks.pages            writes the page

The shipped files lie in configs/ of a checkout, and in the package rlflow.configs of an installation. People write
`configs/demo.yaml` in both (`shipped`).
"""

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from rlflow.common.options import Option, groups_from, option, options_of
from rlflow.common.registry import Registry

ROOM = Path(__file__).parents[1]  # rlflow/
CONFIGS = ROOM / "configs" if (ROOM / "configs").is_dir() else ROOM.parent / "configs"
PAGE = CONFIGS / "default.yaml"
INDENT, COMMENTS, WIDTH = 2, 28, 120  # of a group; the column in which comments begin; of a line
HEADER = """\
# Every option of RLFlow with its default. A small YAML file (--config FILE) or `key=value` on the command
# line changes some of them, e.g. `env.max_steps=50`. An unknown key is refused. Numbers are above 0, where
# nothing else is said. This page is written from the dataclasses of the options: python -m benchmarks.pages
"""
GROUPS = Registry(
    "group of options",
    {
        "task": "rlflow.tasks.options:TaskOptions",
        "env": "rlflow.env.options:EnvOptions",
        "cost": "rlflow.costs.options:CostOptions",
        "collect": "rlflow.collect.options:CollectOptions",
        "world_model": "worldmodel.config:WorldModelConfig",
        "iterations": "controllers.config:IterationOptions",
        "dream": "worldmodel.config:DreamOptions",
        "controller": "controllers.config:ControllerOptions",
        "optimise": "rlflow.deliver.options:OptimiseOptions",
        "search": "rlflow.search.options:SearchOptions",
        "eval": "rlflow.deliver.options:EvalOptions",
    },
)


@dataclass(frozen=True)
class RunOptions:
    """All options: those of no group, and the groups."""

    groups: ClassVar[Registry] = GROUPS

    model: str | None = option(None, "a zoo name (`python run.py zoo` lists them) or the path of an ONNX file")
    shapes: dict = option(
        {},
        "typical sizes of symbolic dimensions: {dimension: 128}, several {dimension: [16, 128]}, or those of the axes "
        "of an input {input: [1, 128]}; also --shape",
    )
    fix: bool = option(False, "freeze these sizes: the model takes no others then; also --fix")
    seed: int = option(0, "decides every random choice of every stage", at_least=0, at_most=2**31 - 1)
    workers: int = option(2, "environment processes of `collect`")


class Group(NamedTuple):
    """A group of options. kind: its dataclass.  entries: name → Option or Group, in the order of the page."""

    kind: type
    entries: Mapping[str, "Option | Group"]

    @property
    def defaults(self) -> dict:
        """As a config file says it: nested, lists as lists."""
        result = {}
        for name, entry in self.entries.items():
            if isinstance(entry, Group):
                result[name] = entry.defaults
            else:
                result[name] = list(entry.default) if entry.many else entry.default
        return result

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, Option]]:
        """(dotted name, option) of each option in the group."""
        for name, entry in self.entries.items():
            if isinstance(entry, Group):
                yield from entry.leaves(f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", entry


@cache
def tree() -> Group:
    return _group(RunOptions)


@cache
def all_options() -> Mapping[str, Option]:
    """Dotted name → option."""
    return dict(tree().leaves())


def kind_of(section: str, name: str) -> type:
    """The dataclass of what is registered under that name: of ("controller", "planner") its PlannerConfig."""
    return GROUPS.get(section).groups.get(name)


def other_groups(section: str, name: str) -> list[str]:
    """The groups elsewhere that something takes options from: ["search.beam", …] of ("controller", "planner")."""
    return [group for group, _ in groups_from(kind_of(section, name)).values()]


def _group(kind: type) -> Group:
    own = options_of(kind)
    entries: dict[str, Option | Group] = dict(own)
    within = vars(kind).get("groups", {})  # of this very class: the special ones of what all have are derived from it
    for name in within:
        group = _group(within.get(name))
        if issubclass(group.kind, kind):
            group = Group(group.kind, {key: entry for key, entry in group.entries.items() if key not in own})
        entries[name] = group
    return Group(kind, entries)


def shipped(path: Path | str) -> Path:
    """The path; but where configs/NAME leads nowhere, the file of that name that RLFlow brings along."""
    path = Path(path)
    if path.exists() or path.parts[:1] != ("configs",):
        return path
    brought = CONFIGS.joinpath(*path.parts[1:])
    return brought if brought.is_file() else path


# -- the page --------------------------------------------------------------------------------------


def page() -> str:
    """configs/default.yaml."""
    return HEADER + "\n" + "\n".join(_lines(tree(), 0)) + "\n"


def _lines(group: Group, depth: int) -> Iterator[str]:
    for name, entry in group.entries.items():
        margin = " " * (INDENT * depth)
        if isinstance(entry, Group):
            if depth == 0:
                yield ""
            yield from _commented(f"{margin}{name}:", entry.kind.__doc__.splitlines()[0].removesuffix("."))
            yield from _lines(entry, depth + 1)
        else:
            yield from _commented(f"{margin}{name}: {_as_yaml(entry.default)}", entry.help + _range(entry))


def _commented(line: str, comment: str) -> Iterator[str]:
    beginning = line.ljust(COMMENTS - 2) + "  "
    yield from textwrap.wrap(
        comment,
        WIDTH,
        initial_indent=f"{beginning}# ",
        subsequent_indent=" " * COMMENTS + "# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _range(option: Option) -> str:
    low, high = option.at_least, option.at_most
    if math.isinf(high):
        return "" if low is None else f"; at least {low}"
    return f"; at most {high}" if low is None else f"; from {low} to {high}"


def _as_yaml(value) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return str(value)
