"""The command `eval`: let the controller act on the real graph, or measure the errors of the world model."""

from rlflow.cli.command import add_accept, add_stage, changed_options, ending, open_run

TEXT = "let the controller act on the real graph, with controls, checks and a report; or judge the world model"
PAGE = """\
Lets the controller act on the real graph, and compares it with two controls: steepest descent, and random play of the
same number of steps. The results are checked against the original and measured. The best result is delivered with a
receipt and a report; the original is delivered if no result is measured faster (--accept).

The stage before is train-controller. Afterwards validate checks the delivered file again, and report compares runs.

--what world-model: measures the errors of the world model's predictions, on random episodes that it was not trained on
and on episodes of the trained controllers. This needs only train-wm."""
WHAT = "controllers (default), or world-model: the errors of its predictions"


def add(commands) -> None:
    command = add_stage(commands, "eval", run, TEXT, PAGE)
    command.add_argument("--what", choices=("controllers", "world-model"), default="controllers", help=WHAT)
    add_accept(command)


def run(parsed) -> dict:
    with open_run(parsed, parsed.run, changed_options(parsed, {"accept": "eval.accept"})) as opened:
        return judge_world_model(opened) if parsed.what == "world-model" else judge_controllers(opened)


def judge_controllers(run) -> dict:
    from controllers.stages import acting
    from rlflow.cli.command import following
    from rlflow.reports.markdown import RETURNS_PICTURE
    from worldmodel.run_pages import write_up

    outcome = acting.evaluate(run)
    lines = write_up(run, outcome)
    if outcome.get("dreamt"):
        lines |= {"picture": run.path / "eval" / RETURNS_PICTURE}
    ending(lines, *following(run, outcome, outcome.get("optimised")))
    return outcome


def judge_world_model(run) -> dict:
    from controllers.stages import acting
    from worldmodel.fidelity_report import PAGE_NAME, sentence

    result = acting.evaluate_world_model(run)
    lines = {"result": sentence(result["held-out random"]), "report": run.path / "eval" / PAGE_NAME}
    ending(lines, "eval" if run.results("train-controller") else "train-controller", "--run", run.path)
    return result
