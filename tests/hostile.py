"""Program that loads hostile ONNX files, each in its own process, and prints the result and the resources used.

    python -m tests.hostile FILE...

For an accepted file, the observation arrays are computed and the model is written, too.
"""

import json
import os
import sys
import time

import psutil

from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.language import load_rules

SECONDS, BYTES = 120, 8 << 30  # limits of processor time and of memory at which a process is ended; tests allow less
LONG = 100_000  # number of nodes from which on a model is only loaded


def tried(path: str, rules) -> dict:
    """Load a file in a forked process with limited time and memory.

    Args:
        path: the file.
        rules: the rule set.

    Returns:
        "error" and "kind": message and class name of the exception, or None if the file was accepted; the kind is
            "death" if the process died. "seconds": processor time of loading. "peak": peak memory in bytes.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        process = psutil.Process()
        process.rlimit(psutil.RLIMIT_CPU, (SECONDS, SECONDS))
        process.rlimit(psutil.RLIMIT_AS, (BYTES, BYTES))
        os.write(writer, json.dumps(outcome(path, rules)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    _, status, usage = os.wait4(child, 0)
    result = json.loads(said) if said else {"error": f"died with status {status}", "kind": "death", "seconds": None}
    return result | {"peak": 1024 * usage.ru_maxrss}


def outcome(path: str, rules) -> dict:
    started, seconds = time.process_time(), None  # processor time, so that other processes do not count
    try:
        graph = load_graph(path)
        seconds = time.process_time() - started
        if len(graph.nodes) < LONG:
            Task(graph, rules, AnalyticCost()).initial.arrays()
            to_model(graph)
        return {"error": None, "kind": None, "seconds": seconds}
    except Exception as error:
        return {"error": str(error), "kind": type(error).__name__, "seconds": seconds or time.process_time() - started}


if __name__ == "__main__":
    rules = load_rules()
    for path in sys.argv[1:]:
        print(json.dumps(tried(path, rules)), flush=True)
