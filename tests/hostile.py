"""Loads hostile files, each in a process of its own, and says what it cost: `python -m tests.hostile FILE...`

A file that is accepted is also shown to the agent and written again.
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

SECONDS, BYTES = 60, 8 << 30  # of computing, of memory: where a process is ended, so that nothing else suffers
LONG = 100_000  # operators; whoever asks for so many waits for the agent too


def tried(path: str, rules) -> dict:
    """What the file did: error and kind (None if it was accepted), seconds of the load, peak bytes."""
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
    started, seconds = time.process_time(), None  # which goes on only while this process computes
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
