"""The command `train-wm`: train the world model, by default twice, with real episodes of a controller in between."""

from rlflow.cli.command import ITERATIONS, add_iterations, add_stage, changed_options, ending, open_run

TEXT = "train the world model on the episodes (or online)"
PAGE = (
    """\
Trains the world model on the episodes of `collect`, and measures its errors on held-out episodes. The default is
graph-mdn: graph networks with a recurrent mixture-density state. world_model.name=edits learns tables in seconds, and
mdn-rnn is the paper's. With world_model.mode=online, mdn-rnn plays its own random episodes and needs no `collect`.

The stage before is collect, the next stage is train-controller. `eval --what world-model` evaluates the world model in
more detail"""
    + ITERATIONS
)


def add(commands) -> None:
    command = add_stage(commands, "train-wm", run, TEXT, PAGE)
    add_iterations(command)


def run(parsed) -> dict:
    from controllers.stages import learn
    from controllers.stages.learn import world_model_lines

    with open_run(parsed, parsed.run, changed_options(parsed, {"iterations": "iterations.count"})) as opened:
        results = learn.train_world_model(opened)
        ending(world_model_lines(opened, results), "train-controller", "--run", opened.path)
    return results
