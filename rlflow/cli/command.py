"""Arguments that several commands share, and the last lines that every command prints.

The last lines are the result, its certainty, the files written, and the suggested next command.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import command, say_lines, shape_words
from rlflow.common.options import setting

ITERATIONS = """.

--iterations N: random episodes seldom reach the states that a controller visits, and errors of the world model there
mislead the controller. From the second iteration on, a controller therefore trains in the dream and plays the real
graph, and the world model learns from these episodes too. iterations.interactions limits the real steps of all these
episodes together. By default there are two iterations for PPO and CMA-ES. Each iteration reports the errors of the
world model on the controller's own episodes, before and after it learned from them. The files are in DIR/iterations; a
killed command continues there."""


def add_command(
    commands, name: str, function, text: str, page: str | None = None, resumes: bool | str = False,
    aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:  # fmt: skip
    """Add a command with --json and --debug, the two arguments that every command has.

    Args:
      commands: the result of `add_subparsers`.
      name: the name of the command.
      function: runs the command; it takes the parsed arguments and returns the results, which --json writes.
      text: a one-line description.
      page: a longer description for --help, printed without rewrapping.
      resumes: True if a stopped command continues its work when it is repeated. If it continues only with a certain
        option, the attribute name of this option in the parsed arguments.
      aliases: other spellings of the name.
    """
    command = commands.add_parser(name, aliases=aliases, help=text, description=page or text)
    if page:
        command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.set_defaults(function=function, resumes=resumes)
    command.add_argument("--json", metavar="FILE", help="write the results as JSON")
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command


def add_options(command: argparse.ArgumentParser) -> None:
    """Add --config, --shape, --fix and --seed. A command with these arguments also accepts KEY=VALUE for any option."""
    command.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="YAML file of changed options; repeatable"
    )
    add_sizes(command, example=", e.g. input_ids=1x128, batch=1, or several: seq=16,128")
    add_inputs(command)
    add_custom_ops(command)
    add_choice_of_rules(command)
    command.add_argument("--seed", type=int, help="seed of every random choice")
    command.epilog = "KEY=VALUE arguments change single options of configs/default.yaml, e.g. env.max_steps=50"


def add_shapes(command: argparse.ArgumentParser, example: str = "") -> None:
    text = f"typical size of a symbolic dimension{example}; repeatable"
    command.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help=text)


def add_sizes(command: argparse.ArgumentParser, example: str = "") -> None:
    add_shapes(command, example)
    command.add_argument("--fix", action="store_true", help="freeze these sizes, so that the model accepts no others")


def add_inputs(command: argparse.ArgumentParser) -> None:
    text = "inputs to check and measure with: an .npz file, or a folder of .npz or test_data_set_*; repeatable"
    command.add_argument("--inputs", action="append", default=[], metavar="DATA", help=text)


def input_words(inputs: Sequence[Path | str]) -> list:
    """Return the arguments `--inputs DATA` for a command line."""
    return [word for path in inputs for word in ("--inputs", path)]


def add_custom_ops(command: argparse.ArgumentParser) -> None:
    """Add --custom-ops. `rlflow.cli.main` loads the libraries before it runs a command that has this argument."""
    text = "library of custom operators that the model uses (native code, which the command runs); repeatable"
    command.add_argument("--custom-ops", action="append", metavar="LIB.so", help=text)


def add_choice_of_rules(command: argparse.ArgumentParser) -> None:
    """Add --only-rule, --skip-rule and --keep."""
    for name, text in (
        ("only-rule", "use only this rule (env.only_rules)"),
        ("skip-rule", "leave out this rule (env.skip_rules)"),
        ("keep", "keep this tensor with its name and value, or this node as it is (env.keep)"),
    ):
        command.add_argument(f"--{name}", action="append", metavar="NAME", help=f"{text}; repeatable")


def add_threads(command: argparse.ArgumentParser, text: str = "") -> None:
    """Add --threads.

    Args:
      command: the command.
      text: a text that is appended to the help of --threads.
    """
    default = "threads of ONNX Runtime (default: one for each core that this process may use)"
    command.add_argument("--threads", type=int, metavar="N", help=default + text)


def threads_of(parsed) -> int:
    """Return the value of --threads, or the number of usable cores by default. Raise RLFlowError if it is below 1."""
    from rlflow.common.system import usable_cores

    if parsed.threads is None:
        return usable_cores()
    if parsed.threads < 1:
        raise RLFlowError("--threads is at least 1")
    return parsed.threads


def changed_options(parsed, names: Mapping[str, str]) -> list[str]:
    """Return the options that arguments of a command change, as KEY=VALUE. Arguments that are not given change none.

    Args:
      parsed: the parsed arguments.
      names: name of an argument → dotted name of the option that the argument changes.
    """
    values = {option: getattr(parsed, argument) for argument, option in names.items()}
    return [setting(option, value) for option, value in values.items() if value is not None and value is not False]


def add_stage(commands, name: str, function, text: str, page: str) -> argparse.ArgumentParser:
    """Add a command that runs a stage in a run folder, with --run, --model and the arguments of `add_options`.

    See `add_command` for the arguments of this function.
    """
    command = add_command(commands, name, function, text, page, resumes=True)
    add_options(command)
    command.add_argument("--run", required=True, metavar="DIR", help="folder of the run, for all its files")
    command.add_argument("--model", help="zoo name or path of an ONNX file; needed only by the first command in DIR")
    return command


def add_accept(command: argparse.ArgumentParser) -> None:
    text = (
        "which result is delivered (eval.accept): 'faster' (default), a result measured faster, or no slower with less "
        "memory or a smaller file; 'equal', also a result without a measured difference in speed; 'dequantised', a "
        "faster result that computes a quantised model in float32 without the rounding of activations"
    )
    command.add_argument("--accept", metavar="WHAT", help=text)


def add_iterations(command: argparse.ArgumentParser) -> None:
    command.add_argument("--iterations", type=int, metavar="N", help="iterations of learning (iterations.count)")


# The next command that is suggested after commands that have no model as an argument.
EXAMPLE = ("optimise", "light_squeezenet", "--out", "light_squeezenet.faster.onnx")


# Commands that open a model and take --custom-ops.
OPENING_MODELS = (
    "optimise", "search", "collect", "train-wm", "train-controller", "eval", "validate", "measure", "memory", "place",
    "bound",    "replay", "rules", "sweep",
)  # fmt: skip


def ending(lines: Mapping[str, object], *following: object, is_piped: bool = False) -> None:
    """Print the last lines of a command to standard output.

    Args:
      lines: name of a line → its text, in the order of printing: "result", "sure" (the certainty of the result), then
        the written files, each named by its content ("model", "report", …).
      *following: the words of the suggested next command, without the program's name.
      is_piped: True if standard output is the content of a file, such as a page. The lines then go to standard error.
    """
    from rlflow.graph.custom_ops import loaded  # --help does not wait for it

    libraries = loaded() if following[0] in OPENING_MODELS else ()
    words = [word for library in libraries for word in ("--custom-ops", library)]
    say_lines({**lines, "next": command(*following, *words)}, sys.stderr if is_piped else sys.stdout)


CHOICES = {  # name of an argument that all commands with options have → the option that the argument changes
    "fix": "fix", "only_rule": "env.only_rules", "skip_rule": "env.skip_rules", "keep": "env.keep",
}  # fmt: skip


@contextmanager
def open_run(parsed, folder: Path | str, chosen: Sequence[str] = (), learns: bool | None = True) -> Iterator:
    """Open the `RunFolder` of a command that has the arguments of `add_options`, for the work of a `with` block.

    If the block raises an error, the folder stays as it was (`RunFolder.working`).

    Args:
      parsed: the parsed arguments.
      folder: the path of the run folder.
      chosen: options that other arguments of the command change, as KEY=VALUE; they override `parsed.overrides`.
      learns: whether the command is a stage of learning; see `controllers.stages.parts.check_names`.
    """
    from controllers.stages.parts import check_names
    from rlflow.runs.config import parse_shapes
    from rlflow.runs.folder import RunFolder

    overrides = [*parsed.overrides, *chosen, *changed_options(parsed, CHOICES)]
    if parsed.inputs:  # absolute, so that the run finds the files from any working directory
        overrides.append(setting("inputs", [Path(path).absolute() for path in parsed.inputs]))
    if parsed.custom_ops:  # absolute, so that the run finds them from any working directory
        overrides.append(setting("custom_ops", [Path(path).absolute() for path in parsed.custom_ops]))
    is_new = not Path(folder).exists()
    run = RunFolder.open(
        folder, parsed.model, parsed.config, overrides, parse_shapes(parsed.shape), parsed.seed,
        partial(check_names, learns=learns),
    )  # fmt: skip
    with run.working(is_new):
        yield run


def following(run, outcome: dict, out: Path | str) -> tuple:
    """Return the words of the next command that is suggested after a delivery.

    For rewriting, this is `validate` for the delivered file, `measure` if the file is meant for another machine, or
    `bound` if the original was delivered. Other tasks suggest an evaluation of the world model, or a training with the
    next seed if there is none.

    Args:
      run: the `RunFolder`.
      outcome: the result of `rlflow.optimisation.delivery.deliver`.
      out: the delivered file.
    """
    from rlflow.common.task import ONE_SHOT

    if run.config.task.name != "rewriting":
        if run.spec.shape != ONE_SHOT and run.results("train-wm"):
            return ("eval", "--run", run.path, "--what", "world-model")
        seed = run.config.seed + 1
        again = f"{run.path}-seed-{seed}"
        return ("train-controller", "--run", again, "--config", run.path / "config.yaml", "--seed", seed)
    model, *shapes = model_words(run.config, run.source)
    inputs = input_words(run.config.inputs)
    if outcome["delivered"] == "original":
        return ("bound", "--model", model, *shapes)
    if outcome["target"] is not None:
        sizes = shape_words(run.config.shapes, fix=False)
        return ("measure", model, out, *sizes, *inputs, "--threads", run.config.cost.threads)
    return ("validate", model, out, *shapes, *inputs, *(["--exact"] if run.config.env.exact else []))


def model_words(config: Mapping, source: Path) -> list:
    """Return the words of a command line that name the model of a run and the sizes at which the run used it.

    Args:
      config: the config of the run.
      source: the file of the model.

    Returns:
      The zoo name or file of the model, then the arguments --shape and --fix. A name stands for the weights of seed 0.
    """
    from rlflow.zoo import ZOO

    model = config.model if config.model in ZOO and not config.seed else source
    return [model, *shape_words(config.shapes, config.fix)]
