"""`costs`: the timings that the profiled cost keeps on disk, and what is learned from measurements."""

from rlflow.cli.arguments import add_command
from rlflow.cli.ending import EXAMPLE, counted, ending
from rlflow.common.errors import RLFlowError

TEXT = "the timings of the profiled cost: show, export, clear, calibrate"
SHOW = "how many kernels of each operator have a timing, and how long they take"
CALIBRATE = "measure what a FLOP, a byte and a launch cost on this machine (for cost.name=roofline)"
FIT = "learn from measured graphs how far the profiled cost is off (for cost.name=corrected)"


def add(commands) -> None:
    """`costs show`, `costs export`, `costs clear`, `costs calibrate`, `costs fit`."""
    commands = commands.add_parser("costs", help=TEXT).add_subparsers(required=True, metavar="COMMAND")
    show = add_database_command(commands, "show", run_show, SHOW)
    add_choice(show)
    export = add_database_command(commands, "export", run_export, "all timings as a table")
    add_choice(export)
    export.add_argument("--out", required=True, metavar="FILE", help="where they go: NAME.csv or NAME.json")
    clear = add_database_command(commands, "clear", run_clear, "delete timings, so that they are taken anew")
    add_choice(clear)
    clear.add_argument("--yes", action="store_true", help="all of them, where neither --threads nor --machine chooses")
    calibrate = add_database_command(commands, "calibrate", run_calibrate, CALIBRATE)
    calibrate.add_argument("--threads", type=int, default=1, metavar="N", help="with N threads")
    fit = add_database_command(commands, "fit", run_fit, FIT)
    measurements = "what `python -m benchmarks.cost_trust --json FILE` wrote on this machine"
    fit.add_argument("measurements", metavar="FILE", help=measurements)


def add_database_command(commands, name: str, function, text: str):
    command = add_command(commands, name, function, text)
    database = "the SQLite file (default: the user's own, as for cost.database=null)"
    command.add_argument("--database", metavar="FILE", help=database)
    return command


def add_choice(command) -> None:
    command.add_argument("--threads", type=int, metavar="N", help="timings with N threads alone")
    command.add_argument("--machine", metavar="TEXT", help="timings of machines whose name holds the text alone")


def following_of(parsed, name: str) -> list[str]:
    """The words of another of these commands, on the same database."""
    return ["costs", name, *(["--database", parsed.database] if parsed.database else [])]


def optimise_with(parsed, cost: str, threads: int) -> list[str]:
    """The words of a command that estimates by this cost, with as many threads and on the same database."""
    words = [*EXAMPLE, f"cost.name={cost}", f"cost.threads={threads}"]
    return [*words, *([f"cost.database={parsed.database}"] if parsed.database else [])]


def run_show(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase, summary, summary_table

    result = summary(TimingDatabase(parsed.database).rows(parsed.threads, parsed.machine))
    print(summary_table(result))
    timings = sum(row["count"] for row in result)
    lines = {"result": f"{counted(timings, 'timing')}, of {counted(len(result), 'kind')} of kernels"}
    ending(lines, *following_of(parsed, "export"), "--out", "timings.csv")
    return {"operators": result}


def run_export(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase, export

    rows = TimingDatabase(parsed.database).rows(parsed.threads, parsed.machine)
    export(rows, parsed.out)
    ending({"result": counted(len(rows), "timing"), "table": parsed.out}, *following_of(parsed, "show"))
    return {"timings": len(rows)}


def run_clear(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase

    if not parsed.yes and parsed.threads is None and parsed.machine is None:
        raise RLFlowError("this deletes every timing: say --yes, or choose with --threads or --machine")
    count = TimingDatabase(parsed.database).clear(parsed.threads, parsed.machine)
    ending({"result": f"{counted(count, 'timing')} deleted"}, *following_of(parsed, "show"))
    return {"deleted": count}


def run_calibrate(parsed) -> dict:
    from rlflow.costs.calibrate import calibrate
    from rlflow.costs.database import TimingDatabase

    database = TimingDatabase(parsed.database)
    result = calibrate(database, parsed.threads)
    text = f"{result.flop} ps a FLOP, {result.byte} ps a byte, {result.launch} ps a launch"
    lines = {"result": f"{text}, with {parsed.threads} threads", "file": database.path}
    ending(lines, *optimise_with(parsed, "roofline", parsed.threads))
    return {"threads": parsed.threads, **result._asdict()}


def run_fit(parsed) -> dict:
    from rlflow.costs.corrected import correction_path, fit, read_measurements

    result, threads = read_measurements(parsed.measurements)
    correction, path = fit(result, threads), correction_path(threads, parsed.database)
    correction.save(path)
    lines = {"result": f"learned from {correction.graphs} graphs of {correction.models} models"}
    if correction.error:
        off = 100 * correction.error["mean"]
        lines["sure"] = f"on models that it had not seen it was off by {off:.1f} % in the mean"
    ending(lines | {"file": path}, *optimise_with(parsed, "corrected", threads))
    return {"models": correction.models, "graphs": correction.graphs, "error": correction.error}
