"""The command `train-controller`: train a controller in the dream."""

from rlflow.cli.command import add_stage, ending, open_run
from rlflow.common.options import setting

TEXT = "train the controller in the dream"
PAGE = """\
Trains the controller in the dream: its environment is the world model. The default is PPO; controller.name=cma-es
evolves a policy, and planner searches the dream. With controller.train_on=real the controller trains on the real graph,
for comparison. For a one-shot task this is the first stage, and the controller trains on the instance or on
others of its kind. A controller that observes candidates (controller.name=xrlflow) is independent of the model: with
--models it trains on several, and can then act on new models by `optimise --controller DIR/controller/xrlflow-real`.

The stage before is train-wm. The next stage is eval, in which the controller acts on the real graph."""


def add(commands) -> None:
    command = add_stage(commands, "train-controller", run, TEXT, PAGE)
    command.add_argument(
        "--models", metavar="A,B", help="further models of the training, in turn (controller.xrlflow.also)"
    )


def run(parsed) -> dict:
    from controllers.stages import learn
    from controllers.stages.learn import controller_lines

    with open_run(parsed, parsed.run, chosen_models(parsed)) as opened:
        results = learn.train_controller(opened)
        ending(controller_lines(opened, results), "eval", "--run", opened.path)
    return results


def chosen_models(parsed) -> list[str]:
    """Return the option that --models changes as a list [KEY=VALUE]; the list is empty without --models."""
    if not parsed.models:
        return []
    return [setting("controller.xrlflow.also", [model.strip() for model in parsed.models.split(",")])]
