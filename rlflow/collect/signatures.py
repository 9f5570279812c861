"""How the operators and tensors that an episode's edits name by a hash are observed: features by signature, each once.

A hash tells like from unlike (edits.py). A network that is to judge what it never met needs to see it: here are those
columns of the observation (rlflow/env/observation/) that depend on the operator, or on the tensor, alone.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from rlflow.collect.edits import Edit
from rlflow.env.observation.operators import (
    ATTRIBUTE_FEATURES,
    OUTPUT_OP,
    attribute_features,
    operator_id,
)
from rlflow.env.observation.scales import FINGERPRINT
from rlflow.env.observation.tensors import TENSOR_FEATURES, tensor_features
from rlflow.env.state import RewriteState

OPERATOR_COLUMNS = 1 + ATTRIBUTE_FEATURES + FINGERPRINT  # the operator's id comes first


class SignatureFeatures(NamedTuple):
    """operators: int64 [k], ascending, as in `NodeRecord.operator`; operator_features: float32 [k, OPERATOR_COLUMNS].
    tensors: int64 [m], ascending, as in `TensorRecord.signature`; tensor_features: float32 [m, TENSOR_FEATURES]."""

    operators: np.ndarray
    operator_features: np.ndarray
    tensors: np.ndarray
    tensor_features: np.ndarray

    @classmethod
    def of(cls, states: Sequence[RewriteState], edits: Sequence[Edit]) -> Self:
        """Of all that the edits name; each led to its state, the first one is of the whole first state."""
        operators: dict[int, np.ndarray] = {}
        tensors: dict[int, np.ndarray] = {}
        for state, edit in zip(states, edits, strict=True):
            for node in edit.nodes:
                if node.operator not in operators:
                    operators[node.operator] = _operator(state, node.id)
            for tensor in edit.tensors:
                if tensor.signature not in tensors:
                    tensors[tensor.signature] = _tensor(state, tensor.id)
        return cls(*_table(operators, OPERATOR_COLUMNS), *_table(tensors, TENSOR_FEATURES))


def merged(parts: Iterable[SignatureFeatures]) -> SignatureFeatures:
    """All of them in one, each once."""
    whole = SignatureFeatures(*map(np.concatenate, zip(*parts, strict=True)))
    operators, of_operators = np.unique(whole.operators, return_index=True)
    tensors, of_tensors = np.unique(whole.tensors, return_index=True)
    features = whole.operator_features[of_operators], whole.tensor_features[of_tensors]
    return SignatureFeatures(operators, features[0], tensors, features[1])


def _operator(state: RewriteState, node_id: int) -> np.ndarray:
    if node_id < 0:  # an output of the whole graph
        return np.append(np.float32(OUTPUT_OP), np.zeros(OPERATOR_COLUMNS - 1, np.float32))
    node = state.graph.nodes[node_id]
    attributes = attribute_features(state.graph, node, redundant=True)
    return np.append(np.float32(operator_id(node)), np.frombuffer(attributes, np.float32))


def _tensor(state: RewriteState, tensor: int) -> np.ndarray:
    view = state.graph.at(state.task.sizes[0])
    return np.frombuffer(tensor_features(state.graph, view, tensor, shared=False), np.float32)


def _table(rows: dict[int, np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
    keys = np.array(sorted(rows), np.int64)
    return keys, np.array([rows[key] for key in keys.tolist()], np.float32).reshape(-1, width)
