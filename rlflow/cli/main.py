"""The command line of RLFlow: parse the arguments, run one command, print its result.

`python run.py --help` lists the commands.
"""

import argparse
import os
import sys
from contextlib import suppress

from rlflow.cli import (
    bound,
    collect,
    costs,
    evaluate,
    expr,
    measure,
    memory,
    optimise,
    place,
    replay,
    report,
    rules,
    search,
    sweep,
    train_controller,
    train_wm,
    validate,
    zoo,
)
from rlflow.common.errors import RLFlowError
from rlflow.common.files import check_writable, write_json
from rlflow.common.messages import program
from rlflow.common.processes import end_with_input

COMMANDS = (  # in the order of --help
    collect, train_wm, train_controller, evaluate, optimise, search, sweep, report, bound, replay, validate,
    measure, memory, place, expr, rules, costs, zoo,
)  # fmt: skip

DESCRIPTION = """\
RLFlow makes an ONNX model faster by proved rewrite rules. It can learn in a world model which rules to apply.

One command:    %(prog)s optimise MODEL.onnx --out FASTER.onnx      (Ctrl-C writes the best result so far)
Stage by stage: %(prog)s collect          --run runs/x --model MODEL.onnx   (or a zoo name)
                %(prog)s train-wm         --run runs/x
                %(prog)s train-controller --run runs/x
                %(prog)s eval             --run runs/x
Watch:          tensorboard --logdir runs/x

Every command ends with its result, the files it wrote and the next command. A stage that was killed continues where it
stopped when the same command is run again. configs/default.yaml lists all options. Change them with --config FILE.yaml
or KEY=VALUE, e.g. controller.name=cma-es."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit status of the process.

    Args:
      arguments: the command and its arguments; None for the arguments of this process.

    Returns:
      0; 1 after an error, a failed check or a failed run; 130 after Ctrl-C.
    """
    end_with_input()
    parsed = parse(arguments)
    try:
        for path in (parsed.json, getattr(parsed, "out", None)):
            if path:
                check_writable(path)
        from rlflow.graph import custom_ops  # --help does not wait for it

        with custom_ops.restored():
            custom_ops.load(getattr(parsed, "custom_ops", None) or ())
            results = parsed.function(parsed)
        sys.stdout.flush()
        if parsed.json:
            write_json(parsed.json, results)
        return int(results.get("ok") is False)  # a check or a run failed
    except RLFlowError as error:
        if parsed.debug:
            raise
        # A text from a file may hold line breaks, or commands to the terminal.
        print(f"error: {''.join(c if c.isprintable() else ' ' for c in str(error))}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the output has ended, as in `rlflow rules list | head`
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # a bug: one line is enough for a user, and --debug shows the traceback
        if parsed.debug:
            raise
        text = " ".join(str(error).split())[:300]
        print(f"error: unexpected {type(error).__name__}: {text} (--debug shows where)", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        resumes = parsed.resumes is True or (parsed.resumes and getattr(parsed, parsed.resumes) is not None)
        print("stopped; the same command goes on from here" if resumes else "stopped", file=sys.stderr)
        return 130


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the arguments. The result also has `overrides`, the list of the KEY=VALUE arguments.

    Exit with status 2 if an argument is not recognised.
    """
    parser = make_parser()
    parsed, rest = parser.parse_known_args(arguments)
    wrong = [text for text in rest if text.startswith("-") or "=" not in text]
    if wrong or (rest and "config" not in parsed):
        parser.error(f"unrecognized arguments: {' '.join(wrong or rest)}")
    parsed.overrides = rest
    return parsed


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program(), description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser
