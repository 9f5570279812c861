"""`costs`: the timings that the profiled cost keeps on disk, and what is learned from measurements."""

from pathlib import Path
from tempfile import TemporaryDirectory

from rlflow.cli.command import EXAMPLE, add_command, add_sizes, add_threads, ending, threads_of
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import counted, say

TEXT = "timings of the profiled cost: show, record, export, import, clear, calibrate; learn from measurements"
SHOW = "how many kernels of each operator have a timing, and how long they take"
CALIBRATE = "measure what a FLOP, a byte and a launch cost on this machine (for cost.name=roofline)"
RECORD = "time on this machine all that an optimisation of a model asks for"
RECORD_PAGE = """\
Times on this machine all kernels of a model, and those that rewrites of it need, in the order in which `optimise` comes
to them, as far as the seconds reach. What is timed is kept; the same command goes on.

With these timings the model can be optimised elsewhere, as this machine needs it:

    here:       costs record MODEL.onnx --threads 4 && costs export target.json
    elsewhere:  costs import target.json --database target.sqlite
                optimise MODEL.onnx --out FASTER.onnx --threads 4 cost.database=target.sqlite
    here:       measure MODEL.onnx FASTER.onnx --threads 4"""
EXPORT = "the timings as a file: for another machine, or as a table"
IMPORT = "take timings from a file that `costs export NAME.json` wrote, on this machine or another"
LEARN = "fit the profiled cost to all graphs that were measured on this machine (for cost.name=learned)"
LEARN_PAGE = """\
Fits one factor for each kind of operator, with which the profiled cost comes nearest to all measured graphs in the
database. Graphs are measured by `measure`, by `optimise` and by env.reward=measured. The result is judged on models
left out: a model and its variants are estimated with the factors that all other models give.

    measure MODEL.onnx FASTER.onnx
    costs learn
    optimise MODEL.onnx --out FASTER.onnx cost.name=learned"""


def add(commands) -> None:
    """`costs show`, `record`, `export`, `import`, `clear`, `calibrate` and `learn`."""
    commands = commands.add_parser("costs", help=TEXT).add_subparsers(required=True, metavar="COMMAND")
    show = add_database_command(commands, "show", run_show, SHOW)
    add_choice(show)
    record = add_database_command(commands, "record", run_record, RECORD, RECORD_PAGE, resumes=True)
    record.add_argument("model", metavar="MODEL", help="the path of an ONNX file or a zoo name")
    add_threads(record)
    seconds = "for what rewrites need (default: 300); the model's own kernels are all timed, however long that takes"
    record.add_argument("--seconds", type=float, default=300.0, metavar="S", help=seconds)
    add_sizes(record)
    export = add_database_command(commands, "export", run_export, EXPORT)
    add_choice(export)
    where = "NAME.json for `costs import` (the timings of one machine), NAME.csv for a table of all"
    export.add_argument("out", metavar="FILE", help=where)
    take = add_database_command(commands, "import", run_import, IMPORT)
    take.add_argument("file", metavar="FILE", help="NAME.json")
    clear = add_database_command(commands, "clear", run_clear, "delete timings, so that they are taken anew")
    add_choice(clear)
    clear.add_argument("--yes", action="store_true", help="all of them, where neither --threads nor --machine chooses")
    calibrate = add_database_command(commands, "calibrate", run_calibrate, CALIBRATE)
    add_threads(calibrate)
    add_threads(add_database_command(commands, "learn", run_learn, LEARN, LEARN_PAGE))


def add_database_command(
    commands, name: str, function, text: str, page: str | None = None, resumes: bool = False
):
    command = add_command(commands, name, function, text, page, resumes)
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
    ending(lines, *following_of(parsed, "export"), "timings.csv")
    return {"operators": result}


def run_export(parsed) -> dict:
    from rlflow.costs import target
    from rlflow.costs.database import TimingDatabase

    count = target.export_timings(TimingDatabase(parsed.database), parsed.out, parsed.threads, parsed.machine)
    lines = {"result": counted(count, "timing"), "file": parsed.out}
    if parsed.out.endswith(".json"):
        ending(lines, "costs", "import", parsed.out, "--database", Path(parsed.out).with_suffix(".sqlite"))
    else:
        ending(lines, *following_of(parsed, "show"))
    return {"timings": count}


def run_import(parsed) -> dict:
    from rlflow.costs import target
    from rlflow.costs.database import TimingDatabase

    database, (machine, rows) = TimingDatabase(parsed.database), target.read_timings(parsed.file)
    database.import_rows(machine, rows)
    threads = max((row["threads"] for row in rows), default=1)
    lines = {"result": f"{counted(len(rows), 'timing')} of {machine}", "file": database.path}
    words = ("optimise", "MODEL.onnx", "--out", "FASTER.onnx", "--threads", threads)
    ending(lines, *words, *([f"cost.database={parsed.database}"] if parsed.database else []))
    return {"timings": len(rows), "machine": machine}


def run_record(parsed) -> dict:
    from rlflow.costs.analytic import calibrate, calibrated
    from rlflow.costs.database import TimingDatabase

    if not parsed.seconds > 0:
        raise RLFlowError("--seconds is above 0")
    database, threads = TimingDatabase(parsed.database), threads_of(parsed)
    database.check_here()
    before = len(database.rows(threads))
    if calibrated(database, threads) is None:
        calibrate(database, threads)
    stopped = _search(parsed, threads, database.path)
    known = len(database.rows(threads))
    lines = {"result": f"{counted(known - before, 'kernel')} timed, {known} known with threads={threads}"}
    if stopped:
        lines["sure"] = f"rewrites may need more than is known: {stopped}"
    ending(lines | {"file": database.path}, *following_of(parsed, "export"), "target.json")
    return {"new": known - before, "timings": known, "stopped": stopped}


def _search(parsed, threads: int, database: Path) -> str | None:
    """Searches as `optimise` does, so that all kernels are timed that it asks for. What stopped that, if anything."""
    from rlflow.env.graph_rewrite import EnvSpec
    from rlflow.optimisation.anytime import BEST_SO_FAR_FILE, BestSoFar, search_all
    from rlflow.optimisation.budget import Stop
    from rlflow.runs.config import load_config, parse_shapes
    from rlflow.zoo import zoo_or_path

    sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in parse_shapes(parsed.shape).items()}
    spec = EnvSpec("", tuple(sizes.items()), fix=parsed.fix, threads=threads, database=str(database))
    config = load_config()
    with TemporaryDirectory() as folder:
        best = BestSoFar(spec.open(zoo_or_path(parsed.model)), Path(folder) / BEST_SO_FAR_FILE)
        try:
            methods = search_all(best, config.search, parsed.seconds, config.seed)["methods"]
        except Stop as stop:
            return str(stop)
    cut = [name for name, record in methods.items() if record["stop"] == "seconds" and name != "annealing"]
    return f"the time was up in {cut[0]}" if cut else None  # annealing goes on as long as it may


def run_clear(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase

    if not parsed.yes and parsed.threads is None and parsed.machine is None:
        raise RLFlowError("this deletes every timing: say --yes, or choose with --threads or --machine")
    count = TimingDatabase(parsed.database).clear(parsed.threads, parsed.machine)
    ending({"result": f"{counted(count, 'timing')} deleted"}, *following_of(parsed, "show"))
    return {"deleted": count}


def run_calibrate(parsed) -> dict:
    from rlflow.costs.analytic import calibrate
    from rlflow.costs.database import TimingDatabase

    database, threads = TimingDatabase(parsed.database), threads_of(parsed)
    result = calibrate(database, threads)
    text = f"{result.flop} ps a FLOP, {result.byte} ps a byte, {result.launch} ps a launch"
    lines = {"result": f"{text}, with {counted(threads, 'thread')}", "file": database.path}
    ending(lines, *optimise_with(parsed, "roofline", threads))
    return {"threads": threads, **result._asdict()}


def run_learn(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase
    from rlflow.costs.learned import correction_path, learn, leave_out, left_out_summary, left_out_table
    from rlflow.costs.measurements import Known

    threads = threads_of(parsed)
    database = TimingDatabase(parsed.database)
    database.check_here()
    known = Known.of(database, threads)
    if known.damaged:
        say(f"{counted(known.damaged, 'graph')} {'is' if known.damaged == 1 else 'are'} damaged and left out")
    correction, path = learn(known, threads), correction_path(threads, parsed.database)
    judged = leave_out(known, threads)
    correction.save(path)
    result = {"graphs": correction.graphs, "models": correction.models, "unseen": known.unseen}
    text = f"learned from {counted(correction.graphs, 'graph')} of {counted(correction.models, 'model')}"
    lines = {"result": f"{text}, with {counted(threads, 'thread')}"}
    if judged:
        result["left_out"] = left_out_summary(judged)
        print(left_out_table(judged))
        learned, profiled = (100 * result["left_out"][cost]["error"] for cost in ("learned", "profiled"))
        lines["sure"] = f"mean error on models left out: {learned:.1f} %; of the profiled cost: {profiled:.1f} %"
    else:
        lines["sure"] = "the error on other models is not known: all measured graphs are of one model"
    ending(lines | {"file": path}, *optimise_with(parsed, "learned", threads))
    return result
