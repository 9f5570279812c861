"""Configs: one YAML file with every option, smaller files and `key=value` on top."""

import difflib
from collections.abc import Iterable
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlflow.errors import RLFlowError

DEFAULTS = Path(__file__).parent.parent / "configs" / "default.yaml"
FREE_FORM = ("shapes",)  # mappings whose keys are the user's own


def load_config(files: Iterable[Path | str] = (), overrides: Iterable[str] = (), base: Path | None = None) -> DictConfig:
    """The defaults (or `base`, a run's resolved config, on top of them), then the files, then the overrides.

    Raises RLFlowError for a missing or malformed file, an unknown key (naming the nearest), a wrong type.
    """
    config = _read(DEFAULTS)
    defaults = OmegaConf.to_container(config)
    layers = [(str(path), _read(path)) for path in ([base] if base else []) + list(files)]
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals or not key:
            raise RLFlowError(f"'{text}' is not of the form key=value")
        try:
            layers.append((text, OmegaConf.from_dotlist([text])))
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise RLFlowError(f"cannot read '{text}': {str(error).splitlines()[0]}") from error
    for source, layer in layers:
        values = OmegaConf.to_container(layer)
        _check(values, defaults, source)
        config = OmegaConf.merge(config, OmegaConf.create(values))
    OmegaConf.set_readonly(config, True)
    return config


def _read(path: Path | str) -> DictConfig:
    try:
        config = OmegaConf.load(path)
        OmegaConf.resolve(config)
    except OSError as error:
        raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RLFlowError(f"{path} is not a valid config: {str(error).splitlines()[0]}") from error
    if not isinstance(config, DictConfig):
        raise RLFlowError(f"{path} is not a mapping of options")
    return config


def _check(values: dict, defaults: dict, source: str, prefix: str = "") -> None:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if key not in defaults:
            known = [prefix + k for k in defaults] + list(_leaves(OmegaConf.to_container(_read(DEFAULTS))))
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            raise RLFlowError(f"{source}: unknown option '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
        default = defaults[key]
        if name in FREE_FORM:
            if not isinstance(value, dict):
                raise RLFlowError(f"{source}: '{name}' is a mapping")
        elif isinstance(default, dict):
            if not isinstance(value, dict):
                raise RLFlowError(f"{source}: '{name}' is a group of options: {', '.join(default)}")
            _check(value, default, source, f"{name}.")
        elif not _fits(value, default):
            raise RLFlowError(f"{source}: '{name}' is a {type(default).__name__}, not {value!r}")


def _fits(value, default) -> bool:
    if default is None:  # an option that may be left out; its reader knows the type
        return not isinstance(value, dict | list)
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    return isinstance(value, type(default))


def _leaves(tree: dict, prefix: str = ""):
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def parse_shapes(texts: Iterable[str]) -> dict[str, object]:
    """`input=1x128` and `dimension=128` of the command line, as `load_graph` takes them."""
    shapes: dict[str, object] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        parts = sizes.split("x")
        if not equals or not name or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise RLFlowError(f"--shape takes NAME=1x128 or NAME=128, not '{text}'")
        shapes[name] = [int(part) for part in parts] if len(parts) > 1 else int(parts[0])
    return shapes
