"""`train-controller`: a controller learns inside the dream."""

from rlflow.cli.command import add_stage, ending, open_run
from rlflow.common.options import setting

TEXT = "train the controller inside the dream"
PAGE = """\
Trains the controller inside the dream: its environment is the world model. With controller.train_on=real it learns on
the real graph, for comparison; the controller of a one-shot task learns on its instance, or on others of its kind, as
its first stage. One that sees candidates (controller.name=xrlflow) depends on no model: with --models it learns on
several, and then acts on models that it never saw, as `optimise --controller DIR/controller/xrlflow-real`.

Before it: train-wm. After it: eval, which lets the controller act on the real graph."""


def add(commands) -> None:
    command = add_stage(commands, "train-controller", run, TEXT, PAGE)
    command.add_argument(
        "--models", metavar="A,B", help="further models that it learns on, in turn (controller.xrlflow.also)"
    )


def run(parsed) -> dict:
    from controllers.stages import learn
    from controllers.stages.learn import controller_lines

    opened = open_run(parsed, parsed.run, chosen_models(parsed))
    results = learn.train_controller(opened)
    ending(controller_lines(opened, results), "eval", "--run", opened.path)
    return results


def chosen_models(parsed) -> list[str]:
    """The option that --models changes, as KEY=VALUE."""
    if not parsed.models:
        return []
    return [setting("controller.xrlflow.also", [model.strip() for model in parsed.models.split(",")])]
