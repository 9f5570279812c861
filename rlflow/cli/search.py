"""`search`: one search on the real graph, without learning; the checked result and its receipt."""

from pathlib import Path
from tempfile import TemporaryDirectory

from rlflow.cli.command import add_command, add_options, ending, open_run
from rlflow.common.messages import say

TEXT = "look for a cheaper graph with one search, without learning: a model in, a faster one out"
PAGE = """\
Looks for a cheaper graph with one search, without learning: a model in, a faster one out.

    %(prog)s --method beam --model MODEL.onnx --out FASTER.onnx --seconds 60 --measure

  beam         chains of rewrites in one neighbourhood, a loss first if need be: the one to try first
  annealing    random rewrites near by, losses accepted less and less; goes on as long as it may
  greedy       always the rewrite that gains most; ends within seconds
  descent      what a roofline promises most is tried first; has something after fewer timings than the others
  grasp        random descents by a roofline, which times nothing; the best of them by the cost: finds what others block
  best-first   first the graph that could become the cheapest
  taso         the backtracking search of TASO, the control
  random       random play, the other control

The cost is the configured one: cost.name=profiled (operators timed on this machine; the first search of a
model times its operators) or cost.name=analytic. Ctrl-C ends the search with the best so far. The result is
checked to be equal to the original; FASTER.receipt.json repeats it with the command `replay`."""


def add(commands) -> None:
    command = add_command(commands, "search", run, TEXT, PAGE)
    add_options(command)
    methods = "random, greedy, taso, best-first, beam, annealing, descent or grasp"
    command.add_argument("--method", required=True, metavar="NAME", help=methods)
    command.add_argument("--model", required=True, help="a zoo name or the path of an ONNX file")
    out = "where the model goes; its receipt lies beside it"
    command.add_argument("--out", required=True, metavar="FILE", help=out)
    seconds = "after which the best so far is taken (search.seconds)"
    command.add_argument("--seconds", type=float, metavar="S", help=seconds)
    measure = "measure the result against the original (eval.measure_seconds); delivered is what eval.accept says"
    command.add_argument("--measure", action="store_true", help=measure)


def run(parsed) -> dict:
    from rlflow.optimisation.pipeline import search_once
    from rlflow.search import SEARCHES

    SEARCHES.check(parsed.method)
    chosen = [f"search.seconds={parsed.seconds}"] if parsed.seconds is not None else []
    out = Path(parsed.out)
    with TemporaryDirectory(prefix=".search-", dir=out.parent) as folder:
        opened = open_run(parsed, folder, chosen)
        answer, outcome = search_once(opened, parsed.method, out, parsed.measure)
        end_with(opened, parsed.method, answer, outcome, out)
    trace = [{"seconds": s, "interactions": n, "best_ps": ps} for s, n, ps in answer.trace]
    return {"method": parsed.method, "stop": answer.stop, "trace": trace, **outcome, "optimised": str(out)}


def end_with(run, method: str, answer, outcome: dict, out: Path) -> None:
    from rlflow.cli.command import following
    from rlflow.reports.markdown import certainty_line, summary_line

    result = outcome["candidates"][method]
    say(
        f"{method} stopped by '{answer.stop}': estimated {result['estimated_improvement_percent']:.2f} % lower, "
        f"{result['substitutions']} rewrites, {answer.interactions} interactions, {answer.seconds:.1f} s"
    )
    lines = {"result": summary_line(outcome), "sure": certainty_line(outcome), "model": out}
    if outcome["delivered"] != "original":
        lines["receipt"] = out.with_suffix(".receipt.json")
    ending(lines, *following(run, outcome, out))
