"""Latencies of exported models after optimisation by RLFlow and by other tools, measured in the same sessions.

    python -m benchmarks.exports [--exporter-python PATH] [--file NAME] [--half HALF]

Every model of the judgement half of `benchmarks.exports.corpus` is exported to a file. onnxsim, onnxslim, onnxscript's
optimiser and ONNX Runtime's optimiser for transformers each write an optimised file. So does `run.py optimise`, with 60
seconds and an empty timing database. Then the original and all optimised files run in turns, each in its own process.
OpenVINO runs the original for reference. All models run with one thread, and every sixth model also with two threads.
The last table shows where the time of RLFlow's files goes: the sum of their kernels beside its bound
(`rlflow.costs.account`), and the kernels with the most time above their bounds.

Exporters and tools need a separate Python environment: `pip install '.[exports]' -c
benchmarks/exports/constraints.txt`. Exported files are kept in runs/exports.
"""

import filecmp
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.exports.corpus import CORPUS, HALVES, JUDGEMENT, MADE_FROM, draw, of_half
from benchmarks.exports.peers import PEERS, attempted
from benchmarks.exports.together import ORIGINAL, Contestant, Together, together
from benchmarks.record import Record, RecordError, Table, parser, run
from benchmarks.shared import NOTHING, ROOT, number, ratio, run_rlflow
from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash, read_json, write_json
from rlflow.costs.measured import Ratio
from rlflow.optimisation.validate import validate

MODELS = ROOT / "runs" / "exports"
EXPORTING = "corpus", "make", "networks", "image_networks", "sound_networks"  # files that determine an exported file
OURS, OPENVINO = "RLFlow", "OpenVINO"
SEEDS = (100, 101, 102)  # seeds of random inputs that `optimise` has not used
# `--seconds` of optimise; seconds of all runs of one measurement; number of sessions of a measurement.
OPTIMISE_SECONDS, MEASURE_SECONDS, SESSIONS = 60, 40.0, 6
MOST_KERNELS = 4  # kernels that the table "kernels" names for each file
OTHER_MODEL = 0.02  # a file whose relative error exceeds this value counts as another model and is not compared


# -- one file ----------------------------------------------------------------------------------------


def exported(name: str, python: str) -> Path:
    """Return the path of an exported file of the corpus; export the file first unless these versions have exported it.

    Args:
        name: key of CORPUS.
        python: path of the Python interpreter that has the exporters.

    Raises:
        RLFlowError: the exporter failed.
    """
    path, code = MODELS / f"{name}.onnx", Path(__file__).parent
    noted = path.with_suffix(".made-by.json")
    made_by = {"versions": tool_versions(python), "code": file_hash(*(code / f"{file}.py" for file in EXPORTING))}
    if not path.exists() or not noted.exists() or read_json(noted) != made_by:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.onnx")
        command = [python, "-m", "benchmarks.exports.make", name, str(part)]
        if CORPUS[name].exporter in MADE_FROM:
            command += ["--source", str(exported(CORPUS[name].network, python))]
        result = attempted(command, part)
        if "error" in result:
            raise RLFlowError(f"{name} could not be exported: {result['error']}")
        part.rename(path)
        write_json(noted, made_by)
    return path


def examine(name: str, threads: list[int], python: str) -> dict:
    """Optimise a file by RLFlow and by the other tools, and measure the resulting files.

    Args:
        name: key of CORPUS.
        threads: the numbers of threads with which RLFlow optimises and all files are measured.
        python: path of the Python interpreter that has the exporters and tools.

    Returns:
        "tools": tool → result of `attempted`. "threads": number of threads → {"ours": result of `optimised`,
            "contestants": result of `measure_all`}. "megabytes": size of the exported file.
    """
    source, result = exported(name, python), {}
    with TemporaryDirectory() as folder:
        tools = {}
        for tool in PEERS:
            path = Path(folder, f"{tool}.onnx")
            command = [python, "-m", "benchmarks.exports.peers", tool, str(source), str(path), CORPUS[name].family]
            tools[tool] = attempted(command, path)
        for count in threads:
            ours = optimised(source, Path(folder, f"{OURS}.onnx"), count)
            measured = measure_all(name, source, Path(folder), count, python)
            result[str(count)] = {"ours": ours, "contestants": measured}
    return {"tools": tools, "threads": result, "megabytes": source.stat().st_size / 1e6}


def optimised(source: Path, out: Path, threads: int) -> dict:
    """Run `run.py optimise` with an empty timing database and compare the outputs of both files on new inputs.

    Args:
        source: the original.
        out: path of the optimised file.
        threads: number of threads for which the command optimises.

    Returns:
        "equal": True if the outputs are equal. "seconds": duration of the command. "kernels": kernels of the optimised
            file, as `run.py costs explain --json` lists them.
    """
    with TemporaryDirectory() as folder:
        seconds = run_rlflow(
            "optimise", source, "--out", out, "--run", Path(folder, "run"), "--threads", threads,
            "--seconds", OPTIMISE_SECONDS, f"cost.database={folder}/costs.sqlite",
        )  # fmt: skip
        words = "explain", out, "--threads", threads, "--database", f"{folder}/costs.sqlite"
        run_rlflow("costs", *words, "--json", f"{folder}/kernels.json")
        kernels = read_json(f"{folder}/kernels.json")["kernels"]
    findings = validate(source, out, seeds=SEEDS, threads=threads)
    return {"equal": findings.ok, "seconds": seconds, "kernels": kernels}


def measure_all(name: str, source: Path, folder: Path, threads: int, python: str) -> dict[str, dict]:
    """Measure the original and the files of all tools in turns, and return the result of `figures_of`.

    Args:
        name: key of CORPUS, which determines the inputs.
        source: the original.
        folder: folder with one file TOOL.onnx for each tool that has not failed.
        threads: number of threads inside one operator.
        python: path of the Python interpreter that has OpenVINO.
    """
    files = {tool: folder / f"{tool}.onnx" for tool in (OURS, *PEERS) if (folder / f"{tool}.onnx").exists()}
    same = [tool for tool, path in files.items() if filecmp.cmp(path, source, shallow=False)]
    contestants = {
        ORIGINAL: Contestant(source, "onnxruntime", sys.executable),
        OPENVINO: Contestant(source, "openvino", python),
    }
    for tool, path in files.items():
        if tool not in same:
            contestants[tool] = Contestant(path, "onnxruntime", sys.executable)
    inputs = draw(CORPUS[name].inputs, 1000)
    return figures_of(together(contestants, inputs, threads, MEASURE_SECONDS, SESSIONS, 0), same)


def figures_of(result: Together, same: list[str]) -> dict[str, dict]:
    """Return the figures of each contestant as JSON values.

    Args:
        result: the measurement.
        same: tools whose file equals the original byte for byte. Such a file was not run; it gets the original's
            figures.

    Returns:
        name → "ms": median latency in milliseconds; "relative_error": largest error of an output; "ratio" and
            "interval": latency / latency of the original; for a tool also "ours": ratio and interval of RLFlow's
            latency / the tool's latency. A contestant that could not be run has only "failed", the reason.
    """
    figures: dict[str, dict] = {name: {"failed": why} for name, why in result.failed.items()}
    stands_for = {name: name for name in result.seconds if name not in result.failed} | dict.fromkeys(same, ORIGINAL)
    for name, measured in stands_for.items():
        figures[name] = {
            "ms": result.ms(measured), "relative_error": result.errors[measured],
            **between(result, measured, ORIGINAL),
        }  # fmt: skip
        if OURS in stands_for and name in PEERS:
            figures[name]["ours"] = between(result, stands_for[OURS], measured)
    return figures


def between(result: Together, one: str, other: str) -> dict:
    found = Ratio(1.0, 1.0, 1.0) if one == other else result.ratio(one, other, seed=0)
    return {"ratio": found.ratio, "interval": [found.low, found.high]}


# -- tables ------------------------------------------------------------------------------------------


def is_comparable(one: dict | None) -> bool:
    """Return True if a contestant ran and its relative error is at most OTHER_MODEL; False for None.

    Args:
        one: the contestant's figures, see `figures_of`.
    """
    return bool(one) and "failed" not in one and one["relative_error"] <= OTHER_MODEL


def tables(figures: dict[str, dict]) -> dict[str, Table]:
    """Return the tables "files", "tools" and "kernels".

    Args:
        figures: key of CORPUS → result of `examine`.
    """
    files, all_ratios = [], {name: [] for name in (OURS, *PEERS, OPENVINO)}
    failed = dict.fromkeys(all_ratios, 0)
    for name, one in figures.items():
        by_threads = {count: run["contestants"] for count, run in one["threads"].items()}
        first = by_threads["1"]
        comparable = [tool for tool in PEERS if is_comparable(first.get(tool))]
        best = min(comparable, key=lambda tool: first[tool]["ratio"], default=None)
        for who, ratios in all_ratios.items():
            failed[who] += not is_comparable(first.get(who))
            ratios.append(first[who]["ratio"] if is_comparable(first.get(who)) else 1.0)  # the user keeps the original
        runs = list(one["threads"].values())
        files.append([
            name, number(one["megabytes"], 0), ratio(first.get(OURS)), ratio(by_threads.get("2", {}).get(OURS)),
            f"{best}: {first[best]['ratio']:.3f}" if best else NOTHING,
            ratio(first[best].get("ours")) if best else NOTHING,
            "yes" if all(run["ours"]["equal"] for run in runs) else "no", number(runs[0]["ours"]["seconds"], 0),
        ])  # fmt: skip
    tools = []
    for who, ratios in all_ratios.items():
        mean = number(float(np.exp(np.mean(np.log(ratios)))), 3)
        tools.append([who, len(ratios) - failed[who], mean, sum(one < 1 for one in ratios), failed[who]])
    heads = ["file and exporter", "MB", "RLFlow, 1 thread (95 %)", "2 threads", "best tool", "RLFlow / best tool"]
    heads += ["equal", "seconds"]
    mean_head = "geometric mean of latency ratios, 1 thread; 1 for a failure"
    tool_heads = ["tool", "files", mean_head, "faster than the original"]
    kernels = [[name, *kernel_cells(one["threads"]["1"]["ours"]["kernels"])] for name, one in figures.items()]
    kernel_heads = ["RLFlow's file", "kernels, ms", "bound, ms", "time / bound"]
    return {
        "files": Table(heads, files),
        "tools": Table([*tool_heads, "failed or another model"], tools),
        "kernels": Table([*kernel_heads, "most time above the bound (share of all time)"], kernels),
    }


def kernel_cells(kernels: Sequence[dict]) -> list[str]:
    """Return the cells of the table "kernels" of one file.

    Args:
        kernels: the kernels, those with the most time above their bound first.
    """
    ms, bound = (sum(one[key] for one in kernels) for key in ("ms", "bound_ms"))
    most = []
    for one in kernels[:MOST_KERNELS]:
        shape = "×".join(map(str, one["shape"] or ()))
        most.append(f"{one['count']} {one['operators']} {shape} {(one['ms'] - one['bound_ms']) / ms:.0%}")
    return [number(ms, 2), number(bound, 2), number(ms / bound, 1), "; ".join(most)]


def tool_versions(python: str) -> str:
    """Return the versions of exporters and tools, for instance "torch 2.13.0, transformers 5.1.0, …".

    Args:
        python: path of the Python interpreter that has the exporters and tools.

    Raises:
        RecordError: an exporter or a tool is not installed for this interpreter.
    """
    names = ("torch", "transformers", "onnxscript", "onnxsim", "onnxslim", "openvino")
    code = f"from importlib.metadata import version; print(', '.join(f'{{n}} {{version(n)}}' for n in {names}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise RecordError(
            f"{python} has no exporters. Make an environment with pip install '.[exports]' "
            "-c benchmarks/exports/constraints.txt and pass --exporter-python PATH."
        )
    return done.stdout.strip()


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--file", action="append", choices=list(CORPUS), metavar="NAME", help="one file; repeatable")
    arguments.add_argument("--half", choices=HALVES, default=JUDGEMENT, help="the files of this half")
    arguments.add_argument("--exporter-python", default=sys.executable, metavar="PATH", help="has exporters and tools")
    parsed = arguments.parse_args()
    parsed.versions, names = tool_versions(parsed.exporter_python), parsed.file or of_half(parsed.half)
    record = Record("exports", parsed)
    threads = {name: [1, 2] if k % 6 == 0 else [1] for k, name in enumerate(names)}
    figures = record.all_parts({name: (examine, name, threads[name], parsed.exporter_python) for name in names})
    ratios = "Ratios are shares of the original's latency; below 1 is faster."
    note = f"The {parsed.half} half, with {parsed.versions}. {ratios}"
    record.publish(tables(figures), note)
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
