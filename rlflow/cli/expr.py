"""The command `expr`: find a cheaper form of a functional program."""

from pathlib import Path

from rlflow.cli.command import add_command, ending
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.common.messages import counted, progress_bar

MACROS, SHARING = "macros", "sharing"
TEXT = "find a cheaper form of a functional program (the ksc language of Knossos)"
PAGE = """\
Rewrites a program of the ksc language for a lower cost.

    %(prog)s FILE.ks --out CHEAPER.ks --seconds 30

FILE.ks is a file of definitions, of which the last one is the program (FILE.ks:NAME names another one); a recorded
program such as blas_test/gemm; or an expression such as "(mul (div x x) x)". The cost model counts operations, with 16
elements for every vector. Beside CHEAPER.ks lie its receipt, its C and a picture of the costs on the path. The result
is compared with the original on random inputs, in NumPy and as compiled C if there is a compiler.

CHEAPER.receipt.json makes the same file again:

    %(prog)s FILE.ks --out AGAIN.ks --receipt CHEAPER.receipt.json"""


def add(commands) -> None:
    command = add_command(commands, "expr", run, TEXT, PAGE)
    command.add_argument("model", metavar="FILE.ks", help="file, recorded program or expression")
    command.add_argument("--out", required=True, metavar="FILE", help="file for the program")
    command.add_argument("--seconds", type=float, default=30.0, metavar="S", help="time limit (default: 30)")
    command.add_argument("--rules", default="ml", metavar="SET", help="simplify, binding, both, ml or ml-no-bind")
    methods = (
        "macros (learnt, guided by a sketch), sharing (arithmetic without lets, which are put back), greedy, beam, "
        "annealing, best-first, grasp or random (default: macros)"
    )
    command.add_argument("--method", default=MACROS, metavar="NAME", help=methods)
    command.add_argument("--seed", type=int, default=0, help="seed of every random choice")
    bound = "for arithmetic: also state the cheapest equal expression (needs pip install '.[expressions]')"
    command.add_argument("--bound", action="store_true", help=bound)
    command.add_argument("--receipt", metavar="R.json", help="repeat the steps of this receipt in place of a search")


def run(parsed) -> dict:
    from rlflow.cli.expr_delivery import check, is_equal, replay, write_result
    from rlflow.tasks.expressions.syntax import UNITS, Program
    from rlflow.tasks.expressions.task import named_program

    program, out = named_program(parsed.model), Path(parsed.out)
    if out.resolve() in (Path(parsed.model).resolve(), Path(parsed.model.rpartition(":")[0]).resolve()):
        raise RLFlowError("--out is the file of the program; pass another file")
    if out.suffix in (".png", ".c"):
        raise RLFlowError(f"a file *{out.suffix} is written beside the program, so --out cannot be one. Pass *.ks")
    bound = bound_of(program) if parsed.bound else None  # before the search, because it can be refused
    if parsed.receipt:
        states, actions = replay(read_json(parsed.receipt), program)
        how = "repeated"
    else:
        states, actions, how = found_by_search(parsed, program)
    before, after = states[0].objective / UNITS, states[-1].objective / UNITS
    peak = max(state.objective for state in states) / UNITS
    checked = check(program, Program(program.name, states[-1].expr))
    if not is_equal(checked):
        raise RLFlowError(f"the result differs from the program on random inputs: {checked}. Please report this")
    files = write_result(states, actions, checked, out)
    known = f"{before:,.1f} → {after:,.1f} ({100 * (1 - after / before) if before else 0:.2f} % lower)"
    lines = {
        "result": f"cost {known} in {counted(len(actions), 'step')}, highest cost on the way {peak:,.1f}; {how}",
        "sure": certainty(checked),
    }
    if bound is not None:
        lines["bound"] = bound
    ending(lines | files, "expr", parsed.model, "--out", again(out), "--receipt", files["receipt"])
    return {"before": before, "after": after, "peak": peak, "steps": len(actions), "check": checked}


def found_by_search(parsed, program) -> tuple:
    """Return (states, actions, how the search ended) of the best path that a search finds."""
    from rlflow.optimisation.candidates import states_along
    from rlflow.runs.config import load_config
    from rlflow.search import SEARCHES
    from rlflow.search.base import Limits, run_search
    from rlflow.search.macros import macro_search
    from rlflow.tasks.expressions.sharing import sharing_search
    from rlflow.tasks.expressions.sketches import inlined, learnt_macros
    from rlflow.tasks.expressions.state import ExpressionTask, rules_of

    if parsed.method not in (MACROS, SHARING):
        SEARCHES.check(parsed.method)
    if parsed.method == "taso":
        raise RLFlowError("taso searches graphs, not expressions; pass another --method, for example descent")
    if not parsed.seconds > 0:
        raise RLFlowError("pass --seconds above 0")
    if parsed.seed < 0:
        raise RLFlowError("pass --seed from 0")
    config = load_config()
    task = ExpressionTask(program, rules_of(parsed.rules), config.env.max_locations)
    with progress_bar(None, parsed.method, " rewrites") as bar:
        limits = Limits(parsed.seconds, memory=config.search.memory_mb * 2**20)
        if parsed.method == MACROS:
            method, options = macro_search, {"macros": learnt_macros(task.rules), "sketch": inlined}
        elif parsed.method == SHARING:
            method, options = sharing_search, {}
        else:
            method, options = parsed.method, config.search[parsed.method]
        answer = run_search(method, task.initial, limits, parsed.seed, bar, **options)
    how = f"{parsed.method} stopped by '{answer.stop}' after {answer.interactions} rewrites"
    return states_along(task, answer.actions), answer.actions, how


def bound_of(program) -> str:
    """Return a sentence about the cheapest expression of the e-graph."""
    from rlflow.tasks.expressions.certificate import cheapest
    from rlflow.tasks.expressions.cost import cost_of
    from rlflow.tasks.expressions.syntax import UNITS, to_text

    found = cheapest(program.expr)
    cost = f"{cost_of(found.expr) / UNITS:,.1f}: {to_text(found.expr)}"
    if found.limit is None:
        return f"the cheapest of {found.nodes:,} nodes of an e-graph costs {cost} (the e-graph is not complete)"
    most = f"{found.limit / UNITS:,.1f}"
    return f"no expression that the rules of arithmetic reach, by expressions of at most {most}, costs less than {cost}"


def certainty(checked: dict) -> str:
    if checked["difference"] is None:
        return f"not compared on inputs: {checked['reason']}"
    text = f"equal on random inputs (relative difference {checked['difference']:.1e})"
    if checked["c"] is not None:
        return f"{text}; its compiled C too ({checked['c']:.1e})"
    return text + (f"; not compared in C: {checked['reason']}" if checked["reason"] else "")


def again(out: Path) -> Path:
    return out.with_name(f"{out.stem}.again{out.suffix}")
