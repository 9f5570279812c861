"""Times of the kernels that people report as slow, of their equal forms, and of the bound of each.

    python -m benchmarks.slow_kernels [--kernel NAME]

For each operator of the catalogue, all forms run in turns, each in a session of its own, with one and with two threads.
In the same turns run a large matrix product, a convolution in blocks, and a copy of as many bytes as the usual form
reads and writes. The time of its arithmetic at the rate of the faster of the first two, or the time of the copy, is the
operator's *bound*, whichever is longer. The share of the bound is this time divided by the time of the usual form.

A form has the name of a rule if the rule turns the usual form into the same operators, apart from reshapes. Up to two
rules in a row are tried. The results of single rules are measured, too. Those without a form in the catalogue are shown
if they are faster than the usual form.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import dropwhile

import numpy as np
import onnx

from benchmarks.record import Record, Table, parser, run
from benchmarks.shared import NOTHING, number
from benchmarks.slow_kernels import CATALOGUE, USUAL, Kernel
from benchmarks.slow_kernels.form import drawn, weight
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import ABSENT
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run as run_session
from rlflow.graph.onnx_runtime import session
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.validate import relative_error
from rlflow.rules.language import load_rules

THREADS = (1, 2)
MIN_TURNS, MAX_TURNS, SECONDS, WARM_UPS = 15, 200, 1.5, 2  # of the turns of one operator with one number of threads
RULE_SECONDS = 2.0  # processor time in which second rules are tried
FASTER = 0.95  # the result of a rule that is no form of the catalogue is shown if its ratio is below this number
RESHAPES = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}  # operators that copy nothing
NO_RULE, BY_RULE = "no rule", "by the rule"
PRODUCT, CONVOLUTION, COPY = "product", "convolution", "copy"


# -- measurement -------------------------------------------------------------------------------------


def examine(name: str) -> dict:
    """Measure the forms of an operator.

    Args:
        name: key of CATALOGUE.

    Returns:
        "flops" and "bytes" of the usual form. "errors": form → relative error of its output. "rules": form of the
            catalogue → name of the rule that makes it, or None. "threads": number of threads → result of `in_turns`.
            The result of a rule that makes no form of the catalogue is a form with the name of the rule.
    """
    entry = CATALOGUE[name]
    kernel = entry.build(*entry.sizes)
    models, size = kernel.models(), moved_bytes(kernel)
    rules, others = by_rules(models)
    models |= others
    outputs = {form: run_session(session(model, 1), kernel.inputs)[0] for form, model in models.items()}
    work = {form: (model, kernel.inputs) for form, model in models.items()} | references(size)
    return {
        "flops": kernel.flops, "bytes": size, "rules": rules,
        "errors": {form: relative_error(outputs[USUAL], output) for form, output in outputs.items() if form != USUAL},
        "threads": {str(count): in_turns(work, count) for count in THREADS},
    }  # fmt: skip


def moved_bytes(kernel: Kernel) -> int:
    """Return the bytes of the inputs, the output and the weights of the usual form."""
    model = kernel.models()[USUAL]
    output = model.graph.output[0].type.tensor_type
    elements = int(np.prod([dim.dim_value for dim in output.shape.dim]))
    made = elements * onnx.helper.tensor_dtype_to_np_dtype(output.elem_type).itemsize
    stored = sum(onnx.numpy_helper.to_array(one).nbytes for one in model.graph.initializer)
    return made + stored + sum(array.nbytes for array in kernel.inputs.values())


def references(size: int) -> dict[str, tuple[onnx.ModelProto, Mapping[str, np.ndarray]]]:
    """Return name → model and inputs of the product, the convolution and a copy that moves `size` bytes."""
    side, w, c = 768, weight(256, 256, 3, 3), weight(768, 768)
    kernels = {
        PRODUCT: Kernel({"x": drawn(side, side)}, {USUAL: lambda f, x: f("MatMul", x, c)}),
        CONVOLUTION: Kernel({"x": drawn(1, 256, 28, 28)}, {USUAL: lambda f, x: f("Conv", x, w, pads=[1] * 4)}),
        COPY: Kernel({"x": drawn(max(1, size // 8))}, {USUAL: lambda f, x: f("Neg", x)}),
    }
    return {name: (kernel.models()[USUAL], kernel.inputs) for name, kernel in kernels.items()}


# Floating-point operations of the two references of arithmetic.
REFERENCE_FLOPS = {PRODUCT: 2 * 768**3, CONVOLUTION: 2 * 9 * 256**2 * 28**2}


def in_turns(work: Mapping[str, tuple[onnx.ModelProto, Mapping[str, np.ndarray]]], threads: int) -> dict:
    """Run all models in turns, in random order within a turn.

    Args:
        work: name → model and inputs.
        threads: threads of ONNX Runtime.

    Returns:
        "seconds": name → median. "ratios": name → median of the ratios to the usual form within a turn, with the 10 %
            and 90 % quantiles.
    """
    runs = {name: bound_run(*one, threads) for name, one in work.items()}
    # With one thread, processor time excludes the time in which other processes used the core.
    clock, random, names = time.thread_time if threads == 1 else time.perf_counter, np.random.default_rng(0), list(runs)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for name in names * WARM_UPS:
        runs[name]()
    end = time.monotonic() + SECONDS
    for turn in range(MAX_TURNS):
        if turn >= MIN_TURNS and time.monotonic() > end:
            break
        for position in random.permutation(len(names)):
            started = clock()
            runs[names[position]]()
            taken[names[position]].append(clock() - started)
    ratios = {name: np.divide(seconds, taken[USUAL]) for name, seconds in taken.items()}
    return {
        "seconds": {name: float(np.median(seconds)) for name, seconds in taken.items()},
        "ratios": {name: np.quantile(one, (0.5, 0.1, 0.9)).tolist() for name, one in ratios.items()},
    }


def bound_run(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], threads: int) -> Callable[[], None]:
    """Return a function that runs a model without copying its inputs and outputs.

    Args:
        model: the model.
        inputs: name → array.
        threads: threads of ONNX Runtime.
    """
    running = session(model, threads)
    binding = running.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output(running.get_outputs()[0].name)
    return partial(running.run_with_iobinding, binding)


# -- rules -------------------------------------------------------------------------------------------


def by_rules(models: Mapping[str, onnx.ModelProto]) -> tuple[dict[str, str | None], dict[str, onnx.ModelProto]]:
    """Apply rules to the usual form.

    Args:
        models: name of each form → model.

    Returns:
        rules: name of each other form → the rules that turn the usual form into its operators, or None.
        others: name of a rule → the model that it makes of the usual form, for models with the operators of no form.
    """
    wanted = {name: operators(load_state(model)) for name, model in models.items()}
    rules: dict[str, str | None] = {name: None for name in wanted if name != USUAL}
    others: dict[str, onnx.ModelProto] = {}

    def follow(path: tuple[str, ...], state: RewriteState) -> Iterator[tuple[tuple[str, ...], RewriteState, Counter]]:
        for match in state.matches:
            after, names = state.follow(match), (*path, state.task.rules[match.xfer_id].name)
            made = operators(after)
            for form in rules:
                if rules[form] is None and wanted[form] == made:
                    rules[form] = ", ".join(names)
            yield names, after, made

    first: list[tuple[tuple[str, ...], RewriteState]] = []
    known = list(wanted.values())
    for names, after, made in follow((), load_state(models[USUAL])):
        if made not in known:
            known.append(made)
            first.append((names, after))
            others.setdefault(names[0], to_model(after.graph))
    end = time.process_time() + RULE_SECONDS
    for names, state in first:
        if all(rules.values()):
            break
        for _ in follow(names, state):
            if time.process_time() > end:
                return rules, others
    return rules, others


def load_state(model: onnx.ModelProto) -> RewriteState:
    return Task(load_graph(model), load_rules(), AnalyticCost()).initial


def operators(state: RewriteState) -> Counter:
    """Return how often each operator with certain shapes occurs, without reshapes and constant nodes.

    Leading axes of size 1 are left out of a shape, because they change no kernel.
    """
    graph, found = state.graph, Counter()
    for node in graph.nodes.values():
        if node.op not in RESHAPES and not graph.is_constant(node.outputs[0]):
            tensors = [tensor for tensor in (*node.inputs, *node.outputs) if tensor != ABSENT]
            shapes = [tuple(dropwhile((1).__eq__, graph.types[tensor].shape or ())) for tensor in tensors]
            found[node.domain, node.op, *sorted(shapes)] += 1
    return found


# -- tables ------------------------------------------------------------------------------------------


def tables(figures: Mapping[str, dict]) -> dict[str, Table]:
    """Return the tables "kernels", "forms" and "bounds" (see the module docstring).

    Args:
        figures: key of CATALOGUE → result of `examine`.
    """
    kernels, forms = [], []
    rates: dict[str, list[list[float]]] = {name: [[] for _ in THREADS] for name in (PRODUCT, CONVOLUTION, COPY)}
    for name, one in figures.items():
        entry, shares = CATALOGUE[name], []
        for k, count in enumerate(THREADS):
            seconds = one["threads"][str(count)]["seconds"]
            for reference, flops in REFERENCE_FLOPS.items():
                rates[reference][k].append(flops / seconds[reference] / 1e9)
            rates[COPY][k].append(one["bytes"] / seconds[COPY] / 1e9)
            arithmetic = one["flops"] / 1e9 / max(rates[PRODUCT][k][-1], rates[CONVOLUTION][k][-1])
            shares.append(max(arithmetic, seconds[COPY]) / seconds[USUAL])
            if count == 1:
                kind, usual = "arithmetic" if arithmetic > seconds[COPY] else "memory", seconds[USUAL]
        kernels.append([entry.label, entry.report or NOTHING, kind, number(1e3 * usual, 3), *map(number, shares)])
        for form, error in one["errors"].items():
            ratios = [one["threads"][str(count)]["ratios"][form][0] for count in THREADS]
            if form in one["rules"]:
                said = form, one["rules"][form] or NO_RULE
            elif min(ratios) < FASTER:
                said = BY_RULE, form
            else:
                continue
            forms.append([entry.label, *said, *map(number, ratios), f"{error:.0e}"])
    bounds = [
        [f"{name}, {unit}", *(number(float(np.median(of_threads)), 0) for of_threads in rates[name])]
        for name, unit in ((PRODUCT, "GFLOP/s"), (CONVOLUTION, "GFLOP/s"), (COPY, "GB/s"))
    ]
    heads = [f"{count} thread{'s' * (count > 1)}" for count in THREADS]
    return {
        "forms": Table(["operator", "form", "rule", *heads, "relative error"], forms, text_columns=3),
        "kernels": Table(
            ["operator", "report", "bound", "ms, 1 thread", *(f"share of the bound, {head}" for head in heads)],
            kernels, text_columns=3,
        ),
        "bounds": Table(["reference", *heads], bounds),
    }  # fmt: skip


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--kernel", action="append", choices=list(CATALOGUE), metavar="NAME", help="repeatable")
    parsed = arguments.parse_args()
    record = Record("slow_kernels", parsed)
    figures = record.all_parts({name: (examine, name) for name in parsed.kernel or CATALOGUE})
    record.publish(tables(figures), "Ratios are the times of a form divided by the times of the usual form.")
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
