"""The instance, the task and the specification of a placement (`rlflow.common.task`).

A node of the instance is an operator. Its option M · w + a places its weights in memory w and its activation in memory
a of the M memories. The objective is the simulated latency in femtoseconds.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from gymnasium.spaces import MultiDiscrete
from omegaconf import OmegaConf

from rlflow.common.errors import RLFlowError
from rlflow.common.files import file_hash
from rlflow.common.task import EncodingSpec, Evaluation, GraphArrays
from rlflow.env.features import N_OPS
from rlflow.graph.custom_ops import load as load_libraries
from rlflow.graph.typical import load_at
from rlflow.tasks.placement.delivery import PLACEMENT, write_placement
from rlflow.tasks.placement.memories import Device, device_file, read_device
from rlflow.tasks.placement.program import lower_bound
from rlflow.tasks.placement.simulators import Placed, Problem, latencies, place, problem_of
from rlflow.tasks.placement.workload import FEATURES, Workload, workload_of
from rlflow.tasks.plain import ModelSpec, OneShotTask, deliver_decisions

FS_PER_US = 10**9


class Placements:
    """An instance: the workload of a model on a device, as `rlflow.common.task.Instance` describes it.

    Attributes:
      workload: the operators.
      device: the memories and the speed.
      simulator: one of `simulators.SIMULATORS`.
      problem: the workload and the device as arrays.
      memories: M, the number of memories.
    """

    def __init__(self, workload: Workload, device: Device, simulator: str):
        """Raise RLFlowError if the last memory cannot hold all tensors at the same time."""
        self.workload, self.device, self.simulator = workload, device, simulator
        self.problem: Problem = problem_of(workload, device, simulator)
        self.memories = len(device.memories)
        needed, slowest = int(workload.weights.sum() + workload.outputs.sum()), device.memories[-1]
        if needed > slowest.capacity:
            raise RLFlowError(f"{slowest.name} holds {slowest.capacity} bytes, and all tensors together have {needed}")
        self.space = MultiDiscrete([self.memories**2] * workload.n)
        self.spec = EncodingSpec(
            n_ops=N_OPS, node_features=len(FEATURES), edge_features=1, global_features=1, n_rules=self.memories**2,
            max_locations=1, stop=False,
        )  # fmt: skip

    @cached_property
    def hash(self) -> str:
        """The SHA-256 hash of the problem and the simulator, in hexadecimal digits."""
        parts = [np.asarray(part).tolist() for part in self.problem]
        return hashlib.sha256(repr((self.simulator, parts, astuple(self.device))).encode()).hexdigest()

    def arrays(self) -> GraphArrays:
        edges = self.workload.edges.astype(np.int32)
        return GraphArrays(
            ops=self.workload.ops, nodes=self.workload.features, edges=np.ones((len(edges), 1), np.float32),
            senders=edges[:, 0], receivers=edges[:, 1], globals=np.ones(1, np.float32),
        )  # fmt: skip

    def place(self, decisions: np.ndarray) -> Placed:
        """Return the placements after the rectifier of decisions, int64 [B, n]."""
        decisions = np.asarray(decisions, np.int64)
        return place(self.problem, decisions // self.memories, decisions % self.memories, self.simulator)

    def decisions(self, placed: Placed) -> np.ndarray:
        """Return the decisions, int64 [B, n], that request exactly the memories of rectified placements."""
        return self.memories * placed.weights + placed.outputs

    def evaluate(self, decisions: np.ndarray) -> Evaluation:
        """Rectify decisions, int [B, n], and simulate them.

        Returns:
          The latencies in femtoseconds, int64 [B]; the decisions after the rectifier, int64 [B, n]; and the number of
          operators that the rectifier changed in each decision, int64 [B].
        """
        return self.evaluate_moved(decisions)[0]

    def evaluate_moved(self, decisions: np.ndarray) -> tuple[Evaluation, np.ndarray]:
        """Return the result of `evaluate`, and the share of all bytes that the rectifier moved, float64 [B]."""
        placed = self.place(decisions)
        valid = self.decisions(placed)
        objectives = latencies(self.problem, placed.weights, placed.outputs, self.simulator)
        total = int(self.workload.weights.sum() + self.workload.outputs.sum())
        repaired = (valid != np.asarray(decisions)).sum(axis=1)
        return Evaluation(objectives, valid, repaired), placed.moved / max(total, 1)

    @cached_property
    def usual(self) -> np.ndarray:
        """The placement of a greedy heuristic, int64 [n]; see `control`."""
        problem, n, slowest = self.problem, self.workload.n, self.memories - 1
        steps = np.arange(n)
        read = np.bincount(problem.sources, problem.reads, n)
        sizes = np.concatenate([problem.weights, problem.outputs])
        traffic = np.concatenate([problem.weight_reads, problem.outputs + read])
        first, last = np.concatenate([np.zeros(n, np.int64), steps]), np.concatenate([np.full(n, n - 1), problem.last])
        density = traffic / np.maximum(sizes * (last - first + 1), 1)
        used, memory = np.zeros((self.memories, n), np.int64), np.full(2 * n, slowest)
        for tensor in np.argsort(-density, kind="stable"):
            alive = slice(first[tensor], last[tensor] + 1)
            for m in range(slowest):
                fits = used[m, alive].max() + sizes[tensor] <= problem.capacity[m]
                if sizes[tensor] and fits and not (tensor >= n and problem.weights_only[m]):
                    memory[tensor] = m
                    used[m, alive] += sizes[tensor]
                    break
        return self.evaluate((self.memories * memory[:n] + memory[n:])[None]).decisions[0]

    def control(self) -> np.ndarray:
        """Return the placement of a greedy heuristic, int64 [n], which stands for the placement of a real compiler.

        Tensors are placed in the order of their traffic per byte and step that they occupy, highest first, each in the
        fastest memory with room. The heuristic compares no simulated latencies.
        """
        return self.usual

    def lower_bound(self) -> int:
        return lower_bound(self.problem)


@dataclass(frozen=True)
class PlacementSpec(ModelSpec):
    """The specification of a placement problem; see `rlflow.common.task.TaskSpec`.

    Attributes:
      source: the path of an ONNX file.
      max_steps: the option `env.max_steps`, which has no effect here.
      shapes, custom_ops: see `ModelSpec`.
      device, simulator: see `rlflow.tasks.placement.PlacementOptions`.
    """

    device: str = "nnp-i"
    simulator: str = "compiler"

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        device, simulator = config.placement.device, config.placement.simulator
        return replace(super().of(config, source), device=device, simulator=simulator)

    @classmethod
    def depends_on(cls, config: Mapping) -> dict:
        content = file_hash(device_file(config.placement.device))
        return super().depends_on(config) | {
            "placement": OmegaConf.to_container(config.placement), "content of the device file": content,
        }

    def make_task(self) -> OneShotTask:
        """Load the workload of an ONNX file and its device."""
        if not self.source.endswith(".onnx"):
            raise RLFlowError(f"cannot place '{self.problem}': pass an ONNX file or a zoo name")
        load_libraries(self.custom_ops)
        instance = instance_of(self.source, self.device, self.simulator, dict(self.shapes))
        return OneShotTask(instance, "µs (simulated)", float(FS_PER_US))

    def deliver(self, task: OneShotTask, candidates: Sequence, folder: Path, config: Mapping) -> dict:
        outcome = deliver_decisions(self, candidates, folder)
        if outcome["delivered"] != "original":
            write_placement(task.initial, np.array(outcome["actions"][outcome["delivered"]]), folder, {})
        else:
            (folder / PLACEMENT).unlink(missing_ok=True)  # of an earlier delivery
        return outcome


def instance_of(source, device: str, simulator: str, shapes: Mapping | None = None) -> Placements:
    """Return the instance of a model on a device.

    Args:
      source: path of an ONNX file, or a ModelProto.
      device: as `memories.read_device` takes it.
      simulator: one of `simulators.SIMULATORS`.
      shapes: sizes of symbolic dimensions, as `rlflow.graph.typical.load_at` takes them.

    Raises:
      RLFlowError: the model or the device is refused, or the model does not fit into the device.
    """
    memories = read_device(device)
    graph, (sizes, *more) = load_at(source, shapes)
    if more:
        raise RLFlowError("a placement is for one size of each symbol: pass one size with --shape NAME=SIZE")
    return Placements(workload_of(graph.at(sizes), memories.element_bytes), memories, simulator)
