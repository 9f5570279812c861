"""How far the best order lowers the peak of memory, and rewrites beyond it: `memory` on irregular and usual networks.

    python -m benchmarks.memory_rewrites                       whatever is not there yet
    python -m benchmarks.memory_rewrites --only unet           one network
    python -m benchmarks.memory_rewrites --rewrite 5           less time for the searches of what is not there yet

Resumable: every network is a file of --folder, one in its best order and one rewritten first. Of each: the peak of what
ONNX Runtime runs, as it is and in the best order (with what is proved of that); what runs add to resident memory;
latency. Peaks are what an ideal allocator needs; with arena, pattern and reuse off runs are predicted to add just that,
as it is and in the best order. The command checks that outputs are equal (bit for bit in another order alone), or
writes nothing.
"""

import sys
from math import prod
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

IRREGULAR = ("nasnet", "darts", "randwire", "unetpp", "hrnet", "hrnetv2", "training")  # the bars of orders are of them
USUAL = (
    "light_squeezenet", "light_densenet121", "light_inception_v1", "light_vgg19", "shufflenet_v2", "mobilenet_v2",
    "inception_v3", "resnet50",
)  # fmt: skip
DEFAULTS, BARE = "defaults", "no pattern, arena or reuse"
SHARE, PREDICTED, SLOWER = 0.80, 10.0, 0.02  # of the usual peak; % off the prediction; of the usual latency
FURTHER, WANTED = 10.0, 3  # % below the best order at least, on so many networks


def network(name: str, seconds: float, *words: str) -> dict:
    """What the command says of one."""
    with TemporaryDirectory() as folder:
        model, result = Path(folder) / "model.onnx", Path(folder) / "result.json"
        save_model(NETWORKS[name]() if name in NETWORKS else load(name), model)
        given = ["--threads", "1", "--seconds", str(seconds), "--slowdown", f"{100 * SLOWER:g}", *words]
        out = str(model.with_name("smaller.onnx"))
        code = command_line(["memory", str(model), "--out", out, *given, "--json", str(result)])
        if code:
            return {"error": code}
        said = read_json(result)
    sizes, rewritten, latency = said["bytes"], said["rewritten"], {row["setup"]: row["latency"] for row in said["rows"]}
    return {
        "written": said["written"], "usual": sizes["usual_peak"], "peak": sizes["peak"], "bound": sizes["bound"],
        "rules": rewritten and rewritten["rules"],
        "resident": {row["setup"]: [row["usual_bytes"], row["bytes"]] for row in said["rows"]},
        "setup": said["setup"], "latency": (latency[said["setup"]] or {}).get("ratio"),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    made = parser(__doc__.splitlines()[0], seeded=False)
    made.add_argument("--folder", type=Path, default=Path("runs/memory-rewrites"), help="where finished parts are kept")
    made.add_argument("--rewrite", type=float, default=60.0, metavar="S", help="seconds of a search")
    made.add_argument("--seconds", type=float, default=20.0, metavar="S", help="as `memory` has it")
    made.add_argument("--only", action="append", choices=(*NETWORKS, *USUAL), help="this network; repeatable")
    arguments = made.parse_args(argv)
    chosen = arguments.only or [*NETWORKS, *USUAL]
    parts = {"ordered": [], "rewritten": ["--rewrite", str(arguments.rewrite)]}
    figures = {
        part: each(chosen, arguments.folder / part, lambda name, words=words: network(name, arguments.seconds, *words))
        for part, words in parts.items()
    }
    return finish("memory_rewrites", arguments, figures, bars(figures), by_rules=False)


def bars(figures: dict) -> list[dict]:
    ran = {part: done(results) for part, results in figures.items()}
    both = [name for name in ran["ordered"] if name in ran["rewritten"]]
    lower = [name for name in both if further(figures, name) >= FURTHER]
    failed = sum(len(results) - len(ran[part]) for part, results in figures.items())
    what = f"networks on which rewrites lower the peak by {FURTHER:g} % beyond the best order"
    return [
        *order_bars({name: one for name, one in ran["ordered"].items() if name in IRREGULAR}),
        bar(what, len(lower), "networks", f"≥ {WANTED}", len(lower) >= WANTED),
        bar("runs that failed", failed, "runs", "0", failed == 0),
    ]


def order_bars(results: dict[str, dict]) -> list[dict]:
    """Of the irregular networks that ran in their best order, which all of them must have done."""
    count, complete = len(IRREGULAR), len(results) == len(IRREGULAR)
    shares = [one["peak"] / one["usual"] for one in results.values()]
    share = prod(shares) ** (1 / len(shares)) if shares else None
    near = sum(max(misses(one), default=PREDICTED + 1) <= PREDICTED for one in results.values())
    latencies = [latency(one) for one in results.values()]
    far = max(latencies, key=lambda ratio: abs(ratio - 1), default=None)
    kept = complete and abs(far - 1) <= SLOWER
    # The command fails where bits differ, and then there is no result.
    same = sum(one["written"] or one["peak"] == one["usual"] for one in results.values())
    prediction = "runs without arena, pattern and reuse add the peak to resident memory, before and after"
    return [
        bar("irregular: peak in the best order, of the usual one's, geometric mean", share, "", f"≤ {SHARE:.2f}",
            complete and share <= SHARE),
        bar(f"irregular: {prediction}, within {PREDICTED:g} %", near, "networks", f"{count}", near == count),
        bar("irregular: latency in the best order, of the original's, furthest from 1", far, "",
            f"{count} of 1.00 ± {SLOWER}", kept),
        bar("irregular: the same bits, or nothing to gain", same, "networks", f"{count}", same == count),
    ]  # fmt: skip


def done(results: dict[str, dict]) -> dict[str, dict]:
    return {name: one for name, one in results.items() if "error" not in one}


def misses(one: dict) -> list[float]:
    """By how many percent resident memory without arena, pattern and reuse is off the peak: as it is, and of the file
    if one was written; none where it is not known.
    """
    pairs = zip(one["resident"][BARE], (one["usual"], one["peak"]), strict=True)
    measured = [abs(size / peak - 1) * 100 for size, peak in pairs if size is not None]
    return measured if one["written"] else measured[:1]


def latency(one: dict) -> float:
    """Of what was chosen, as a share of the original's with the defaults: the same, if it is that."""
    return one["latency"] or 1.0


def further(figures: dict, name: str) -> float:
    """By how many percent the rewritten peak lies below that of the best order."""
    return 100 * (1 - figures["rewritten"][name]["peak"] / figures["ordered"][name]["peak"])


def order_table(figures: dict) -> str:
    rows = []
    for name, one in figures["ordered"].items():
        if "error" in one:
            rows.append([name, *["–"] * 9])
            continue
        proved = "yes" if one["peak"] == one["bound"] else f"≥ {one['bound'] / 1e6:.3f}"
        off = ", ".join(f"{miss:.1f}" for miss in misses(one)) or "–"
        rows.append([name, one["setup"], proved, *megabytes(one["usual"], one["peak"]),
                     f"{one['peak'] / one['usual']:.3f}", arrow(one, BARE), off, arrow(one, DEFAULTS),
                     f"{latency(one):.3f}"])  # fmt: skip
    heads = ["network", "setup that needs least", "proved", "peak as it is, MB", "best order", "share",
             "resident without arena, pattern and reuse, MB", "off the peak, %", "with the defaults, MB",
             "latency, of the original's"]  # fmt: skip
    return markdown(heads, rows, words=3)


def rewrites_table(figures: dict) -> str:
    rows = []
    for name, one in figures["rewritten"].items():
        ordered = figures["ordered"][name]
        if "error" in one or "error" in ordered:
            rows.append([name, *["–"] * 7])
            continue
        count = sum((one["rules"] or {}).values())
        rows.append([name, *megabytes(one["usual"], ordered["peak"], one["peak"]), f"{further(figures, name):.1f}",
                     count, arrow(one, BARE), f"{latency(one):.2f}"])  # fmt: skip
    heads = ["network", "peak as it is, MB", "best order", "rewritten", "% below the best order", "rewrites",
             "resident without arena, pattern and reuse, MB", "latency, of the original's"]  # fmt: skip
    return markdown(heads, rows)


def megabytes(*sizes: int | None) -> list[str]:
    return ["–" if size is None else f"{size / 1e6:.3f}" for size in sizes]


def arrow(one: dict, setup: str) -> str:
    """Resident memory with a setup, before and after."""
    return " → ".join(megabytes(*one["resident"][setup]))


if __name__ == "__main__":
    sys.exit(main())
