"""Find options that the user set and that have no effect, because another option has a value that does not use them.

An option states with which values of other options it has an effect (`rlflow.common.options.Option.used_if`). Options
of a named component, such as controller.ppo.updates, have an effect only if the component is chosen.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from omegaconf import OmegaConf

from rlflow.runs.config import all_options, read_options, tree


def given_options(files: Iterable[Path | str], overrides: Iterable[str]) -> set[str]:
    """Return the dotted names of the options that files and KEY=VALUE texts set.

    A file may configure several components for several commands, so the options of components in files are left out.

    Args:
      files: YAML files of options.
      overrides: texts KEY=VALUE.
    """
    names = {text.partition("=")[0] for text in overrides}
    for path in files:
        leaves = _leaves(read_options(path))
        names.update(name for name in leaves if name in all_options() and _component(name) is None)
    return names


def without_effect(config: Mapping, given: Iterable[str]) -> list[str]:
    """Return one line of text for each value of an option that leaves given options without effect.

    Options whose value is their default are left out.

    Args:
      config: the resolved config.
      given: dotted names of the options that the user set now.
    """
    causes: dict[str, list[str]] = {}
    for name in sorted(set(given) & all_options().keys()):
        value, default = _value(config, name), all_options()[name].default
        if value == (list(default) if isinstance(default, tuple) else default):
            continue
        for other, values in _conditions(name):
            if (actual := _value(config, other)) not in values:
                causes.setdefault(f"{other}={actual}", []).append(name)
                break
    return [f"note: with {cause} there is no effect of {', '.join(names)}" for cause, names in causes.items()]


def _leaves(values: Mapping, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and f"{prefix}{key}" not in all_options():
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _value(config: Mapping, name: str):
    for part in name.split("."):
        config = config[part]
    return OmegaConf.to_container(config) if OmegaConf.is_config(config) else config


def _conditions(name: str) -> Iterator[tuple[str, object]]:
    """Yield (name of another option, its values with which the option `name` has an effect)."""
    group, _, _ = name.rpartition(".")
    if component := _component(name):
        yield f"{group.partition('.')[0]}.name", (component,)
    for other, values in all_options()[name].used_if.items():
        yield (other if "." in other else f"{group}.{other}"), values


def _component(name: str) -> str | None:
    """Return "ppo" for "controller.ppo.updates", or None for an option that does not belong to a named component."""
    section, *parts = name.split(".")
    return parts[0] if len(parts) == 2 and "name" in tree().entries[section].entries else None
