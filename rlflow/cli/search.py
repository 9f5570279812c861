"""The command `search`: one search on the real graph, without learning, with a checked result and its receipt."""

from pathlib import Path
from tempfile import TemporaryDirectory

from rlflow.cli.command import add_command, add_options, changed_options, ending, open_run
from rlflow.common.messages import say

TEXT = "search for a cheaper graph with one method, without learning"
PAGE = """\
Searches for a cheaper graph with one method, without learning, and writes the faster model.

    %(prog)s --method beam --model MODEL.onnx --out FASTER.onnx --seconds 60 --measure

  beam         chains of neighbouring rewrites, which may begin with a loss; try this method first
  annealing    random neighbouring rewrites with decreasing acceptance of losses; uses all the time
  greedy       the rewrite of the highest gain, repeatedly; ends within seconds
  descent      rewrites by decreasing estimated gain; needs the fewest timings for a first result
  grasp        random descents by a roofline without timings, best one by the cost; finds rewrites that exclude others
  best-first   the graph with the lowest reachable cost first
  taso         the backtracking search of TASO, a control
  random       random episodes, a control

The search minimises the configured cost. cost.name=predicted, the default, uses the timings of kernels that exist and
predicts the others, cost.name=profiled times them, and cost.name=analytic and roofline are formulas. Ctrl-C ends the
search with the best result so far. The result is checked against the original. The command `replay` repeats it from
FASTER.receipt.json."""


def add(commands) -> None:
    command = add_command(commands, "search", run, TEXT, PAGE)
    add_options(command)
    methods = "random, greedy, taso, best-first, beam, annealing, descent or grasp"
    command.add_argument("--method", required=True, metavar="NAME", help=methods)
    command.add_argument("--model", required=True, help="zoo name or path of an ONNX file")
    out = "file for the model; the receipt is written beside it"
    command.add_argument("--out", required=True, metavar="FILE", help=out)
    seconds = "time limit, after which the best result so far is taken (search.seconds)"
    command.add_argument("--seconds", type=float, metavar="S", help=seconds)
    measure = "measure the result against the original (eval.measure_seconds) before it is accepted (eval.accept)"
    command.add_argument("--measure", action="store_true", help=measure)


def run(parsed) -> dict:
    from rlflow.optimisation.pipeline import search_once
    from rlflow.search import SEARCHES

    SEARCHES.check(parsed.method)
    out = Path(parsed.out)
    with TemporaryDirectory(prefix=".search-", dir=out.parent) as folder:
        with open_run(parsed, folder, changed_options(parsed, {"seconds": "search.seconds"}), learns=False) as opened:
            answer, outcome = search_once(opened, parsed.method, out, parsed.measure)
            end_with(opened, parsed.method, answer, outcome, out)
    trace = [{"seconds": s, "interactions": n, "best_ps": ps} for s, n, ps in answer.trace]
    return {"method": parsed.method, "stop": answer.stop, "trace": trace, **outcome, "optimised": str(out)}


def end_with(run, method: str, answer, outcome: dict, out: Path) -> None:
    from rlflow.cli.command import following
    from rlflow.reports.sentences import certainty_line, summary_line
    from rlflow.zoo import ZOO

    result = outcome["candidates"][method]
    say(
        f"{method} stopped by '{answer.stop}': estimated {result['estimated_improvement_percent']:.2f} % lower, "
        f"{result['substitutions']} rewrites, {answer.interactions} interactions, {answer.seconds:.1f} s"
    )
    lines = {"result": summary_line(outcome), "sure": certainty_line(outcome), "model": out}
    if outcome["delivered"] != "original":
        lines["receipt"] = out.with_suffix(".receipt.json")
    config = run.config
    if config.model in ZOO and config.seed:  # the file of the original is deleted with the folder of the run
        ending(lines, "optimise", config.model, "--seed", config.seed, "--out", out)
    else:
        ending(lines, *following(run, outcome, out))
