"""Graphs as arrays for graph networks."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np


class GraphArrays(NamedTuple):
    """One graph of n nodes and e edges, unpadded.

    ops: int32 [n], operator id (1 …; 0 is padding).  nodes: float32 [n, F].  edges: float32 [e, Fe].
    senders, receivers: int32 [e], node indices in canonical order.  globals: float32 [G].
    """

    ops: np.ndarray
    nodes: np.ndarray
    edges: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    globals: np.ndarray


@dataclass(frozen=True)
class EncodingSpec:
    """The sizes that a world model and its checkpoints are built for."""

    n_ops: int
    node_features: int
    edge_features: int
    global_features: int
    n_xfers: int
    max_locations: int

    def to_dict(self) -> dict:
        return asdict(self)
