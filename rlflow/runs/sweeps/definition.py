"""The definition of a sweep: a checked YAML file with its parameters and the options of each trial."""

import math
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from omegaconf import DictConfig

from rlflow.common.errors import RLFlowError, nearest
from rlflow.runs.config import all_options, load_config, read_options
from rlflow.runs.folder import stages_of
from rlflow.runs.sweeps.runs import FIGURES, OF_DREAMS

CHOICES = {
    "sampler": ("grid", "random", "tpe"),
    "pruner": ("none", "median"),
    "executor": ("local", "ray"),
    "direction": ("maximize", "minimize"),
}
SCALAR = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Parameter:
    """A parameter of a sweep: one of `choices`, or a number from `low` to `high`.

    Attributes:
      name: the dotted name of an option, e.g. "dream.temperatures"; with `cases`, a name that the user chose.
      choices: the values, or the names of `cases`; empty for a range.
      cases: name of a case → the options that the case sets, as dotted name → value.
      low: the lower end of a range.
      high: the upper end of a range.
      log: True if samplers draw the logarithm of the number uniformly, instead of the number.
      whole: True if the numbers are integers.
    """

    name: str
    choices: tuple = ()
    cases: Mapping[str, dict] = field(default_factory=dict)
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    def options(self, value) -> dict:
        """Return the options that a value of this parameter sets, as dotted name → value."""
        return dict(self.cases[value]) if self.cases else {self.name: value}


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file; see configs/sweeps/.

    Attributes:
      base: options of every trial, dotted name → value.
      parameters: the parameters.
      sampler: "grid", "random" or "tpe".
      sampler_seed: the seed of the sampler.
      pruner: "none" or "median".
      trials: number of trials; for a grid, the number of all combinations.
      seeds: the seeds; each trial has one run per seed.
      executor: "local" or "ray".
      workers: number of runs that are executed at the same time.
      figure: the name in `FIGURES` of the objective.
      direction: "maximize" or "minimize".
    """

    base: dict
    parameters: tuple[Parameter, ...]
    sampler: str
    sampler_seed: int
    pruner: str
    trials: int
    seeds: tuple[int, ...]
    executor: str
    workers: int
    figure: str
    direction: str

    def grid(self, number: int) -> dict:
        """Return parameter → value for trial `number` of a grid. The value of the last parameter changes fastest."""
        values = list(product(*(parameter.choices for parameter in self.parameters)))[number]
        return dict(zip([parameter.name for parameter in self.parameters], values, strict=True))

    def options(self, values: Mapping[str, object], seed: int) -> dict:
        """Return the options of a run, nested as in a config.

        Args:
          values: name of each parameter → its value.
          seed: the seed of the run.
        """
        chosen = dict(self.base)
        for parameter in self.parameters:
            chosen |= parameter.options(values[parameter.name])
        return _nested(chosen | {"seed": seed})


def load_sweep(path: Path | str, check: Callable[[DictConfig], None] = lambda config: None) -> Sweep:
    """Read a sweep file, and check that the values of its parameters give valid configs.

    Every listed value and both ends of every range are checked, with the first values of all other parameters.

    Args:
      path: the sweep file.
      check: a further check of each config, which raises RLFlowError.

    Raises:
      RLFlowError: a key or option is unknown, or a value is not allowed; the message names the file.
    """
    result = read_options(path)
    try:
        sweep = _sweep(result)
        for parameter in sweep.parameters:
            for value in parameter.choices or (parameter.low, parameter.high):
                _try(sweep, parameter, value, check)
    except RLFlowError as error:
        raise RLFlowError(f"{path}: {str(error).removeprefix('command line: ')}") from error
    return sweep


def _sweep(result: dict) -> Sweep:
    known = (
        "model", "base", "parameters", "sampler", "sampler_seed", "pruner", "trials", "seeds", "executor", "workers",
        "objective",
    )  # fmt: skip
    _known(result, known, "key")
    base, parameters = result.get("base") or {}, result.get("parameters")
    if not isinstance(base, dict):
        raise RLFlowError("'base' maps options to values")
    if not isinstance(parameters, dict) or not parameters:
        raise RLFlowError("'parameters' maps at least one option to a list, to a range {low, high}, or to named cases")
    if "model" in result:
        base = {"model": result["model"], **base}
    parameters = tuple(_parameter(name, values) for name, values in parameters.items())
    sampler = _choice(result, "sampler")
    count = math.prod(len(parameter.choices) for parameter in parameters)
    if sampler == "grid" and not count:
        raise RLFlowError("a grid needs lists or cases, not ranges: sampler: random or tpe")
    if sampler == "grid" and "trials" in result:
        raise RLFlowError("'trials' is for the samplers random and tpe; a grid runs every combination")
    objective = result.get("objective") or {"figure": "improvement"}
    if not isinstance(objective, dict):
        raise RLFlowError("'objective' is {figure: NAME, direction: maximize or minimize}")
    _known(objective, ("figure", "direction"), "key of 'objective'")
    figure = objective.get("figure")
    _known([figure], FIGURES, "figure")
    return Sweep(
        base, parameters, sampler, _count(result, "sampler_seed", 0, least=0), _choice(result, "pruner"),
        count if sampler == "grid" else _count(result, "trials"), _seeds(result.get("seeds", [0])),
        _choice(result, "executor"),
        _count(result, "workers", 1), figure, _choice(objective, "direction"),
    )  # fmt: skip


def _parameter(name: str, result) -> Parameter:
    if not re.fullmatch(r"[\w.-]+", str(name)):  # the file of a plot has this name
        raise RLFlowError(f"the parameter {name!r} is named by letters, digits, '_', '.' and '-' only")
    if isinstance(result, list) and result and all(isinstance(value, SCALAR) for value in result):
        if any(value in result[:k] for k, value in enumerate(result)):
            raise RLFlowError(f"'{name}' holds a value twice")
        return Parameter(name, tuple(result))
    if isinstance(result, dict) and {"low", "high"} <= result.keys():
        _known(result, ("low", "high", "log"), f"key of '{name}'")
        low, high, log = result["low"], result["high"], result.get("log", False)
        if (
            not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (low, high))
            or not low < high
        ):
            raise RLFlowError(f"'{name}' goes from a number 'low' to a larger one 'high', not from {low!r} to {high!r}")
        if not isinstance(log, bool) or (log and low <= 0):
            raise RLFlowError(f"'{name}': 'log' is true or false, and needs a 'low' above 0")
        return Parameter(
            name, low=low, high=high, log=log,
            whole=isinstance(low, int) and isinstance(high, int) and not _takes_floats(name),
        )  # fmt: skip
    if (
        isinstance(result, dict)
        and result
        and all(isinstance(key, str) and isinstance(case, dict) for key, case in result.items())
    ):
        return Parameter(name, tuple(result), result)
    raise RLFlowError(
        f"'{name}' is a list of numbers or texts, a range {{low, high}}, or cases {{NAME: {{OPTION: value}}}}, not "
        f"{result!r}"
    )


def _takes_floats(name: str) -> bool:
    return name in all_options() and all_options()[name].kind is float


def _try(sweep: Sweep, parameter: Parameter, value, check: Callable[[DictConfig], None]) -> None:
    """Raise RLFlowError if a value does not give a valid config of a run.

    Args:
      sweep: the sweep.
      parameter: the parameter that gets the value; every other parameter gets its first value.
      value: the value.
      check: a further check of the config, which raises RLFlowError.
    """
    values = {other.name: other.choices[0] if other.choices else other.low for other in sweep.parameters} | {
        parameter.name: value
    }
    if "seed" in {**sweep.base, **parameter.options(value)}:
        raise RLFlowError("the key 'seeds' says with which seeds every trial is run, not the option 'seed'")
    config = load_config(changes=sweep.options(values, sweep.seeds[0]))
    check(config)
    if not config.model:
        raise RLFlowError("no model: name one with 'model'")
    if len(config.dream.temperatures) != 1:
        raise RLFlowError("a trial trains one controller: dream.temperatures has one value (sweep over it instead)")
    if sweep.figure in OF_DREAMS and "train-wm" not in stages_of(config):
        raise RLFlowError(f"'objective': no world model is learnt for {config.controller.name}: no '{sweep.figure}'")


def _nested(options: Mapping[str, object]) -> dict:
    """Return options as nested dictionaries: {"env": {"alpha": 0.5}} for {"env.alpha": 0.5}.

    If an option takes a list and its value is not a list, the value becomes a list of one element.
    """
    known, nested = all_options(), {}
    for name, value in options.items():
        *groups, last = name.split(".")
        inside = nested
        for group in groups:
            inside = inside.setdefault(group, {})
            if not isinstance(inside, dict):
                raise RLFlowError(f"'{name}': '{group}' is both a value and a group of options")
        is_one = name in known and known[name].many and not isinstance(value, list)
        inside[last] = [value] if is_one else deepcopy(value)
    return nested


def _known(result, known, what: str) -> None:
    for key in result:
        if key not in known:
            hint = nearest(str(key), known) or f"; known: {', '.join(known)}"
            raise RLFlowError(f"unknown {what} '{key}'{hint}")


def _choice(result: dict, key: str) -> str:
    value = result.get(key, CHOICES[key][0])
    if value not in CHOICES[key]:
        raise RLFlowError(f"'{key}' is {' or '.join(CHOICES[key])}, not {value!r}")
    return value


def _count(result: dict, key: str, default: int | None = None, least: int = 1) -> int:
    value = result.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise RLFlowError(f"'{key}' is a whole number of at least {least}, not {value!r}")
    return value


def _seeds(result) -> tuple[int, ...]:
    if not isinstance(result, list) or not result or len(set(map(str, result))) < len(result):
        raise RLFlowError(f"'seeds' is a list of different whole numbers, not {result!r}")
    return tuple(_count({"seeds": seed}, "seeds", least=0) for seed in result)
