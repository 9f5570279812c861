"""The commands `costs`: manage timings of kernels, explain a model's time, calibrate the machine, train the prior."""

from pathlib import Path
from tempfile import TemporaryDirectory

from rlflow.cli.command import (
    EXAMPLE,
    add_command,
    add_custom_ops,
    add_shapes,
    add_sizes,
    add_threads,
    ending,
    threads_of,
)
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import counted, shape_words
from rlflow.common.options import setting

TEXT = "manage the timings of kernels, explain a model's time, calibrate the machine and train the prior of kernels"
SHOW = "show the number and the duration of the timed kernels of each operator"
CALIBRATE = "measure the speeds of this machine: arithmetic, caches, memory, launch (for predicted and roofline costs)"
EXPLAIN = "show where the time of a model goes: its kernels, their times, and how near each is to its bound"
EXPLAIN_PAGE = """\
Times the kernels of a model on this machine and prints them, those with the most time above their bound first. Equal
kernels are one row. The bound is the roofline of this machine: the FLOPs of the kernel at the speed of the best
product or convolution, or its bytes at the bandwidth of the cache that holds them, whichever takes longer.

The sum of all kernels is compared with the measured latency of the model. They differ if ONNX Runtime fuses operators
in a way that RLFlow does not know, or if kernels wait for each other."""
RECORD = "time all kernels on this machine that an optimisation of a model needs"
RECORD_PAGE = """\
Times the kernels of a model on this machine, and then the kernels that its rewrites need, in the order of `optimise`,
until the time limit. Timings are stored at once; the same command continues after it was stopped.

With these timings the model can be optimised on another machine for this one:

    here:       costs record MODEL.onnx --threads 4 && costs export target.json
    elsewhere:  costs import target.json --database target.sqlite
                optimise MODEL.onnx --out FASTER.onnx --threads 4 cost.database=target.sqlite
    here:       measure MODEL.onnx FASTER.onnx --threads 4"""
EXPORT = "write the timings to a file: for another machine, or as a table"
IMPORT = "read timings from a file that `costs export NAME.json` wrote on any machine"
LATENCY_SECONDS = 2.0  # of the runs of the whole model in `costs explain`
TRAIN = "train the prior of kernels on timings (for cost.name=predicted)"
TRAIN_PAGE = """\
Trains regression trees that predict the latency of a kernel from its operators, sizes and the speeds of the machine.
The prior is written beside the database, where cost.name=predicted finds it, or to --out. Searches then run on
predictions, and only the kernels that decide are timed.

    costs calibrate
    costs record MODEL.onnx
    costs train
    optimise MODEL.onnx --out FASTER.onnx cost.name=predicted

The printed errors are those on sizes that no training saw. --also FILE.sqlite adds the timings of other machines, which
`costs import` reads into a file of their own. Training needs LightGBM (pip install 'rlflow[prior]')."""


def add(commands) -> None:
    """Add `costs show`, `explain`, `record`, `export`, `import`, `clear`, `calibrate` and `train`."""
    commands = commands.add_parser("costs", help=TEXT).add_subparsers(required=True, metavar="COMMAND")
    show = add_database_command(commands, "show", run_show, SHOW)
    add_choice(show)
    explain = add_database_command(commands, "explain", run_explain, EXPLAIN, EXPLAIN_PAGE)
    explain.add_argument("model", metavar="MODEL", help="path of an ONNX file, or a zoo name")
    explain.add_argument("--top", type=int, default=20, metavar="N", help="number of rows (default: 20)")
    add_threads(explain)
    add_shapes(explain)
    add_custom_ops(explain)
    record = add_database_command(commands, "record", run_record, RECORD, RECORD_PAGE, resumes=True)
    record.add_argument("model", metavar="MODEL", help="path of an ONNX file, or a zoo name")
    add_threads(record)
    seconds = "time limit for kernels of rewrites (default: 300); the model's own kernels are always all timed"
    record.add_argument("--seconds", type=float, default=300.0, metavar="S", help=seconds)
    add_sizes(record)
    add_custom_ops(record)
    export = add_database_command(commands, "export", run_export, EXPORT)
    add_choice(export)
    where = "NAME.json for `costs import` (timings of one machine), or NAME.csv for a table of all timings"
    export.add_argument("out", metavar="FILE", help=where)
    take = add_database_command(commands, "import", run_import, IMPORT)
    take.add_argument("file", metavar="FILE", help="NAME.json, written by `costs export`")
    deleted = "delete timings, measured latencies and effects of rule families, so that they are measured again"
    clear = add_database_command(commands, "clear", run_clear, deleted)
    add_choice(clear)
    clear.add_argument("--yes", action="store_true", help="delete all timings, without --threads or --machine")
    calibrate = add_database_command(commands, "calibrate", run_calibrate, CALIBRATE)
    add_threads(calibrate)
    train = add_database_command(commands, "train", run_train, TRAIN, TRAIN_PAGE)
    also = "another database whose timings are learned from, too; repeatable"
    train.add_argument("--also", action="append", default=[], metavar="FILE", help=also)
    train.add_argument("--out", metavar="FILE", help="file of the prior (default: beside the database)")


def add_database_command(commands, name: str, function, text: str, page: str | None = None, resumes: bool = False):
    command = add_command(commands, name, function, text, page, resumes)
    database = "the SQLite file (default: the user's own, as for cost.database=null)"
    command.add_argument("--database", metavar="FILE", help=database)
    return command


def add_choice(command) -> None:
    command.add_argument("--threads", type=int, metavar="N", help="only timings with N threads")
    command.add_argument("--machine", metavar="TEXT", help="only timings of machines whose name contains TEXT")


def following_of(parsed, name: str) -> list[str]:
    """Return the words of the `costs` command of this name, for the database of the parsed arguments."""
    return ["costs", name, *(["--database", parsed.database] if parsed.database else [])]


def optimise_with(parsed, cost: str, threads: int) -> list[str]:
    """Return the words of an `optimise` command that uses the same database of timings.

    Args:
      parsed: the parsed arguments.
      cost: the value of cost.name.
      threads: the value of cost.threads.
    """
    words = [*EXAMPLE, f"cost.name={cost}", f"cost.threads={threads}"]
    return [*words, *([setting("cost.database", parsed.database)] if parsed.database else [])]


def run_show(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase, summary, summary_table

    result = summary(TimingDatabase(parsed.database).rows(parsed.threads, parsed.machine))
    print(summary_table(result))
    timings = sum(row["count"] for row in result)
    lines = {"result": f"{counted(timings, 'timing')}, of {counted(len(result), 'kind')} of kernels"}
    ending(lines, *following_of(parsed, "export"), "timings.csv")
    return {"operators": result}


def run_explain(parsed) -> dict:
    from rlflow.costs.account import account, account_table
    from rlflow.costs.measured import latency
    from rlflow.costs.profiled import ProfiledCost
    from rlflow.costs.speeds import speeds_here
    from rlflow.graph.feeds import tried_feeds
    from rlflow.graph.typical import input_shapes, load_at
    from rlflow.runs.config import parse_shapes
    from rlflow.zoo import zoo_or_path

    if parsed.top < 1:
        raise RLFlowError("pass --top of at least 1")
    threads, source, shapes = threads_of(parsed), zoo_or_path(parsed.model), parse_shapes(parsed.shape)
    graph, (sizes, *_) = load_at(source, shapes)
    cost = ProfiledCost.open(threads, parsed.database)
    cost.database.check_here()
    rows = account(cost, graph.at(sizes), speeds_here(cost.database, threads))
    [inputs] = tried_feeds(source, (), shapes, threads).at({"": input_shapes(graph.interface, sizes)}, 0).values()
    measured_ms = latency(source, inputs, threads, LATENCY_SECONDS)
    print(account_table(rows, parsed.top))
    ms, bound_ms = (sum(row.cost.runtime_ps for row in rows) / 1e9, sum(row.bound_ps for row in rows) / 1e9)
    lines = {
        "result": f"{counted(sum(row.count for row in rows), 'kernel')} of {ms:.3f} ms, bound {bound_ms:.3f} ms",
        "sure": f"the whole model takes {measured_ms:.3f} ms, measured with {counted(threads, 'thread')}",
    }
    database = [setting("cost.database", parsed.database)] if parsed.database else []
    named = shape_words(shapes, fix=False)
    ending(lines, "optimise", parsed.model, "--out", "FASTER.onnx", "--threads", threads, *named, *database)
    kernels = [
        {
            "operators": row.operators, "shape": row.shape, "first_node": row.first, "count": row.count,
            "ms": row.cost.runtime_ps / 1e9, "bound_ms": row.bound_ps / 1e9, "flops": row.cost.flops,
            "bytes": row.cost.bytes,
        }
        for row in rows
    ]  # fmt: skip
    return {"threads": threads, "sizes": dict(sizes), "measured_ms": measured_ms, "kernels": kernels}


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
        raise RLFlowError("pass --seconds above 0")
    database, threads = TimingDatabase(parsed.database), threads_of(parsed)
    database.check_here()
    before = len(database.rows(threads))
    if calibrated(database, threads) is None:
        calibrate(database, threads)
    stopped = _search(parsed, threads, database.path)
    known = len(database.rows(threads))
    lines = {"result": f"{counted(known - before, 'kernel')} timed, {known} known with threads={threads}"}
    if stopped:
        lines["sure"] = f"rewrites may need more timings: {stopped}. The same command continues"
    ending(lines | {"file": database.path}, *following_of(parsed, "export"), "target.json")
    return {"new": known - before, "timings": known, "stopped": stopped}


def _search(parsed, threads: int, database: Path) -> str | None:
    """Run the searches of `optimise`, which store the timings of all kernels that they need.

    Returns:
      A text about what stopped the searches early, or None if they ended by themselves.
    """
    from rlflow.env.graph_rewrite import EnvSpec
    from rlflow.optimisation.anytime import BEST_SO_FAR_FILE, BestSoFar, search_all
    from rlflow.optimisation.budget import Stop
    from rlflow.runs.config import load_config, parse_shapes
    from rlflow.zoo import zoo_or_path

    sizes = tuple(parse_shapes(parsed.shape).items())
    spec = EnvSpec("", sizes, fix=parsed.fix, cost="profiled", threads=threads, database=str(database))
    config = load_config()
    with TemporaryDirectory() as folder:
        best = BestSoFar(spec.open(zoo_or_path(parsed.model)), Path(folder) / BEST_SO_FAR_FILE)
        try:
            methods = search_all(best, config.search, parsed.seconds, config.seed)["methods"]
        except Stop as stop:
            return str(stop)
    cut = [name for name, record in methods.items() if record["stop"] == "seconds" and name != "annealing"]
    return f"the time limit ended {cut[0]}" if cut else None  # annealing always uses all the time


def run_clear(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase

    if not parsed.yes and parsed.threads is None and parsed.machine is None:
        raise RLFlowError("this would delete every timing. Pass --yes, or choose timings with --threads or --machine")
    count = TimingDatabase(parsed.database).clear(parsed.threads, parsed.machine)
    ending({"result": f"{counted(count, 'timing')} deleted"}, *following_of(parsed, "show"))
    return {"deleted": count}


def run_calibrate(parsed) -> dict:
    from rlflow.costs.analytic import calibrated
    from rlflow.costs.database import TimingDatabase
    from rlflow.costs.speeds import measure_speeds

    database, threads = TimingDatabase(parsed.database), threads_of(parsed)
    measure_speeds(database, threads)
    result = calibrated(database, threads)
    text = f"{result.flop:.3g} ps a FLOP, {result.byte:.3g} ps a byte, {result.launch} ps a launch"
    lines = {"result": f"{text}, with {counted(threads, 'thread')}", "file": database.path}
    ending(lines, *optimise_with(parsed, "roofline", threads))
    return {"threads": threads, **result._asdict()}


def run_train(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase
    from rlflow.costs.predicted import prior_path
    from rlflow.costs.prior_training import samples_of, train

    data, facts = samples_of([TimingDatabase(path) for path in (parsed.database, *parsed.also)])
    prior, path = train(data, facts), Path(parsed.out or prior_path(parsed.database))
    prior.save(path)
    errors = prior.facts["left_out"]
    lines = {
        "result": f"learned from {counted(len(data), 'kernel')} of {counted(len(facts['machines']), 'machine')}",
        "sure": f"on sizes left out: median error {100 * errors['median_relative_error']:.1f} %, rank correlation "
        f"{errors['rank_correlation']:.3f}, and {100 * errors['within_80']:.0f} % in their 80 % intervals",
        "file": path,
    }
    ending(lines, *optimise_with(parsed, "predicted", max(facts["threads"])))
    return dict(prior.facts)
