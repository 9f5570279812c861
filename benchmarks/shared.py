"""Names of models, calls of RLFlow and formats of table cells that several benchmarks share."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.optimisation.candidates import improvement
from rlflow.reports.run_comparison import mean_interval
from rlflow.runs.config import load_config
from rlflow.search.base import Limits, run_search

ROOT = Path(__file__).parent.parent
THREADS = 1  # threads of ONNX Runtime in every published measurement for which no other number is stated
PAPER = ("squeezenet1_1", "resnet18", "resnet50", "inception_v3", "bert_base", "vit_base")  # evaluated in the papers
LIGHT = (  # small versions of networks of the ONNX model zoo
    "light_squeezenet", "light_resnet50", "light_inception_v1", "light_inception_v2", "light_densenet121",
    "light_shufflenet", "light_vgg19", "light_bvlc_alexnet", "light_zfnet512",
)  # fmt: skip
MODELS = (*PAPER, *LIGHT)
NOTHING = "–"  # the cell of a value that was not measured


def run_rlflow(*arguments: str, env: Mapping[str, str] | None = None) -> float:
    """Run `python run.py ARGUMENTS` in a new process and return its wall-clock seconds.

    Args:
        arguments: arguments of `run.py`; each is converted to a string.
        env: environment variables of the process; None for the variables of this process.

    Raises:
        RLFlowError: the command failed; the message is the last line of its standard error.
    """
    started = time.monotonic()
    command = [sys.executable, "run.py", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    if done.returncode:
        raise RLFlowError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return time.monotonic() - started


def timed(work: Callable[[], object]) -> float:
    """Call `work` and return its wall-clock seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def search_gain(spec: EnvSpec, method: str, limits: Limits, seed: int = 0) -> dict:
    """Run a search with its default options from the initial graph of a task.

    Args:
        spec: the rewriting task, including the cost that the search minimises.
        method: name of the search, for instance "beam".
        limits: limits of the search on seconds, interactions and memory.
        seed: seed of the search.

    Returns:
        "gain": reduction of the objective in percent. "seconds" and "interactions": the amounts that the search used.
    """
    start = spec.make_task().initial
    result = run_search(method, start, limits, seed, **load_config().search[method])
    gain = improvement(start.objective, result.state.objective)
    return {"gain": gain, "seconds": result.seconds, "interactions": result.interactions}


# -- cells -------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """Return the value with `digits` decimals, followed by the unit; NOTHING for None."""
    return NOTHING if value is None else f"{value:,.{digits}f}{unit}"


def percent(values: Sequence[float] | float | None, digits: int = 2) -> str:
    """Return a cell such as "1.20 ± 0.10 %": the mean of the values and the half width of its 95 % confidence interval.

    Args:
        values: values in percent. A single value has no interval; the cell of None or of no values is NOTHING.
        digits: number of decimals.
    """
    if values is None or (isinstance(values, Sequence) and not values):
        return NOTHING
    if not isinstance(values, Sequence):
        return f"{values:.{digits}f} %"
    result = mean_interval(values)
    half = "" if result["high"] is None else f" ± {result['high'] - result['mean']:.{digits}f}"
    return f"{result['mean']:.{digits}f}{half} %"


def ratio(measured: Mapping | None) -> str:
    """Return a cell such as "0.950 (0.940 to 0.960)": a ratio of latencies and its 95 % confidence interval.

    Args:
        measured: "ratio" and "interval", as `rlflow.costs.measured.measure` returns them; None or {} gives NOTHING.
    """
    if not measured:
        return NOTHING
    return "{:.3f} ({:.3f} to {:.3f})".format(measured["ratio"], *measured["interval"])
