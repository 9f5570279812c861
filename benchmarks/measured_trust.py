"""Whether the measured cost can be believed: a file beside itself, and beside itself with 5 % of work added.

    python -m benchmarks.measured_trust [--model NAME] [--seconds S]

An A/A comparison must say `no difference shown`, one with the planted work `slower`. The work is a chain of matrix
products that hangs on the model's input and is added to its output times zero. How much it is does not come from the
comparison that is judged: ONNX Runtime's own profile of the planted model's runs states the time of the planted kernels
beside the rest of a run, and the number of rows is tuned until it is 5 %.

Resumable: each comparison lies in --folder. One takes as long as --seconds says, and what making its sessions takes.
"""

import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from benchmarks.harness import bar, each, finish, parser
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json
from rlflow.costs.measured import measure
from rlflow.graph.onnx_runtime import PROVIDERS, random_inputs
from rlflow.zoo import load

JUDGES = ("rlflow/costs/measured.py", "rlflow/costs/timing.py")

MODELS = (
    "light_squeezenet", "light_shufflenet", "light_inception_v1", "light_inception_v2", "light_densenet121",
    "squeezenet1_1", "shufflenet_v2", "mobilenet_v2", "resnet18", "light_resnet50",
)  # fmt: skip
REPEATS = 2  # comparisons of each kind a model
SAME, PLANTED = "no difference shown", "slower"
LEAST = {SAME: 0.95, PLANTED: 0.9}  # 19 and 18 of 20
SHARE, WITHIN = 0.05, 0.005  # of a run without the planted kernels
WIDTH, PRODUCTS = 128, 8  # of a planted chain: [rows, WIDTH] × [WIDTH, WIDTH], so many times
PREFIX = "planted_"
MOST_TRIES, RUNS, WARM_UPS, SESSIONS = 10, 30, 3, 3  # while tuning


def planted(model: onnx.ModelProto, rows: int) -> onnx.ModelProto:
    """The model with a chain of products of so many rows, which no optimiser can remove and which adds zero."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    weights = {tensor.name for tensor in graph.initializer}
    given, out = next(value for value in graph.input if value.name not in weights), graph.output[0].name
    for node in graph.node:
        node.input[:] = [f"{PREFIX}{name}" if name == out else name for name in node.input]
        node.output[:] = [f"{PREFIX}{name}" if name == out else name for name in node.output]
    rng = np.random.default_rng(0)
    constants = {
        "rows": rng.standard_normal((rows, WIDTH), np.float32),
        "weight": rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5),
        "zero": np.float32(0),
    }
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), PREFIX + name) for name, array in constants.items()
    )
    steps = [
        ("Cast", [given.name], "float", {"to": onnx.TensorProto.FLOAT}),
        ("ReduceMean", [f"{PREFIX}float"], "mean", {"keepdims": 0}),
        ("Mul", [f"{PREFIX}mean", f"{PREFIX}rows"], "product0", {}),
        *(("MatMul", [f"{PREFIX}product{k}", f"{PREFIX}weight"], f"product{k + 1}", {}) for k in range(PRODUCTS)),
        ("ReduceMean", [f"{PREFIX}product{PRODUCTS}"], "result", {"keepdims": 0}),
        ("Mul", [f"{PREFIX}result", f"{PREFIX}zero"], "nothing", {}),
    ]
    for op, inputs, name, attributes in steps:
        graph.node.append(helper.make_node(op, inputs, [PREFIX + name], name=PREFIX + name, **attributes))
    graph.node.append(helper.make_node("Add", [PREFIX + out, f"{PREFIX}nothing"], [out], name=f"{PREFIX}sum"))
    return result


def planted_share(model: onnx.ModelProto, threads: int, sessions: int = SESSIONS) -> float:
    """Time of the planted kernels / time of the rest of a run, medians over runs; the mean of some sessions."""
    return float(np.mean([_share(model, threads) for _ in range(sessions)]))


def _share(model: onnx.ModelProto, threads: int) -> float:
    # as `measure` does
    inputs, clock = random_inputs(model, 0), time.thread_time if threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder, "profile"))
        running = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=PROVIDERS)
        runs = []
        for _ in range(WARM_UPS + RUNS):
            start = clock()
            running.run(None, inputs)
            runs.append(clock() - start)
        events = read_json(running.end_profiling())
    kernels = defaultdict(list)
    for event in events:
        if event["name"].startswith(PREFIX) and event["name"].endswith("_kernel_time"):
            kernels[event["name"]].append(event["dur"] + 0.5)  # whole microseconds, rounded down
    own = 1e-6 * sum(float(np.median(durations[WARM_UPS:])) for durations in kernels.values())
    return own / (float(np.median(runs[WARM_UPS:])) - own)


def plant(model: onnx.ModelProto, threads: int) -> tuple[onnx.ModelProto, float]:
    """The model with 5 % of work added, and how much it is in fresh sessions.

    Raises RLFlowError if it cannot be tuned: the machine is too busy, or one row more is too much.
    """
    rows = 16
    for _ in range(MOST_TRIES):
        result = planted(model, rows)
        share = planted_share(result, threads)
        if abs(share - SHARE) <= WITHIN / 2:
            again = planted_share(result, threads)
            if abs(again - SHARE) <= WITHIN:
                return result, again
            share = (share + again) / 2
        rows = max(1, round(rows * SHARE / share))
    raise RLFlowError(f"could not plant {SHARE:.0%} of work: the last try was {share:.1%}, with {rows} rows")


def compare(name: str, kind: str, repeat: int, parsed) -> dict:
    model = load(name, parsed.seed)
    other, share = plant(model, parsed.threads) if kind == PLANTED else (model, 0.0)
    result = measure(model, other, parsed.threads, parsed.seconds, parsed.sessions, parsed.seed + repeat, memory=False)
    keys = ("ratio", "interval", "verdict", "original_ms", "pairs", "sessions", "session_ratios", "stopped")
    return {"model": name, "expected": kind, "planted_share": share} | {key: result[key] for key in keys}


def bars_of(result: dict[str, dict]) -> list[dict]:
    bars = []
    for kind, least in LEAST.items():
        verdicts = [one["verdict"] for one in result.values() if one["expected"] == kind]
        right, needed = verdicts.count(kind), least * len(verdicts)
        bars.append(bar(f"called '{kind}', as is true", right, f"of {len(verdicts)}", f"≥ {needed:g}", right >= needed))
    worst = max(
        (abs(one["planted_share"] - SHARE) for one in result.values() if one["expected"] == PLANTED), default=0.0
    )
    bars.append(bar("planted work, farthest from 5 %", 100 * worst, "points", f"≤ {100 * WITHIN:g}", worst <= WITHIN))
    return bars


def table(result: dict[str, dict]) -> str:
    lines = [
        "| model | truth | planted | measured ratio (95 % interval) | verdict | sessions |",
        "| --- | --- | ---: | --- | --- | ---: |",
    ]
    for one in result.values():
        low, high = one["interval"]
        cells = (
            f"{100 * one['planted_share']:.2f} %", f"{one['ratio']:.3f} ({low:.3f} – {high:.3f})", one["verdict"],
            one["sessions"],
        )  # fmt: skip
        lines.append(f"| {one['model']} | {one['expected']} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--model", action="append", help="one model only; repeatable")
    arguments.add_argument("--seconds", type=float, default=20.0, help="for the pairs of one comparison, at most")
    arguments.add_argument("--sessions", type=int, default=10, help="pairs of sessions of one comparison, at most")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument(
        "--folder", type=Path, default=Path("runs/measured_trust"), help="where comparisons are kept"
    )
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    parsed = arguments.parse_args()
    jobs = {
        f"{name}-{kind.split()[0]}-{repeat}": (name, kind, repeat)
        for name in parsed.model or MODELS for kind in LEAST for repeat in range(REPEATS)
    }  # fmt: skip
    folder = parsed.folder / f"threads-{parsed.threads}"
    result = each(list(jobs), folder, lambda job: compare(*jobs[job], parsed))
    if parsed.table:
        print(table(result))
        return 0
    return finish("measured_trust", parsed, result, bars_of(result), by_rules=False)


if __name__ == "__main__":
    sys.exit(main())
