"""The command `collect`: store random episodes of the real environment."""

from rlflow.cli.command import add_stage, ending, open_run

TEXT = "play random episodes of the real environment and store them"
PAGE = """\
Plays random episodes of the real environment and stores them in DIR/episodes. World models learn from them.

This is the first stage: --model names the model of the folder. The next stage is train-wm."""
EXECUTOR = "local: processes on this machine; ray: the cluster at $RAY_ADDRESS, or a new one on this machine"


def add(commands) -> None:
    command = add_stage(commands, "collect", run, TEXT, PAGE)
    command.add_argument("--executor", metavar="NAME", help=EXECUTOR)


def run(parsed) -> dict:
    from controllers.stages import learn
    from controllers.stages.learn import collect_lines

    chosen = [f"collect.executor={parsed.executor}"] if parsed.executor else []
    with open_run(parsed, parsed.run, chosen) as opened:
        results = learn.collect(opened)
        ending(collect_lines(opened, results), "train-wm", "--run", opened.path)
    return results
