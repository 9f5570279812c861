"""Several observations of candidates side by side, as one graph, which the network sees at once (a meta-graph)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rlflow.env.candidates import NODE_COLUMNS

FEATURES = NODE_COLUMNS - 1  # of a node, besides its operator


class MetaGraph(NamedTuple):
    """B observations of `rlflow.env.candidates.CandidateEnv`, whose arrays these are, with rows and candidates numbered
    through.

    gains: float32 [all candidates]; 0 where none are shown.
    counts: int32 [B], how many candidates each observation has, the graph as it is included.
    """

    ops: tf.Tensor
    nodes: tf.Tensor
    senders: tf.Tensor
    receivers: tf.Tensor
    owners: tf.Tensor
    replaced: tf.Tensor
    replacers: tf.Tensor
    gains: tf.Tensor
    counts: tf.Tensor


_NUMBERS = tf.TensorSpec([None], tf.int32)
SPEC = MetaGraph(  # of any sizes: compiled once
    _NUMBERS, tf.TensorSpec([None, FEATURES], tf.float32), *[_NUMBERS] * 5, tf.TensorSpec([None], tf.float32), _NUMBERS
)


def joined(observations: Sequence[Mapping[str, np.ndarray]]) -> MetaGraph:
    """At least one of them."""
    counts = [len(one["actions"]) for one in observations]
    rows, candidates = _before([len(one["ops"]) for one in observations]), _before(counts)

    def together(key: str, offsets: Sequence[int] | None = None) -> np.ndarray:
        parts = [one[key] for one in observations]
        return np.concatenate(parts if offsets is None else [p + n for p, n in zip(parts, offsets, strict=True)])

    return MetaGraph(
        together("ops"), together("nodes"), together("senders", rows), together("receivers", rows),
        together("owners", candidates), together("replaced", rows), together("replacers", candidates),
        np.concatenate([one.get("gains", np.zeros(len(one["actions"]), np.float32)) for one in observations]),
        np.array(counts, np.int32),
    )  # fmt: skip


def _before(sizes: Sequence[int]) -> np.ndarray:
    """int32: of each the sum of those before it."""
    return (np.cumsum(sizes) - sizes).astype(np.int32)
