"""Observation of a session of ONNX Runtime: the order in which nodes run, and the block that it plans for results.

The profile of the session states the order. The arena's log states the block: the second run requests it, because the
memory pattern of the first run is then known. For this, the arena must return the memory of the first run and grow by
the requested bytes only. Log and profile cover the whole process, so each session has its own process.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import onnxruntime

from rlflow.common.errors import RLFlowError
from rlflow.graph.drawn_inputs import random_inputs
from rlflow.graph.onnx_runtime import PROVIDERS

MODES = {"default": onnxruntime.ExecutionOrder.DEFAULT, "priority": onnxruntime.ExecutionOrder.PRIORITY_BASED}
SECOND_RUN = "-- second run --"  # marks the start of the second run in the log


class Observed(NamedTuple):
    """An observed session.

    Attributes:
        order: the nodes in the order in which they ran, as indices in the file.
        block: size of the block in bytes.
    """

    order: list[int]
    block: int


def observe(model: Path, mode: str, seconds: float = 600.0) -> Observed:
    """Run a session that loads the file as it is, without optimisation, twice on random inputs.

    Args:
        model: the file.
        mode: a name of MODES.
        seconds: time limit.
    """
    with TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **random_inputs(model, 0))
        command = [sys.executable, "-m", __name__, str(model.absolute()), str(inputs), mode, folder]
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=os.environ | paths)
    asked = re.search(r"num_bytes: (\d+)", done.stderr.partition(SECOND_RUN)[2])
    if done.returncode:
        raise RLFlowError(f"the session ended with {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    return Observed(json.loads(done.stdout), int(asked[1]) if asked else 0)


def _session(model: str, inputs: str, mode: str, folder: str) -> list[int]:
    """Run the session in this process and return the indices in the file of the nodes that ran, in order."""
    arena = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    as_asked = onnxruntime.OrtArenaCfg(0, 1, -1, -1)  # no limit; growth by the requested size; the rest by default
    onnxruntime.create_and_register_allocator(arena, as_asked)
    options, once = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = MODES[mode]
    options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
    options.add_session_config_entry("session.use_env_allocators", "1")
    once.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session = onnxruntime.InferenceSession(model, options, providers=PROVIDERS)
    given = dict(np.load(inputs))
    session.run(None, given, once)
    onnxruntime.set_default_logger_severity(1)
    print(SECOND_RUN, file=sys.stderr, flush=True)
    session.run(None, given, once)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = [event for event in events if event["cat"] == "Node" and event["name"].endswith("kernel_time")]
    return [int(event["args"]["node_index"]) for event in ran[: len(ran) // 2]]


if __name__ == "__main__":
    print(json.dumps(_session(*sys.argv[1:])))
