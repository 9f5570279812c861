"""Arguments that several commands share, and the last lines that every command prints.

Every command ends in the same form: the result, its certainty, the files written, and the next command.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import command, say_lines, shape_words

ITERATIONS = """.

--iterations N: random episodes seldom reach the states that a controller visits, and errors of the world model there
mislead the controller. From the second iteration on, a controller therefore trains in the dream and plays the real
graph, and the world model learns from these episodes too. iterations.interactions limits the real steps of all
iterations together, including the first ones by `collect`. Each iteration reports the errors of the world model on the
controller's own episodes, before and after it learned from them. The files are in DIR/iterations; a killed command
continues there."""


def add_command(
    commands, name: str, function, text: str, page: str | None = None, resumes: bool | str = False,
    aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:  # fmt: skip
    """Add a command with the two arguments that every command has.

    Args:
      commands: the result of `add_subparsers`.
      name: the name of the command.
      function: parsed arguments → results, which --json writes.
      text: a one-line description.
      page: a longer description for --help, printed unchanged.
      resumes: whether the same command continues after it was stopped; or the name of the argument that makes it so.
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
    """Add the arguments of a command that reads configs/default.yaml; `main` also accepts KEY=VALUE for it."""
    command.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="YAML file of changed options; repeatable"
    )
    add_sizes(command, example=", e.g. input_ids=1x128, batch=1, or several: seq=16,128")
    command.add_argument("--seed", type=int, help="seed of every random choice")
    command.epilog = "KEY=VALUE arguments change single options of configs/default.yaml, e.g. env.max_steps=50"


def add_shapes(command: argparse.ArgumentParser, example: str = "") -> None:
    text = f"typical size of a symbolic dimension{example}; repeatable"
    command.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help=text)


def add_sizes(command: argparse.ArgumentParser, example: str = "") -> None:
    add_shapes(command, example)
    command.add_argument("--fix", action="store_true", help="freeze these sizes, so that the model accepts no others")


def add_threads(command: argparse.ArgumentParser, text: str = "") -> None:
    """Add --threads; `text` is appended to its help."""
    default = "threads of ONNX Runtime (default: one for each core that this process may use)"
    command.add_argument("--threads", type=int, metavar="N", help=default + text)


def threads_of(parsed) -> int:
    """Return the number of threads. Raise RLFlowError if it is below 1."""
    from rlflow.common.system import usable_cores

    if parsed.threads is None:
        return usable_cores()
    if parsed.threads < 1:
        raise RLFlowError("--threads is at least 1")
    return parsed.threads


def chosen_sizes(parsed) -> list[str]:
    """Return the option that --fix changes, as KEY=VALUE."""
    return ["fix=true"] if parsed.fix else []


def add_stage(commands, name: str, function, text: str, page: str | None = None) -> argparse.ArgumentParser:
    """Add a command that works in a run folder; see `add_command` for the arguments."""
    command = add_command(commands, name, function, text, page, resumes=True)
    add_options(command)
    command.add_argument("--run", required=True, metavar="DIR", help="folder of the run, for all its files")
    command.add_argument("--model", help="zoo name or path of an ONNX file; needed only by the first command in DIR")
    return command


def add_accept(command: argparse.ArgumentParser) -> None:
    text = (
        "which result is delivered (eval.accept): 'faster' (default), a result measured faster, or no slower with less "
        "memory or a smaller file; 'equal', also a result without a measured difference in speed"
    )
    command.add_argument("--accept", metavar="WHAT", help=text)


def chosen_accept(parsed) -> list[str]:
    """Return the option that --accept changes, as KEY=VALUE."""
    return [f"eval.accept={parsed.accept}"] if parsed.accept is not None else []


def add_iterations(command: argparse.ArgumentParser) -> None:
    command.add_argument("--iterations", type=int, metavar="N", help="iterations of learning (iterations.count)")


def chosen_iterations(parsed) -> list[str]:
    """Return the option that --iterations changes, as KEY=VALUE."""
    return [f"iterations.count={parsed.iterations}"] if parsed.iterations is not None else []


EXAMPLE = ("optimise", "light_squeezenet", "--out", "light_squeezenet.faster.onnx")  # next command without a model


def ending(lines: Mapping[str, object], *following: object) -> None:
    """Print the last lines of a command.

    Args:
      lines: name → text, in order: "result", "sure" (the certainty of the result), then files by their content
        ("model", "report", …).
      following: the words of the next command, without the program's name.
    """
    say_lines({**lines, "next": command(*following)})


def open_run(parsed, folder: Path | str, chosen: Sequence[str] = ()):
    """Open the run folder of a command that has the arguments of `add_options`.

    Args:
      parsed: the parsed arguments.
      folder: the run folder.
      chosen: options that other arguments of the command change, as KEY=VALUE; they override `parsed.overrides`.
    """
    from controllers.stages.parts import check_names
    from rlflow.runs.config import parse_shapes
    from rlflow.runs.folder import RunFolder

    overrides = [*parsed.overrides, *chosen, *chosen_sizes(parsed)]
    return RunFolder.open(
        folder, parsed.model, parsed.config, overrides, parse_shapes(parsed.shape), parsed.seed, check_names
    )


def following(run, outcome: dict, out: Path | str) -> tuple:
    """Return the words of the command after a delivery.

    It checks the file, measures it on the target machine, or bounds the possible gain if the original was delivered.

    Args:
      run: the run folder.
      outcome: see `rlflow.optimisation.delivery.deliver`.
      out: the delivered file.
    """
    from rlflow.common.task import ONE_SHOT

    if run.spec.shape == ONE_SHOT:
        seed = run.config.seed + 1
        again = f"{run.path}-seed-{seed}"
        return ("train-controller", "--run", again, "--config", run.path / "config.yaml", "--seed", seed)
    if run.config.task.name != "rewriting":
        return ("eval", "--run", run.path, "--what", "world-model")
    model, *shapes = model_words(run.config, run.source)
    if outcome["delivered"] == "original":
        return ("bound", "--model", model, *shapes)
    if outcome["target"] is not None:
        sizes = shape_words(run.config.shapes, fix=False)
        return ("measure", model, out, *sizes, "--threads", run.config.cost.threads)
    return ("validate", model, out, *shapes, *(["--exact"] if run.config.env.exact else []))


def model_words(config: Mapping, source: Path) -> list:
    """Return the words that name a run's model and its sizes in another command.

    Args:
      config: the config of the run.
      source: the file of the model, which is named if the model is not in the zoo.
    """
    from rlflow.zoo import ZOO

    return [config.model if config.model in ZOO else source, *shape_words(config.shapes, config.fix)]
