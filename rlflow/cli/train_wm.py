"""`train-wm`: the world model learns from the episodes, or online."""

from rlflow.cli.command import ITERATIONS, add_iterations, add_stage, chosen_iterations, ending, open_run

TEXT = "train the world model on the episodes (or online)"
PAGE = (
    """\
Trains the world model on the episodes of `collect`, and judges it on some that it keeps out. With
world_model.mode=online it plays random episodes of its own, and no `collect` is needed.

Before it: collect. After it: train-controller; `eval --what world-model` judges the world model at length"""
    + ITERATIONS
)


def add(commands) -> None:
    command = add_stage(commands, "train-wm", run, TEXT, PAGE)
    add_iterations(command)


def run(parsed) -> dict:
    from controllers.stages import learn
    from controllers.stages.learn import world_model_lines

    opened = open_run(parsed, parsed.run, chosen_iterations(parsed))
    results = learn.train_world_model(opened)
    ending(world_model_lines(opened, results), "train-controller", "--run", opened.path)
    return results
