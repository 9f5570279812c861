"""`measure`: which of two files is faster on this machine."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from rlflow.cli.command import add_command, add_shapes, add_threads, ending, threads_of
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import counted, say, shape_words

TEXT = "which of two files is faster on this machine, with an interval"
PAGE = """\
Which of two files with the same inputs and outputs is faster on this machine: their latency in ONNX Runtime with all of
its optimisations, in turns, in several sessions, as a ratio (below 1: B is faster) with its 95 %% interval.

    %(prog)s MODEL.onnx FASTER.onnx --threads 4

Where sizes are symbolic they are measured at those of --shape; the geometric mean counts, and one size at which B is
slower makes it slower. Outputs are compared on random inputs, so that it shows if the two do not belong together;
`validate` is what judges equality."""
SEEDS = (0, 1, 2)  # of the inputs that outputs are compared on


def add(commands) -> None:
    command = add_command(commands, "measure", run, TEXT, PAGE)
    command.add_argument("original", metavar="A.onnx", help="what the other is measured against: a path or a zoo name")
    command.add_argument("candidate", metavar="B.onnx", help="a path or a zoo name")
    add_threads(command)
    command.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="for all runs, at most; sessions on top (default: 20)"
    )
    command.add_argument("--sessions", type=int, default=10, metavar="N", help="pairs of sessions (default: 10)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the inputs (default: 0)")
    add_shapes(command)


def run(parsed) -> dict:
    from rlflow.costs.measured import measure
    from rlflow.graph.typical import inputs_at, typical_sizes
    from rlflow.optimisation.validate.findings import json_number
    from rlflow.optimisation.validate.onnx_model import Model, is_low
    from rlflow.runs.config import parse_shapes
    from rlflow.zoo import zoo_or_path

    if parsed.sessions < 1 or not parsed.seconds > 0 or parsed.seed < 0:
        raise RLFlowError("--sessions is at least 1, --seconds is above 0, --seed at least 0")
    threads = threads_of(parsed)
    original, candidate = map(zoo_or_path, (parsed.original, parsed.candidate))
    interface, shapes = _interface(original), parse_shapes(parsed.shape)
    sizes = typical_sizes(interface, shapes)
    _check_same_interface(original, candidate, sizes)
    inputs = inputs_at(interface, sizes)
    error = largest_error(original, candidate, list(inputs.values()), threads)
    say(f"measuring for {parsed.seconds:g} s, at most")
    result = measure(original, candidate, threads, parsed.seconds, parsed.sessions, parsed.seed, inputs)
    _keep(original, candidate, sizes, threads, result)
    result["largest_relative_error"] = json_number(error)
    result["low_precision"] = is_low(Model.read(original).proto)
    _end_with(parsed, result, error, len(inputs), shape_words(shapes, False))
    return result


def _keep(original, candidate, sizes: Sequence[Mapping[str, int]], threads: int, result: Mapping) -> None:
    """For `costs learn`; what cannot be kept, as no graph can be read, is measured all the same."""
    from rlflow.costs.database import TimingDatabase
    from rlflow.costs.measurements import Measurements
    from rlflow.graph.onnx_reader import load_graph

    with suppress(RLFlowError):
        graphs, ratio = (load_graph(original), load_graph(candidate)), (result["ratio"], *result["interval"])
        Measurements(TimingDatabase(), threads).keep(*graphs, sizes, ratio, result["original_ms"])


def _interface(source):
    from rlflow.optimisation.validate.onnx_model import Model

    return Model.read(source).interface


def _check_same_interface(original, candidate, sizes: Sequence[Mapping[str, int]]) -> None:
    """Raises RLFlowError unless both have the same inputs and outputs. B may be made for the one size that is measured.

    sizes: the typical ones of A.
    """
    from rlflow.optimisation.validate.onnx_model import Model
    from rlflow.optimisation.validate.structure import interface

    left, right = Model.read(original), Model.read(candidate)
    for each in sizes:
        wrong = [finding.message for finding in interface(left, right, each) if not finding.ok]
        if wrong:
            raise RLFlowError(f"the two have other interfaces, so that one run cannot be both's: {wrong[0]}")


def largest_error(original, candidate, shapes: Sequence[Mapping], threads: int) -> float:
    """The largest relative error of an output on random inputs, SEEDS of them at each of the sizes; infinity where
    shapes, types or anything but floats differ.

    shapes: input → the sizes of its axes, as `random_inputs` takes them.
    """
    from rlflow.graph.onnx_runtime import random_inputs, session
    from rlflow.graph.onnx_runtime import run as run_model

    inputs = [random_inputs(original, seed, one) for one in shapes for seed in SEEDS]
    values = []  # of both models: for every one of the inputs its outputs
    for model in (original, candidate):  # one session at a time: each holds all weights
        running = session(model, threads)
        values.append([run_model(running, arrays) for arrays in inputs])
    errors = [_error(old, new) for both in zip(*values, strict=True) for old, new in zip(*both, strict=True)]
    return max(errors, default=0.0)


def _error(old, new) -> float:
    import numpy as np

    from rlflow.optimisation.validate.numerics import relative_error

    if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):  # sequences, maps
        return 0.0 if repr(old) == repr(new) else np.inf
    if old.dtype.kind == new.dtype.kind == "f" and old.shape == new.shape:
        return relative_error(old, new)
    return 0.0 if np.array_equal(old, new) else np.inf


def _end_with(parsed, result: dict, error: float, sizes: int, shapes: list[str]) -> None:
    from rlflow.optimisation.choice import EvalOptions, is_faster
    from rlflow.reports.markdown import measured_text

    tolerance = EvalOptions.tolerance
    outputs = f"outputs compared on {counted(len(SEEDS) * sizes, 'random input')}, largest relative error {error:.1e}"
    apart = ""
    if error > tolerance:
        low, other = "in low precision `validate` tells if that is too much", "the two do not compute the same"
        apart = f", more than {tolerance:g}: {low if result['low_precision'] else other}"
    runs = f"{counted(result['pairs'], 'pair')} of runs in {counted(result['sessions'], 'session')}"
    where = f"{counted(result['threads'], 'thread')}, {result['machine']}, ONNX Runtime {result['onnxruntime']}"
    lines = {
        "result": f"{parsed.candidate} {measured_text(result)}",
        "sure": f"{runs}; {where}; {outputs}{apart}",
    }
    if is_faster(result) or apart:
        ending(lines, "validate", parsed.original, parsed.candidate, *shapes)
    else:
        out = "faster.onnx"
        ending(lines, "optimise", parsed.original, "--out", out, "--threads", result["threads"], *shapes)
