"""What rewrites lower the peak of memory by, beyond the best order: `memory --rewrite` on irregular and usual networks.

    python -m benchmarks.memory_rewrites                       whatever is not there yet
    python -m benchmarks.memory_rewrites --only unet           one network
    python -m benchmarks.memory_rewrites --rewrite 5           less time for the searches of what is not there yet

Resumable: every network is a file of --folder. Of each: the peak of what ONNX Runtime runs, as it is, in its best order
(with what is proved of that) and rewritten; what runs add to resident memory without reuse, nearest to the peak;
latency. The command checks that outputs are equal, or writes nothing.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.irregular import NETWORKS
from rlflow.cli.main import main as command_line
from rlflow.common.files import read_json
from rlflow.graph.onnx_writer import save_model
from rlflow.zoo import load

JUDGES = (
    "benchmarks/irregular.py", "rlflow/costs/groups.py", "rlflow/costs/memory", "rlflow/rules/concat.rules",
    "rlflow/rules/memory.rules", "rlflow/search/beam.py", "rlflow/tasks/ordering",
)  # fmt: skip

USUAL = (
    "light_squeezenet", "light_densenet121", "light_inception_v1", "light_vgg19", "shufflenet_v2", "mobilenet_v2",
    "inception_v3", "resnet50",
)  # fmt: skip
BARE = "no pattern, arena or reuse"
FURTHER, WANTED = 10.0, 3  # % below the best order at least, on so many networks


def network(name: str, rewrite: float, seconds: float) -> dict:
    """What the command says of one."""
    with TemporaryDirectory() as folder:
        model, result = Path(folder) / "model.onnx", Path(folder) / "result.json"
        save_model(NETWORKS[name]() if name in NETWORKS else load(name), model)
        words = ["memory", str(model), "--out", str(model.with_name("smaller.onnx")), "--threads", "1"]
        code = command_line([*words, "--rewrite", str(rewrite), "--seconds", str(seconds), "--json", str(result)])
        if code:
            return {"error": code}
        said = read_json(result)
    rows = {row["setup"]: row for row in said["rows"]}
    sizes, rewritten = said["bytes"], said["rewritten"]
    return {
        "usual": sizes["usual_peak"], "order": rewritten["best_order"] if rewritten else sizes["peak"],
        "peak": sizes["peak"], "bound": sizes["bound"], "rules": rewritten and rewritten["rules"],
        "resident": [rows[BARE]["usual_bytes"], rows[BARE]["bytes"]], "setup": said["setup"],
        "latency": (rows[said["setup"]]["latency"] or {}).get("ratio"),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    made = parser(__doc__.splitlines()[0], seeded=False)
    made.add_argument("--folder", type=Path, default=Path("runs/memory-rewrites"), help="where finished parts are kept")
    made.add_argument("--rewrite", type=float, default=60.0, metavar="S", help="seconds of a search")
    made.add_argument("--seconds", type=float, default=20.0, metavar="S", help="as `memory` has it")
    made.add_argument("--only", action="append", choices=(*NETWORKS, *USUAL), help="this network; repeatable")
    arguments = made.parse_args(argv)
    chosen = arguments.only or [*NETWORKS, *USUAL]
    figures = each(chosen, arguments.folder, lambda name: network(name, arguments.rewrite, arguments.seconds))
    return finish("memory_rewrites", arguments, figures, bars(figures), by_rules=False)


def bars(figures: dict) -> list[dict]:
    done = {name: one for name, one in figures.items() if "error" not in one}
    lower = [name for name, one in done.items() if further(one) >= FURTHER]
    what = f"networks on which rewrites lower the peak by {FURTHER:g} % beyond the best order"
    return [
        bar(what, len(lower), "networks", f"≥ {WANTED}", len(lower) >= WANTED),
        bar("networks that failed", len(figures) - len(done), "networks", "0", len(done) == len(figures)),
    ]


def further(one: dict) -> float:
    """By how many percent the rewritten peak lies below that of the best order."""
    return 100 * (1 - one["peak"] / one["order"])


def table(figures: dict) -> str:
    rows = []
    for name, one in figures.items():
        if "error" in one:
            rows.append([name, *["–"] * 7])
            continue
        resident = ["–" if size is None else f"{size / 1e6:.2f}" for size in one["resident"]]
        count = sum((one["rules"] or {}).values())
        latency = f"{one['latency']:.2f}" if one["latency"] else "–"
        megabytes = (f"{one[what] / 1e6:.3f}" for what in ("usual", "order", "peak"))
        rows.append([name, *megabytes, f"{further(one):.1f}", count, " → ".join(resident), latency])
    heads = ["network", "peak as it is, MB", "best order", "rewritten", "% below the best order", "rewrites",
             "resident without reuse, MB", "latency, of the original's"]  # fmt: skip
    return markdown(heads, rows)


if __name__ == "__main__":
    sys.exit(main())
