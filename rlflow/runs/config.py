"""Configs: the options' defaults, small YAML files and `key=value` on top."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlflow.common.errors import RLFlowError, first_line
from rlflow.runs.options import Group, all_options, shipped, tree


def load_config(
    files: Iterable[Path | str] = (), overrides: Iterable[str] = (), base: Path | None = None,
    changes: Mapping[str, object] | None = None,
) -> DictConfig:
    """The defaults (or `base`, a run's resolved config, on top of them), then the files, the overrides, the changes.

    Raises RLFlowError for a missing or malformed file, an unknown key (naming the nearest), a wrong type, a
    number out of range, or an interpolation: a config says what it says, whatever the environment.
    """
    config = OmegaConf.create(tree().defaults)
    layers = [(str(path), read_options(path)) for path in ([base] if base else []) + list(files)]
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals or not key:
            raise RLFlowError(f"'{text}' is not of the form key=value")
        try:
            layers.append((text, OmegaConf.from_dotlist([text])))
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise RLFlowError(f"cannot read '{text}': {first_line(error)}") from error
    layers.append(("command line", OmegaConf.create(dict(changes or {}))))
    for source, layer in layers:
        _check(OmegaConf.to_container(layer), tree(), source)
    config = OmegaConf.merge(config, *[layer for _, layer in layers])
    OmegaConf.set_readonly(config, True)
    return config


def groups_of(files: Iterable[Path | str], overrides: Iterable[str]) -> set[str]:
    """The groups of options that files and overrides say anything about."""
    return {key for path in files for key in read_options(path)} | {
        text.partition("=")[0].partition(".")[0] for text in overrides
    }


def read_options(path: Path | str) -> DictConfig:
    """A YAML file that is a mapping, nothing of it checked. Raises RLFlowError for anything else.

    path: of the user's file, or such as configs/demo.yaml, which is there wherever the command is called.
    """
    try:
        config = OmegaConf.load(shipped(path))
    except OSError as error:
        raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RLFlowError(f"{path} is not a valid config: {first_line(error)}") from error
    if not isinstance(config, DictConfig):
        raise RLFlowError(f"{path} is not a mapping of options")
    return config


def _check(values: dict, group: Group, source: str, prefix: str = "") -> None:
    for key, value in values.items():
        name, entry = f"{prefix}{key}", group.entries.get(key)
        if entry is None:
            known = [prefix + k for k in group.entries] + list(all_options())
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            raise RLFlowError(f"{source}: unknown option '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
        if "${" in str(value):
            raise RLFlowError(f"{source}: '{name}' holds an interpolation (${{…}}), which configs do not have")
        if isinstance(entry, Group):
            if not isinstance(value, dict):
                raise RLFlowError(f"{source}: '{name}' is a group of options: {', '.join(entry.entries)}")
            _check(value, entry, source, f"{name}.")
        elif entry.kind is dict:  # `shapes`, whose keys are the model's own
            if not isinstance(value, dict) or not all(is_shape(size) for size in value.values()):
                raise RLFlowError(f"{source}: '{name}' maps names to sizes, such as 128 or [1, 128], not {value!r}")
        elif wrong := entry.wrong(value):
            raise RLFlowError(f"{source}: '{name}' {wrong}")


def is_shape(value) -> bool:
    """Whether it is a size, at least 1, or a list of sizes."""
    sizes = value if isinstance(value, list) else [value]
    return bool(sizes) and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes)


def parse_shapes(texts: Iterable[str]) -> dict[str, object]:
    """`dimension=128`, `dimension=16,128` (several sizes) and `input=1x128` of the command line, as a config says them.

    Both lists are the same in a config: the model knows which names are inputs.
    """
    shapes: dict[str, object] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        parts = sizes.split("x" if "x" in sizes else ",")
        if not equals or not name or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise RLFlowError(f"--shape takes NAME=128, NAME=16,128 or NAME=1x128, not '{text}'")
        shapes[name] = [int(part) for part in parts] if len(parts) > 1 else int(parts[0])
    return shapes
