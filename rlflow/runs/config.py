"""Configs: the tree of all options, its page configs/default.yaml, YAML files, and `key=value` on the command line.

A group of options is a dataclass (rlflow/common/options.py). Packages above this one, such as world models and
controllers, declare groups, too. All groups are therefore registered by name and imported when a config is read.
`load_config` checks every value against its option. `page` returns the text of configs/default.yaml:

    python -m rlflow.runs.config          writes configs/default.yaml

The shipped files lie in configs/ of a checkout, or in the package rlflow.configs of an installation. `shipped` finds
`configs/demo.yaml` in both.
"""

import argparse
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from io import StringIO
from pathlib import Path
from typing import ClassVar, NamedTuple

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlflow.common.errors import RLFlowError, first_line, nearest
from rlflow.common.files import CONFIGS
from rlflow.common.options import Option, groups_from, is_shape, option, options_of
from rlflow.common.registry import Registry

PAGE = CONFIGS / "default.yaml"
INDENT, COMMENTS, WIDTH = 2, 28, 120  # indentation of a group; first column of comments; length of a line
HEADER = """\
# Every option of RLFlow with its default. A small YAML file (--config FILE) or `key=value` on the command
# line changes some of them, e.g. `env.max_steps=50`. An unknown key is refused. Numbers are above 0 unless
# a range is given. This page is written from the dataclasses of the options: python -m rlflow.runs.config
"""
GROUPS = Registry(
    "group of options",
    {
        "task": "rlflow.tasks:TaskOptions",
        "placement": "rlflow.tasks.placement:PlacementOptions",
        "env": "rlflow.env:EnvOptions",
        "cost": "rlflow.costs:CostOptions",
        "collect": "rlflow.collect:CollectOptions",
        "world_model": "worldmodel.world_model_options:WorldModelConfig",
        "iterations": "controllers.controller_options:IterationOptions",
        "dream": "worldmodel.world_model_options:DreamOptions",
        "controller": "controllers.controller_options:ControllerOptions",
        "optimise": "rlflow.optimisation.choice:OptimiseOptions",
        "search": "rlflow.search:SearchOptions",
        "eval": "rlflow.optimisation.choice:EvalOptions",
    },
)


@dataclass(frozen=True)
class RunOptions:
    """The root of the tree of all options."""

    groups: ClassVar[Registry] = GROUPS

    model: str | None = option(None, "a zoo name (`python run.py zoo` lists them) or the path of an ONNX file")
    shapes: dict = option(
        {},
        "typical sizes of symbolic dimensions: one {dimension: 128}, several {dimension: [16, 128]}, or the shape of "
        "an input {input: [1, 128]}; also --shape",
    )
    inputs: tuple[str, ...] = option(
        (), "files and folders of inputs for checks and measurements, .npz or test_data_set_* of ONNX; also --inputs"
    )
    fix: bool = option(False, "freeze these sizes, so that the model accepts no others; also --fix")
    custom_ops: tuple[str, ...] = option(
        (),
        "libraries of custom operators that the model uses: native code, which a command loads only if --custom-ops "
        "names it",
    )
    seed: int = option(0, "decides every random choice of every stage", at_least=0, at_most=2**31 - 1)
    workers: int = option(2, "number of environment processes of `collect`")


class Group(NamedTuple):
    """A group of options.

    Attributes:
      kind: the dataclass that declares the group.
      entries: name → `Option`, or `Group` for a group within this group, in the order of configs/default.yaml.
    """

    kind: type
    entries: Mapping[str, "Option | Group"]

    @property
    def defaults(self) -> dict:
        """The default of every option in the group, as nested dictionaries with lists instead of tuples."""
        result = {}
        for name, entry in self.entries.items():
            if isinstance(entry, Group):
                result[name] = entry.defaults
            else:
                result[name] = list(entry.default) if entry.many else entry.default
        return result

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, Option]]:
        """Yield (dotted name, option) for each option in the group and in the groups within it.

        Args:
          prefix: a text that is put before each name.
        """
        for name, entry in self.entries.items():
            if isinstance(entry, Group):
                yield from entry.leaves(f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", entry


@cache
def tree() -> Group:
    """Return the tree of all options, whose root is declared by RunOptions."""
    return _group(RunOptions)


@cache
def all_options() -> Mapping[str, Option]:
    """Return the dotted name of every option, such as "env.max_steps" → the option."""
    return dict(tree().leaves())


def kind_of(section: str, name: str) -> type:
    """Return the dataclass of options that is registered under a name in a group, such as PlannerConfig.

    Args:
      section: name of the group, such as "controller".
      name: the registered name, such as "planner".
    """
    return GROUPS.get(section).groups.get(name)


def other_groups(section: str, name: str) -> list[str]:
    """Return the names of further groups whose options a registered component uses, such as ["search.beam", …].

    Args:
      section: name of the group, such as "controller".
      name: the registered name of the component, such as "planner".
    """
    return [group for group, _ in groups_from(kind_of(section, name)).values()]


def _group(kind: type) -> Group:
    """Return the group that a dataclass declares, with the groups that its attribute `groups` registers.

    If the dataclass of an inner group is a subclass, the options that it inherits belong to the outer group alone.
    """
    own = options_of(kind)
    entries: dict[str, Option | Group] = dict(own)
    # `vars` omits inherited attributes: the dataclass of an inner group may be a subclass that inherits `groups`.
    within = vars(kind).get("groups", {})
    for name in within:
        group = _group(within.get(name))
        if issubclass(group.kind, kind):
            group = Group(group.kind, {key: entry for key, entry in group.entries.items() if key not in own})
        entries[name] = group
    return Group(kind, entries)


def shipped(path: Path | str) -> Path:
    """Return a path unchanged if it exists. If it begins with `configs/`, return the shipped file of that name."""
    path = Path(path)
    if path.exists() or path.parts[:1] != ("configs",):
        return path
    brought = CONFIGS.joinpath(*path.parts[1:])
    return brought if brought.is_file() else path


# -- the page --------------------------------------------------------------------------------------


def page() -> str:
    """Return the text of configs/default.yaml."""
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


def load_config(
    files: Iterable[Path | str] = (),
    overrides: Iterable[str] = (),
    base: Path | None = None,
    changes: Mapping[str, object] | None = None,
) -> DictConfig:
    """Merge the defaults, a base config, files, overrides and changes. A later one of them overrides the earlier ones.

    Args:
      files: YAML files of options.
      overrides: texts KEY=VALUE.
      base: file with the resolved config of a run.
      changes: further options, nested as in a config.

    Returns:
      The read-only config of all options.

    Raises:
      RLFlowError: a file is missing or malformed, an option is unknown (the message names the nearest known option), a
        value has a wrong type or range, or a value contains an interpolation of OmegaConf (`${…}`).
    """
    layers = [(str(path), _expanded(read_options(path), tree())) for path in [*([base] if base else []), *files]]
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals or not key:
            raise RLFlowError(f"'{text}' is not of the form key=value")
        try:
            layers.append((text, OmegaConf.to_container(OmegaConf.from_dotlist([text]))))
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise RLFlowError(f"cannot read '{text}': {first_line(error)}") from error
    if changes:
        layers.append(("command line", OmegaConf.to_container(OmegaConf.create(dict(changes)))))
    options = tree().defaults
    for source, values in layers:
        _check(values, tree(), source)
        options = _merged(options, values)  # OmegaConf.merge takes twice as long
    config = OmegaConf.create(options)
    OmegaConf.set_readonly(config, True)
    return config


def read_options(path: Path | str) -> dict:
    """Read a YAML file that contains a mapping, without checking its options.

    Args:
      path: the file; a shipped file such as configs/demo.yaml is found from every working directory.

    Raises:
      RLFlowError: the file cannot be read, or is not a YAML mapping.
    """
    try:
        return deepcopy(_mapping_in(shipped(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RLFlowError(f"{path} is not a valid config: {first_line(error)}") from error
    except TypeError:
        raise RLFlowError(f"{path} is not a mapping of options") from None


@lru_cache(maxsize=64)
def _mapping_in(text: str) -> dict:
    """Return the mapping in a YAML text, which is parsed once: a command reads its files several times.

    Raises:
      TypeError: the text contains something else.
    """
    config = OmegaConf.load(StringIO(text))
    if not isinstance(config, DictConfig):
        raise TypeError
    return OmegaConf.to_container(config)


def _expanded(values: Mapping, group: Group) -> dict:
    """Return options with each dotted key as nested groups: {"env": {"alpha": 0.5}} for {"env.alpha": 0.5}.

    Args:
      values: the options in the group; unknown ones are kept.
      group: the group.
    """
    result: dict = {}
    for key, value in values.items():
        first, dot, rest = str(key).partition(".")
        if dot and key not in group.entries:
            key, value = first, {rest: value}
        entry = group.entries.get(key)
        if isinstance(value, dict) and isinstance(entry, Group):
            value = _expanded(value, entry)
        result = _merged(result, {key: value})
    return result


def _merged(one: Mapping, other: Mapping) -> dict:
    """Merge nested dictionaries; values of `other` replace those of `one`."""
    result = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return result


def _check(values: dict, group: Group, source: str, prefix: str = "") -> None:
    for key, value in values.items():
        name, entry = f"{prefix}{key}", group.entries.get(key)
        if entry is None:
            known = [prefix + k for k in group.entries] + list(all_options())
            raise RLFlowError(f"{source}: unknown option '{name}'{nearest(name, known, cutoff=0.4)}")
        if "${" in str(value):
            raise RLFlowError(f"{source}: '{name}' holds an interpolation (${{…}}), which configs do not have")
        if isinstance(entry, Group):
            if not isinstance(value, dict):
                raise RLFlowError(f"{source}: '{name}' is a group of options: {', '.join(entry.entries)}")
            _check(value, entry, source, f"{name}.")
        elif entry.kind is dict:  # `shapes`, whose keys are names in the model
            if not isinstance(value, dict) or not all(is_shape(size) for size in value.values()):
                raise RLFlowError(f"{source}: '{name}' maps names to sizes, such as 128 or [1, 128], not {value!r}")
        elif wrong := entry.error_of(value):
            raise RLFlowError(f"{source}: '{name}' {wrong}")


def parse_shapes(texts: Iterable[str]) -> dict[str, object]:
    """Return the mapping name → size or list of sizes for the values of --shape, as in the option `shapes`.

    "seq=128" gives 128. Both "seq=16,128" (two sizes of a dimension) and "ids=16x128" (the shape of an input) give
    [16, 128]. Only the model determines whether a name is a dimension or an input.

    Raises:
      RLFlowError: a text has another form.
    """
    shapes: dict[str, object] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        parts = sizes.split("x" if "x" in sizes else ",")
        if not equals or not name or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise RLFlowError(f"--shape takes NAME=128, NAME=16,128 or NAME=1x128, not '{text}'")
        shapes[name] = [int(part) for part in parts] if len(parts) > 1 else int(parts[0])
    return shapes


LEARNING = {"collect", "world_model", "iterations", "dream", "controller"}  # the groups of options for learning


def asks_to_learn(files: Iterable[Path | str], overrides: Iterable[str]) -> bool:
    """Return whether files or overrides set an option in one of the groups in LEARNING.

    Args:
      files: YAML files of options.
      overrides: texts KEY=VALUE.
    """
    groups = [str(key).partition(".")[0] for path in files for key in read_options(path)]
    groups += [text.partition("=")[0].partition(".")[0] for text in overrides]
    return not LEARNING.isdisjoint(groups)


def main() -> None:
    """Write configs/default.yaml."""
    argparse.ArgumentParser(description="Write configs/default.yaml from the options.").parse_args()
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
