"""Configs: one YAML file with every option, smaller files and `key=value` on top."""

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlflow.common.errors import RLFlowError, first_line

DEFAULTS = Path(__file__).parents[2] / "configs" / "default.yaml"
FREE_FORM = ("shapes",)  # mappings whose keys are the user's own
NULLABLE = {"model": str, "cost.database": str, "dream.uncertainty_limit": float, "optimise.seconds": float}  # may be null: the type of a value
ELEMENTS = {"env.rules": str, "collect.also": str, "dream.temperatures": float, "eval.seeds": int}
NOT_EMPTY = ("dream.temperatures", "eval.seeds")

# A number is above 0 (a count at least 1), but for these, whose smallest value is 0.
MAY_BE_ZERO = frozenset((
    "seed", "env.alpha", "env.beta", "world_model.mdn-rnn.encoder_steps", "world_model.mdn-rnn.final_learning_rate",
    "world_model.mdn-rnn.decay_power", "world_model.holdout", "world_model.threads", "world_model.mdn-rnn.patience", "dream.temperatures", "dream.uncertainty_limit", "dream.uncertainty_penalty",
    "controller.ppo.descent", "controller.ppo.gamma", "controller.ppo.gae_lambda", "controller.ppo.entropy_weight",
    "controller.ppo.value_weight", "controller.planner.annealing", "controller.planner.uncertainty_limit", "eval.samples", "eval.greedy_steps", "eval.greedy_seconds",
    "eval.measure_seconds", "eval.seeds", "search.beam.radius", "search.annealing.hot", "search.annealing.focus",
))  # fmt: skip
AT_MOST = {
    "seed": 2**31 - 1, "world_model.holdout": 0.9, "controller.ppo.gamma": 1, "controller.ppo.gae_lambda": 1,
    "collect.episodes": 10**7, "search.annealing.focus": 1, "controller.planner.annealing": 1,
}  # fmt: skip


def load_config(
    files: Iterable[Path | str] = (), overrides: Iterable[str] = (), base: Path | None = None,
    changes: Mapping[str, object] | None = None,
) -> DictConfig:
    """The defaults (or `base`, a run's resolved config, on top of them), then the files, the overrides, the changes.

    Raises RLFlowError for a missing or malformed file, an unknown key (naming the nearest), a wrong type, a
    number out of range, or an interpolation: a config says what it says, whatever the environment.
    """
    config = read_options(DEFAULTS)
    defaults = OmegaConf.to_container(config)
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
        values = OmegaConf.to_container(layer)
        _check(values, defaults, source)
        config = OmegaConf.merge(config, OmegaConf.create(values))
    OmegaConf.set_readonly(config, True)
    return config


def groups_of(files: Iterable[Path | str], overrides: Iterable[str]) -> set[str]:
    """The groups of options that files and overrides say anything about."""
    return {key for path in files for key in read_options(path)} | {text.partition("=")[0].partition(".")[0] for text in overrides}


def read_options(path: Path | str) -> DictConfig:
    """A YAML file that is a mapping, nothing of it checked. Raises RLFlowError for anything else."""
    try:
        config = OmegaConf.load(path)
    except OSError as error:
        raise RLFlowError(f"cannot read {path}: {error.strerror or error}") from error
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RLFlowError(f"{path} is not a valid config: {first_line(error)}") from error
    if not isinstance(config, DictConfig):
        raise RLFlowError(f"{path} is not a mapping of options")
    return config


def _check(values: dict, defaults: dict, source: str, prefix: str = "") -> None:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if key not in defaults:
            known = [prefix + k for k in defaults] + list(_leaves(OmegaConf.to_container(read_options(DEFAULTS))))
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            raise RLFlowError(f"{source}: unknown option '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
        default = defaults[key]
        if "${" in str(value):
            raise RLFlowError(f"{source}: '{name}' holds an interpolation (${{…}}), which configs do not have")
        if name in FREE_FORM:
            if not isinstance(value, dict) or not all(_is_shape(size) for size in value.values()):
                raise RLFlowError(f"{source}: '{name}' maps names to sizes, such as 128 or [1, 128], not {value!r}")
        elif isinstance(default, dict):
            if not isinstance(value, dict):
                raise RLFlowError(f"{source}: '{name}' is a group of options: {', '.join(default)}")
            _check(value, default, source, f"{name}.")
        elif value is not None or name not in NULLABLE:
            kind = NULLABLE.get(name, type(default))
            if not _fits(value, kind):
                raise RLFlowError(f"{source}: '{name}' is a {kind.__name__}, not {value!r}")
            for element in value if kind is list else [value]:
                if not _fits(element, ELEMENTS.get(name, kind)):
                    raise RLFlowError(f"{source}: '{name}' is a list of {ELEMENTS[name].__name__}, not {value!r}")
                if isinstance(element, int | float) and not isinstance(element, bool):
                    _check_range(name, element, source)
            if name in NOT_EMPTY and (not value or len(set(value)) < len(value)):
                raise RLFlowError(f"{source}: '{name}' needs at least one value, and none twice")


def _check_range(name: str, value: float, source: str) -> None:
    if not math.isfinite(value):
        raise RLFlowError(f"{source}: '{name}' must be finite, not {value}")
    if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
        raise RLFlowError(f"{source}: '{name}' must be {'0 or more' if name in MAY_BE_ZERO else 'above 0'}, not {value}")
    if value > AT_MOST.get(name, math.inf):
        raise RLFlowError(f"{source}: '{name}' must be at most {AT_MOST[name]}, not {value}")


def _fits(value, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _is_shape(value) -> bool:
    sizes = value if isinstance(value, list) else [value]
    return bool(sizes) and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes)


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
        if not equals or not name or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise RLFlowError(f"--shape takes NAME=1x128 or NAME=128, not '{text}'")
        shapes[name] = [int(part) for part in parts] if len(parts) > 1 else int(parts[0])
    return shapes
