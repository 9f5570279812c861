"""`bound`: how far from the best a model is, on the analytic cost."""

import math
import time
from pathlib import Path

from rlflow.cli.command import add_command, add_sizes, ending
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import progress_bar, shape_words

TEXT = "how far from the best a model is: what no graph that the rules make costs less than"


def add(commands) -> None:
    command = add_command(commands, "bound", run, TEXT)
    command.add_argument("--model", required=True, help="a zoo name or the path of an ONNX file")
    seconds = "in which an answer is wanted (default: 600)"
    command.add_argument("--seconds", type=float, default=600.0, metavar="S", help=seconds)
    iterations = "how many rewrites may need one another (default: 4)"
    command.add_argument("--iterations", type=int, default=4, metavar="N", help=iterations)
    add_sizes(command)


def run(parsed) -> dict:
    """The bound of equality saturation, and the gaps of the original, of greedy's result and of the best known.

    A bound is of one size: symbolic sizes are bound to the typical ones, the first of several.
    """
    from rlflow.env.graph_rewrite import EnvSpec
    from rlflow.graph.typical import load_at, sizes_text
    from rlflow.runs.config import parse_shapes
    from rlflow.search.descents import greedy
    from rlflow.search.saturation.lower_bound import lower_bound
    from rlflow.zoo import zoo_or_path

    if not parsed.seconds > 0 or parsed.iterations < 1:
        raise RLFlowError("--seconds is above 0, --iterations at least 1")
    shapes = parse_shapes(parsed.shape)
    _, (sizes, *_) = load_at(zoo_or_path(parsed.model), shapes, parsed.fix)
    frozen = (shapes if parsed.fix else {}) | sizes
    spec = EnvSpec(parsed.model, tuple(frozen.items()), fix=True, cost="analytic")
    task, started = spec.make_task(), time.monotonic()
    control = greedy(task.initial, max_steps=1000, seconds=parsed.seconds / 4)
    with progress_bar(parsed.iterations, "bound", "iteration") as bar:
        def show(iterations, nodes):
            bar.set_postfix(operators=nodes)
            bar.update(iterations - bar.n)

        left = parsed.seconds - (time.monotonic() - started)
        result = lower_bound(task, left, [control.state.graph], parsed.iterations, progress=show)
    original, greedys = task.initial.cost.runtime_ps, control.state.cost.runtime_ps
    costs_ps = {"original": original, "greedy": greedys, "best": result.best_ps}
    results = results_of(result, costs_ps)
    effort = f"{result.iterations} iterations, {result.nodes} operators, {result.seconds:.1f} s"
    gap, at = percent_up(result.gap(original), 1), f" at {sizes_text(sizes)}" if sizes else ""
    lines = {
        "result": f"no graph in this scope is estimated to take more than {gap} % less time",
        "sure": f"a bound on the analytic cost{at}, nothing was measured; ended by '{result.stop}' after {effort}",
    }
    out = f"{Path(parsed.model).stem}.faster.onnx"
    ending(lines, "optimise", parsed.model, "--out", out, *shape_words(shapes, parsed.fix))
    return results


def results_of(result, costs_ps: dict[str, int]) -> dict:
    """The bound and the gaps of these graphs to it, printed too.

    costs_ps: name of a graph → its cost in picoseconds.
    """
    results = {key: value for key, value in vars(result).items() if key != "best"}
    for name, cost_ps in costs_ps.items():
        results[name] = {"cost_ps": cost_ps, "gap": result.gap(cost_ps)}
        print(f"{name:9} {cost_ps / 1e9:12.6f} ms, at most {percent_up(result.gap(cost_ps), 3)} % from the best")
    print(f"bound     {result.lower_bound_ps / 1e9:12.6f} ms: {result.scope}")
    return results


def percent_up(share: float, digits: int) -> str:
    """Rounded up, so that an upper bound stays one."""
    scale = 10**digits
    return f"{math.ceil(100 * scale * share) / scale:.{digits}f}"
