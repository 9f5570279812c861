"""`optimise`: a model in, a faster one out, within a time budget."""

import time
from pathlib import Path

from rlflow.cli.command import (
    ITERATIONS,
    add_accept,
    add_command,
    add_iterations,
    add_options,
    add_threads,
    chosen_accept,
    chosen_iterations,
    ending,
    following,
    open_run,
)
from rlflow.common.options import setting

TEXT = "a model in, a faster one out: searches, with --learn all four stages too"
PAGE = """\
Makes a model faster: searches on the real graph (a descent that tries first what a roofline promises, random descents
by that, then greedy, beam and annealing), takes back what does not pay, lets what differs compete, checks that the
result is equal, measures it against the original and writes what is shown to be faster. Where nothing is shown either
way it writes the original, unless another figure is shown to be better (memory, file size) or --accept equal takes the
result as it is; a file that is measured to be slower than the original never.

All of that holds with --threads N threads. How the delivered file does with one thread is measured too, more shortly,
and said; it decides nothing.

--seconds S is for the whole command (default: 120, and 900 where it learns): half for the searches, a tenth to take
back what does not pay, a quarter for candidates that compete end to end, the rest for the last measurement; checks that
have begun are finished. Ctrl-C or SIGTERM writes the best so far, checked and measured in short; once more leaves at
once. What is known lies in DIR/best-so-far.json, so that the same command goes on after whatever happened, and with
more seconds looks further.

--receipt FILE.receipt.json: first the rewrites of an earlier result are carried out, of the same model at another size
or with other weights, those that have no place here left out; what they come to competes with what the searches find.

--controller DIR: first a controller acts that learnt on other models (train-controller --models with
controller.name=xrlflow; DIR holds its controller.json), for a quarter of the searches' seconds at most once it has
played its greedy episode; what it found competes with what the searches find.

--learn: after the searches a world model learns from random episodes, a controller learns in its dream and acts on the
real graph (collect, train-wm, train-controller, eval); the best of all is written. --iterations, and every option of
these stages, say so too"""


def add(commands) -> None:
    command = add_command(commands, "optimise", run, TEXT, PAGE + ITERATIONS, resumes=True)
    add_options(command)
    command.add_argument("model", metavar="MODEL", help="the path of an ONNX file or a zoo name")
    command.add_argument("--out", required=True, metavar="FILE", help="where the optimised model goes")
    command.add_argument("--run", metavar="DIR", help="folder of the run (default: FILE without suffix, plus .run)")
    command.add_argument("--seconds", type=float, metavar="S", help="for the whole command (optimise.seconds)")
    add_threads(command, "; say as many as the model will run with (cost.threads)")
    learn = "a controller learns in the dream, too (optimise.learn=true)"
    command.add_argument("--learn", action="store_true", help=learn)
    earlier = "rewrites of an earlier result, at another size or with other weights, are tried first (optimise.receipt)"
    command.add_argument("--receipt", metavar="FILE", help=earlier)
    trained = "a controller trained elsewhere acts on the model before the searches (optimise.controller)"
    command.add_argument("--controller", metavar="DIR", help=trained)
    add_accept(command)
    add_iterations(command)
    command.add_argument(
        "--exact", action="store_true", help="only rules that change no rounding: equal bit for bit (env.exact=true)"
    )
    command.add_argument(
        "--standard-operators-only", action="store_true",
        help="no operators of ONNX Runtime's own: the model stays portable (env.standard_operators_only=true)",
    )  # fmt: skip


def run(parsed) -> dict:
    from controllers.stages.acting import acted
    from controllers.stages.learn import learn
    from rlflow.optimisation.pipeline import search_and_deliver
    from worldmodel.run_pages import pages

    out, started = Path(parsed.out), time.monotonic()
    opened = open_run(parsed, parsed.run or out.with_suffix(".run"), chosen_options(parsed))
    results, stopped = search_and_deliver(opened, out, started, acted, learn)
    outcome = results["eval"]
    lines = pages(opened, outcome)  # after the file, because they describe what is already delivered
    again = ("optimise", opened.config.model, "--out", out, "--run", opened.path)
    ending(lines | {"model": out}, *(again if stopped else following(opened, outcome, out)))
    return results


def chosen_options(parsed) -> list[str]:
    """The options that its arguments change, as KEY=VALUE; whoever speaks of learning gets it."""
    from rlflow.runs.config import asks_to_learn

    chosen = chosen_iterations(parsed)
    learns = parsed.learn or chosen or asks_to_learn(parsed.config, parsed.overrides)
    if parsed.seconds is not None:
        chosen.append(f"optimise.seconds={parsed.seconds}")
    if parsed.threads is not None:
        chosen.append(f"cost.threads={parsed.threads}")
    if parsed.receipt is not None:
        chosen.append(setting("optimise.receipt", parsed.receipt))
    if parsed.controller is not None:
        chosen.append(setting("optimise.controller", parsed.controller))
    if learns:
        chosen.append("optimise.learn=true")
    chosen += chosen_accept(parsed)
    if parsed.exact:
        chosen.append("env.exact=true")
    if parsed.standard_operators_only:
        chosen.append("env.standard_operators_only=true")
    return chosen
