"""The command `optimise`: make a model faster within a time budget."""

import time
from pathlib import Path

from rlflow.cli.command import (
    ITERATIONS,
    add_accept,
    add_command,
    add_iterations,
    add_options,
    add_threads,
    changed_options,
    ending,
    following,
    open_run,
)

TEXT = "make a model faster within a time budget; with --learn, also train a controller"
PAGE = """\
Makes a model faster. It searches for a cheaper graph, takes back the rewrites that gain nothing, compares different
results end to end, checks that the outputs are equal, and measures the best result against the original.

The result is written if it is measured faster. If no difference in speed is shown, the result is written only if it
needs less memory or a smaller file, or with --accept equal. Otherwise the original is written. A result that is
measured slower is never written.

A quantised model can be slower than in float32. The command measures this and says so. With --accept dequantised, it
optimises and delivers the model in float32, without the rounding of activations, so that the outputs change.

--threads N: costs and measurements use N threads. The speed of the delivered file with one thread is also measured,
more briefly. It is reported and decides nothing.

--seconds S is the time of the whole command (default: 120, or 900 with learning). Half of it is for the searches, a
tenth for taking rewrites back, a quarter for comparing results, and the rest for the last measurement. A check that has
begun is finished. Ctrl-C or SIGTERM ends the search; the best result so far is checked, measured briefly and written. A
second Ctrl-C ends the command without a file. DIR/best-so-far.json holds the results of the searches. The same command
continues from there, and with more seconds it searches further.

--receipt FILE.receipt.json: first applies the rewrites of an earlier result for the same model at another size or with
other weights. Rewrites that have no match here are left out. The result competes with those of the searches.

--session: a sixth of the seconds measures threads, spinning, memory and optimisations of ONNX Runtime for the delivered
file. Options that are measured faster than the defaults are written beside the file; rlflow.session(FILE) uses them.
Their gain is stated apart from the gain of the file.

--controller DIR: first lets a controller act that was trained on other models (train-controller --models with
controller.name=xrlflow; DIR holds its controller.json). After its greedy episode it stops at a quarter of the searches'
seconds. The result competes with those of the searches.

--learn: after the searches, a world model learns from random episodes. A controller trains in its dream and acts on the
real graph (collect, train-wm, train-controller, eval). The best result of all is written. --iterations and options of
these stages imply --learn"""

OPTIONS = {  # name of an argument → the option that the argument changes
    "iterations": "iterations.count", "seconds": "optimise.seconds", "threads": "cost.threads",
    "receipt": "optimise.receipt", "controller": "optimise.controller", "accept": "eval.accept", "exact": "env.exact",
    "standard_operators_only": "env.standard_operators_only", "session": "optimise.session",
}  # fmt: skip


def add(commands) -> None:
    command = add_command(commands, "optimise", run, TEXT, PAGE + ITERATIONS, resumes=True, aliases=("optimize",))
    add_options(command)
    command.add_argument("model", metavar="MODEL", help="path of an ONNX file, or a zoo name")
    command.add_argument("--out", required=True, metavar="FILE", help="file for the optimised model")
    command.add_argument("--run", metavar="DIR", help="folder of the run (default: FILE without suffix, plus .run)")
    command.add_argument("--seconds", type=float, metavar="S", help="time limit of the command (optimise.seconds)")
    add_threads(command, "; pass the number that the model will run with (cost.threads)")
    learn = "also train a controller in the dream (optimise.learn=true)"
    command.add_argument("--learn", action="store_true", help=learn)
    earlier = "first apply the rewrites of an earlier result, at another size or with other weights (optimise.receipt)"
    command.add_argument("--receipt", metavar="FILE", help=earlier)
    trained = "let a controller that was trained elsewhere act before the searches (optimise.controller)"
    command.add_argument("--controller", metavar="DIR", help=trained)
    add_accept(command)
    fastest = "also choose session options for the delivered file, as FILE.session.json (optimise.session=true)"
    command.add_argument("--session", action="store_true", help=fastest)
    add_iterations(command)
    command.add_argument(
        "--exact", action="store_true", help="use only rules that change no rounding; outputs are equal bit for bit"
    )
    command.add_argument(
        "--standard-operators-only", action="store_true",
        help="use no operators that only ONNX Runtime has (env.standard_operators_only=true)",
    )  # fmt: skip


def run(parsed) -> dict:
    from controllers.stages.acting import acted
    from controllers.stages.learn import learn
    from rlflow.optimisation.pipeline import search_and_deliver
    from worldmodel.run_pages import pages

    out, started = Path(parsed.out), time.monotonic()
    with open_run(parsed, parsed.run or out.with_suffix(".run"), chosen_options(parsed), learns=None) as opened:
        results, stopped = search_and_deliver(opened, out, started, acted, learn)
        outcome = results["eval"]
        lines = pages(opened, outcome)  # after the file is written, because the pages describe it
        again = ("optimise", opened.config.model, "--out", out, "--run", opened.path)
        ending(lines | {"model": out}, *(again if stopped else following(opened, outcome, out)))
    return results


def chosen_options(parsed) -> list[str]:
    """Return the options that the command's arguments change, as KEY=VALUE.

    The list contains optimise.learn=true if --learn, --iterations or an option of learning is given.
    """
    from rlflow.runs.config import asks_to_learn

    chosen = changed_options(parsed, OPTIONS)
    if parsed.learn or parsed.iterations is not None or asks_to_learn(parsed.config, parsed.overrides):
        chosen.append("optimise.learn=true")
    return chosen
