"""The command `eval`: let the controller act on the real graph, or measure the errors of the world model."""

import sys
from collections.abc import Sequence

from rlflow.cli.command import add_accept, add_stage, changed_options, ending, open_run
from rlflow.common.messages import markdown_table, say

TEXT = "let the controller act on the real graph, with controls, checks and a report; or judge the world model"
PAGE = """\
Lets the trained controllers act on the real graph, and compares the best one with controls: greedy search (steepest
descent), the untrained controllers, and random play of the same number of steps. The results are checked against the
original and measured. The best result is delivered with a receipt and a report; the original is delivered if no result
is measured faster (--accept).

All experiments of the run act (controller.name, controller.seed and controller.tag of train-controller), or those that
--only names. One table compares them, each beside the same controller before its training (untrained), without its
prior, and greedy search: what was learnt lies below these costs. If several candidates have the lowest estimate, the
one that needs no training is named as the finder.

The stage before is train-controller. Afterwards validate checks the delivered file again, and report compares runs.

--what world-model: measures the errors of the world model's predictions, on random episodes that it was not trained on
and on episodes of the trained controllers. This needs only train-wm."""
WHAT = "controllers (default), or world-model: the errors of its predictions"


def add(commands) -> None:
    command = add_stage(commands, "eval", run, TEXT, PAGE)
    command.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="play only this experiment; repeatable, or A,B"
    )
    command.add_argument("--what", choices=("controllers", "world-model"), default="controllers", help=WHAT)
    add_accept(command)


def run(parsed) -> dict:
    with open_run(parsed, parsed.run, changed_options(parsed, {"accept": "eval.accept"})) as opened:
        only = [name.strip() for names in parsed.only for name in names.split(",")]
        return judge_world_model(opened, only) if parsed.what == "world-model" else judge_controllers(opened, only)


def judge_controllers(run, only: Sequence[str]) -> dict:
    """Run the stage `eval`, print its table of experiments and its last lines, and return its results.

    Args:
      run: the run folder.
      only: names of the experiments; () for all of them.
    """
    from controllers.stages import acting
    from rlflow.cli.command import following
    from rlflow.common.task import ONE_SHOT
    from rlflow.reports.sentences import EXPERIMENTS_HEAD, RETURNS_PICTURE, experiment_rows
    from worldmodel.run_pages import write_up

    outcome = acting.evaluate(run, only=only)
    lines = write_up(run, outcome)
    say(markdown_table(EXPERIMENTS_HEAD, experiment_rows(outcome), numbers=range(1, len(EXPERIMENTS_HEAD))), sys.stdout)
    if run.spec.shape != ONE_SHOT:
        lines |= {"picture": run.path / "eval" / RETURNS_PICTURE}
    ending(lines, *following(run, outcome, outcome.get("optimised")))
    return outcome


def judge_world_model(run, only: Sequence[str]) -> dict:
    """Measure the errors of the world model, print the last lines, and return the results.

    Args:
      run: the run folder.
      only: names of the experiments whose controllers play; () for all of them.
    """
    from controllers.stages import acting
    from worldmodel.fidelity_report import PAGE_NAME, sentence

    result = acting.evaluate_world_model(run, only)
    lines = {"result": sentence(result["held-out random"]), "report": run.path / "eval" / PAGE_NAME}
    ending(lines, "eval" if run.results("train-controller") else "train-controller", "--run", run.path)
    return result
