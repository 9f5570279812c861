"""What commands have in common: their arguments, and the lines that every command ends with.

A command ends by saying what was gained or found, how certain that is, where the files lie and which command comes
next, always in the same form.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import command, say_lines, shape_words

ITERATIONS = """.

--iterations N: random play seldom comes where a controller goes, and a dream that promises too much there misleads it.
So in every iteration after the first a controller learns in the dream so far and plays the real graph, and the world
model learns from that too. All real interactions together stay below iterations.interactions; `collect` plays the first
of them. Each iteration says how far the dream was off about the controller's own episodes, before and after it learnt
from them. Everything of an iteration lies in DIR/iterations; a killed command goes on there."""


def add_command(
    commands, name: str, function, text: str, page: str | None = None, resumes: bool | str = False
) -> argparse.ArgumentParser:
    """A command with the two arguments that all have.

    Args:
      commands: what `add_subparsers` returned.
      function: parsed arguments → results, which --json writes.
      text: what it does, in a line.  page: the same at length, shown by --help as it stands.
      resumes: whether, stopped at any moment, the same command goes on from there; or the argument that has to be
        given for that.
    """
    command = commands.add_parser(name, help=text, description=page or text)
    if page:
        command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.set_defaults(function=function, resumes=resumes)
    command.add_argument("--json", metavar="FILE", help="write the results as JSON")
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command


def add_options(command: argparse.ArgumentParser) -> None:
    """What a command has that reads configs/default.yaml; `main` lets it take KEY=VALUE too."""
    command.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="a YAML file on top of the defaults; repeatable"
    )
    add_sizes(command, example=", e.g. input_ids=1x128, batch=1, or several: seq=16,128")
    command.add_argument("--seed", type=int, help="decides every random choice")
    command.epilog = "KEY=VALUE arguments change single options of configs/default.yaml, e.g. env.max_steps=50"


def add_shapes(command: argparse.ArgumentParser, example: str = "") -> None:
    text = f"typical size of a symbolic dimension{example}; repeatable"
    command.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help=text)


def add_sizes(command: argparse.ArgumentParser, example: str = "") -> None:
    add_shapes(command, example)
    command.add_argument("--fix", action="store_true", help="freeze these sizes: the model takes no others then")


def add_threads(command: argparse.ArgumentParser, text: str = "") -> None:
    """text: of which option it is, or what more is to be said."""
    default = "of ONNX Runtime (default: as many as it takes by itself, of the cores that this process may use)"
    command.add_argument("--threads", type=int, metavar="N", help=default + text)


def threads_of(parsed) -> int:
    """What --threads says. Raises RLFlowError if it is no number above 0."""
    from rlflow.common.system import usable_cores

    if parsed.threads is None:
        return usable_cores()
    if parsed.threads < 1:
        raise RLFlowError("--threads is at least 1")
    return parsed.threads


def chosen_sizes(parsed) -> list[str]:
    """The option that --fix changes, as KEY=VALUE."""
    return ["fix=true"] if parsed.fix else []


def add_stage(commands, name: str, function, text: str, page: str | None = None) -> argparse.ArgumentParser:
    """A command that works in a run folder."""
    command = add_command(commands, name, function, text, page, resumes=True)
    add_options(command)
    command.add_argument("--run", required=True, metavar="DIR", help="folder of the run; everything goes there")
    command.add_argument("--model", help="a zoo name or the path of an ONNX file (once per run folder)")
    return command


def add_accept(command: argparse.ArgumentParser) -> None:
    text = (
        "what is delivered (eval.accept): 'faster' (the default), what is shown to be faster, or else to need less "
        "memory or a smaller file; 'equal': also that of which no difference in speed is shown"
    )
    command.add_argument("--accept", metavar="WHAT", help=text)


def chosen_accept(parsed) -> list[str]:
    """The option that --accept changes, as KEY=VALUE."""
    return [f"eval.accept={parsed.accept}"] if parsed.accept is not None else []


def add_iterations(command: argparse.ArgumentParser) -> None:
    command.add_argument("--iterations", type=int, metavar="N", help="of learning the world model (iterations.count)")


def chosen_iterations(parsed) -> list[str]:
    """The option that --iterations changes, as KEY=VALUE."""
    return [f"iterations.count={parsed.iterations}"] if parsed.iterations is not None else []


EXAMPLE = ("optimise", "light_squeezenet", "--out", "light_squeezenet.faster.onnx")  # where no model was named


def ending(lines: Mapping[str, object], *following: object) -> None:
    """Says the last lines of a command.

    Args:
      lines: name → text, in order: "result", "sure" (how sure that is) where there is doubt, then files by what they
        hold ("model", "report", …).
      following: the words of the command to go on with, without the program's name.
    """
    say_lines({**lines, "next": command(*following)})


def open_run(parsed, folder: Path | str, chosen: Sequence[str] = ()):
    """The run folder of a command that has the arguments of `add_options`.

    chosen: options that further arguments of the command change, as KEY=VALUE; they win over `parsed.overrides`.
    """
    from controllers.stages.parts import check_names
    from rlflow.runs.config import parse_shapes
    from rlflow.runs.folder import RunFolder

    overrides = [*parsed.overrides, *chosen, *chosen_sizes(parsed)]
    return RunFolder.open(
        folder, parsed.model, parsed.config, overrides, parse_shapes(parsed.shape), parsed.seed, check_names
    )


def following(run, outcome: dict, out: Path | str) -> tuple:
    """The words of the command after a delivery: it checks the file, measures it on the machine that it is for, or says
    how much there was to gain at all.

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
    """The model of a run and its sizes, for another command. source: its file, named where the zoo has none."""
    from rlflow.zoo import ZOO

    return [config.model if config.model in ZOO else source, *shape_words(config.shapes, config.fix)]
