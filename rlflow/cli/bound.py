"""The command `bound`: compute a lower bound of the analytic cost over a stated set of graphs that the rules make."""

import math
import time
from pathlib import Path

from rlflow.cli.command import add_command, add_custom_ops, add_sizes, ending
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import progress_bar, shape_words

TEXT = "bound the possible gain: a lower bound of the cost of the graphs that a number of rewrites make"


def add(commands) -> None:
    command = add_command(commands, "bound", run, TEXT)
    command.add_argument("--model", required=True, help="zoo name or path of an ONNX file")
    seconds = "time limit in seconds (default: 600)"
    command.add_argument("--seconds", type=float, default=600.0, metavar="S", help=seconds)
    iterations = "largest number of rewrites that depend on each other (default: 4)"
    command.add_argument("--iterations", type=int, default=4, metavar="N", help=iterations)
    add_sizes(command)
    add_custom_ops(command)


def run(parsed) -> dict:
    """Print and return a lower bound of the cost, and how far three graphs may be from the cheapest graph.

    The three graphs are the original, the result of the greedy search, and the cheapest graph found by equality
    saturation. A bound holds for fixed sizes only, so symbols are replaced by their first typical sizes.
    """
    from rlflow.env.graph_rewrite import EnvSpec
    from rlflow.graph.typical import load_at, sizes_text
    from rlflow.runs.config import parse_shapes
    from rlflow.search.descents import greedy
    from rlflow.search.saturation.lower_bound import lower_bound
    from rlflow.zoo import zoo_or_path

    if not parsed.seconds > 0 or parsed.iterations < 1:
        raise RLFlowError("pass --seconds above 0 and --iterations of at least 1")
    shapes = parse_shapes(parsed.shape)
    loaded, (sizes, *_) = load_at(zoo_or_path(parsed.model), shapes, parsed.fix)
    inside = loaded.interface.bodies or loaded.interface.inlined
    frozen = (shapes if parsed.fix else {}) | sizes
    spec = EnvSpec(parsed.model, tuple(frozen.items()), fix=True, cost="analytic")
    task, started = spec.open(zoo_or_path(parsed.model), bodies=False), time.monotonic()
    spec.try_out(task)
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
    sure = f"a bound on the analytic cost{at}, nothing was measured"
    sure += "; bodies of If, Loop and Scan and functions as they are" if inside else ""
    lines = {
        "result": f"no graph in this scope is estimated to take more than {gap} % less time",
        "sure": f"{sure}; ended by '{result.stop}' after {effort}",
    }
    out = f"{Path(parsed.model).stem}.faster.onnx"
    ending(lines, "optimise", parsed.model, "--out", out, *shape_words(shapes, parsed.fix))
    return results


def results_of(result, costs_ps: dict[str, int]) -> dict:
    """Print and return the bound, and the relative gap between the bound and the cost of each graph.

    Args:
      result: the result of `lower_bound`.
      costs_ps: name of a graph → its cost in picoseconds.
    """
    results = {key: value for key, value in vars(result).items() if key != "best"}
    for name, cost_ps in costs_ps.items():
        results[name] = {"cost_ps": cost_ps, "gap": result.gap(cost_ps)}
        print(f"{name:9} {cost_ps / 1e9:12.6f} ms, at most {percent_up(result.gap(cost_ps), 3)} % from the best")
    print(f"bound     {result.lower_bound_ps / 1e9:12.6f} ms: {result.scope}")
    return results


def percent_up(share: float, digits: int) -> str:
    """Return a share as text in percent. The number is rounded up, so that an upper bound remains an upper bound.

    Args:
      share: the share, 0 to 1.
      digits: number of digits after the decimal point.
    """
    scale = 10**digits
    return f"{math.ceil(100 * scale * share) / scale:.{digits}f}"
