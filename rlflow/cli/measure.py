"""The command `measure`: compare the latencies of two models on this machine."""

from collections.abc import Mapping, Sequence

from rlflow.cli.command import (
    add_command,
    add_custom_ops,
    add_inputs,
    add_shapes,
    add_threads,
    ending,
    input_words,
    threads_of,
)
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import counted, say, shape_words

TEXT = "compare the speed of two files on this machine, with a confidence interval"
PAGE = """\
Measures which of two files with equal inputs and outputs is faster on this machine. Both run in ONNX Runtime with all
optimisations, alternately and in several sessions. The result is the ratio of their latencies (below 1: B is faster)
with its 95 %% confidence interval.

    %(prog)s MODEL.onnx FASTER.onnx --threads 4

Symbolic sizes are measured at the sizes of --shape. The ratio is the geometric mean over sizes, and B counts as slower
if it is slower at one of them. Runs use the inputs of --inputs of these sizes, or else random ones. Both are used to
compare outputs, only to detect files that do not belong together. The exit status is 1 if outputs differ. Use
`validate` to check equality."""
# Largest relative error of an output of a model in half precision or of a quantised model. Below it, only `validate`
# can tell a difference from rounding.
LOW_TOLERANCE = 0.1


def add(commands) -> None:
    command = add_command(commands, "measure", run, TEXT, PAGE)
    command.add_argument("original", metavar="A.onnx", help="the file to compare with: a path or a zoo name")
    command.add_argument("candidate", metavar="B.onnx", help="the file that is compared: a path or a zoo name")
    add_threads(command)
    command.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="time limit of all runs (default: 20)"
    )
    command.add_argument(
        "--sessions", type=int, default=10, metavar="N", help="largest number of pairs of sessions (default: 10)"
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the inputs (default: 0)")
    add_shapes(command)
    add_inputs(command)
    add_custom_ops(command)


def run(parsed) -> dict:
    from rlflow.costs.measured import measure
    from rlflow.graph.feeds import tried_feeds
    from rlflow.graph.typical import inputs_at, typical_sizes
    from rlflow.optimisation.choice import EvalOptions
    from rlflow.optimisation.validate.findings import json_number
    from rlflow.optimisation.validate.onnx_model import Model, is_low
    from rlflow.runs.config import parse_shapes
    from rlflow.zoo import zoo_or_path

    if parsed.sessions < 1 or not parsed.seconds > 0 or parsed.seed < 0:
        raise RLFlowError("pass --sessions of at least 1, --seconds above 0 and --seed of at least 0")
    threads = threads_of(parsed)
    original, candidate = map(zoo_or_path, (parsed.original, parsed.candidate))
    shapes = parse_shapes(parsed.shape)
    left = Model.read(original).with_ranks(shapes)
    interface, feeds = left.interface, tried_feeds(original, parsed.inputs, shapes, threads, left.proto)
    sizes = typical_sizes(interface, feeds.named_sizes(shapes))
    _check_same_interface(left, Model.read(candidate).with_ranks(shapes), sizes)
    inputs = inputs_at(interface, sizes)
    sets = [arrays for shapes_there in inputs.values() for arrays in feeds.sets(shapes_there, EvalOptions.seeds)]
    error = largest_error(original, candidate, sets, threads, left.draws.others)
    say(f"measuring for at most {parsed.seconds:g} s")
    result = measure(original, candidate, threads, parsed.seconds, parsed.sessions, parsed.seed, inputs, feeds=feeds)
    result["largest_relative_error"] = json_number(error)
    result["low_precision"] = is_low(left.proto)
    result["ok"] = not error > (LOW_TOLERANCE if result["low_precision"] else EvalOptions.tolerance)
    result |= {"drawn": left.draws.outputs, "compared": bool(left.draws.others)}
    words = [*shape_words(shapes, False), *input_words(parsed.inputs)]
    _end_with(parsed, result, error, len(sets), words)
    return result


def _check_same_interface(left, right, sizes: Sequence[Mapping[str, int]]) -> None:
    """Raise RLFlowError unless both models have the same inputs and outputs.

    Where the original has a symbol, the candidate may have the typical size of this symbol.

    Args:
      left: the original, a `rlflow.optimisation.validate.onnx_model.Model`.
      right: the model that is compared with the original.
      sizes: the typical sizes of the original's symbols, one mapping for each measured size.
    """
    from rlflow.optimisation.validate.structure import interface

    for each in sizes:
        wrong = [finding.message for finding in interface(left, right, each) if not finding.ok]
        if wrong:
            raise RLFlowError(f"the two models have different interfaces: {wrong[0]}. Pass files with equal inputs")


def largest_error(original, candidate, inputs: Sequence[Mapping], threads: int, outputs: Sequence[str]) -> float:
    """Return the largest relative error of any output, over several sets of inputs.

    The error is infinite if shapes, types, or values that are not floats differ.

    Args:
      original: the original model.
      candidate: the model that is compared with the original.
      inputs: sets of inputs, each a mapping input → array.
      threads: number of threads of ONNX Runtime.
      outputs: names of the outputs that are compared.
    """
    from rlflow.graph.onnx_runtime import run as run_model
    from rlflow.graph.onnx_runtime import session

    values = []  # for each model, its outputs on each of the inputs
    for model in (original, candidate) if outputs else ():  # one session at a time: each holds all weights
        running = session(model, threads)
        values.append([run_model(running, arrays, outputs) for arrays in inputs])
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


def _end_with(parsed, result: dict, error: float, sets: int, shapes: list[str]) -> None:
    from rlflow.optimisation.choice import EvalOptions, is_faster
    from rlflow.optimisation.validate.findings import not_comparable
    from rlflow.reports.sentences import measured_text

    outputs = f"outputs compared on {counted(sets, 'input set')}, largest relative error {error:.1e}"
    if result["ok"] and error > EvalOptions.tolerance:
        outputs += f", more than {EvalOptions.tolerance:g}: the model has low precision; run `validate` to judge it"
    if not result["compared"]:
        outputs = "no output was compared"
    if result["drawn"]:
        outputs += f"; {not_comparable(result['drawn'])}"
    apart = "" if result["ok"] else "; the two models do NOT compute the same"
    runs = f"{counted(result['pairs'], 'pair')} of runs in {counted(result['sessions'], 'session')}"
    where = f"{counted(result['threads'], 'thread')}, {result['machine']}, ONNX Runtime {result['onnxruntime']}"
    lines = {
        "result": f"{parsed.candidate} {measured_text(result)}{apart}",
        "sure": f"{runs}; {where}; {outputs}",
    }
    if is_faster(result) or error > EvalOptions.tolerance:
        ending(lines, "validate", parsed.original, parsed.candidate, *shapes)
    else:
        out = "faster.onnx"
        ending(lines, "optimise", parsed.original, "--out", out, "--threads", result["threads"], *shapes)
