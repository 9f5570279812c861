"""The task `ordering`: an order of nodes that needs less memory at its peak."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from omegaconf import OmegaConf

from rlflow.common.errors import RLFlowError
from rlflow.costs.memory.models import problem_of
from rlflow.costs.memory.sorting import depth_first
from rlflow.graph.onnx_writer import save_model
from rlflow.graph.typical import load_at
from rlflow.tasks.base import ONE_SHOT, EncodingSpec
from rlflow.tasks.ordering.instance import Orders
from rlflow.tasks.ordering.layered import UNIT, layered
from rlflow.tasks.ordering.runtime import default_order
from rlflow.tasks.plain import PlainSpec
from rlflow.zoo import ZOO, load

LAYERED = re.compile(r"layered-([1-9]\d{0,4})-(\d{1,9})")
MB = 1e6


@dataclass(frozen=True)
class OrderingTask:
    """See `rlflow.tasks.base.Task`."""

    initial: Orders
    unit: str
    per_unit: float

    @property
    def encoding_spec(self) -> EncodingSpec:
        return self.initial.spec


@dataclass(frozen=True)
class OrderingSpec(PlainSpec):
    """source: an ONNX file, or a text "layered-N-SEED": a layered graph of N nodes.

    shapes: (name, size or sizes) pairs, the typical sizes of symbolic dimensions (see `typical_sizes`).
    """

    shape: ClassVar[str] = ONE_SHOT

    shapes: tuple = ()

    @classmethod
    def fetch(cls, model: str, seed: int, folder: Path) -> Path:
        if model not in ZOO:
            return super().fetch(model, seed, folder)
        save_model(load(model, seed), folder / "model.onnx")
        return folder / "model.onnx"

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        shapes = OmegaConf.to_container(config.shapes)
        sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in shapes.items()}
        return cls(str(source), config.env.max_steps, tuple(sizes.items()))

    def make_task(self) -> OrderingTask:
        return self.of_model() if self.source.endswith(".onnx") else self.of_text()

    def of_model(self) -> OrderingTask:
        """In bytes; its usual order is the one that ONNX Runtime runs the file in by default."""
        graph, sizes = load_at(self.source, dict(self.shapes))
        problem, nodes = problem_of(graph.at(sizes[0]))
        position = {node: k for k, node in enumerate(nodes)}
        return OrderingTask(Orders(problem, np.array([position[node] for node in default_order(graph)])), "MB", MB)

    def of_text(self) -> OrderingTask:
        named = LAYERED.fullmatch(self.problem)
        if not named:
            raise RLFlowError(f"what is ordered is an ONNX file or a graph such as layered-500-0, not '{self.problem}'")
        problem = layered(int(named[1]), int(named[2]))
        return OrderingTask(Orders(problem, depth_first(problem)), "units", UNIT)
