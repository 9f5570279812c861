"""`eval`: the controller acts on the real graph; or the world model is judged."""

from rlflow.cli.command import add_accept, add_stage, chosen_accept, ending, open_run

TEXT = "let the controller act on the real graph, with controls, checks and a report; or judge the world model"
PAGE = """\
Lets the controller act on the real graph beside its controls (steepest descent, random play of as many steps), checks
that what they came to is equal to the original, measures it, and delivers the best with a receipt and a report; the
original, where nothing is shown to be faster (--accept).

Before it: train-controller. After it: validate checks the delivered file anew, report lays several runs side by side.

--what world-model: how far the world model's predictions are from reality, on random episodes that it never saw and on
those of the trained controllers. It needs train-wm alone."""
WHAT = "controllers (the default), or world-model: how far its predictions are from reality"


def add(commands) -> None:
    command = add_stage(commands, "eval", run, TEXT, PAGE)
    command.add_argument("--what", choices=("controllers", "world-model"), default="controllers", help=WHAT)
    add_accept(command)


def run(parsed) -> dict:
    opened = open_run(parsed, parsed.run, chosen_accept(parsed))
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
