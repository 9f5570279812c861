"""What operators ask of their inputs beyond what ONNX's shape inference checks (its version 1.23 lets these pass)."""

from math import prod

import numpy as np

from rlflow.graph.dims import equal
from rlflow.graph.model import TensorType


def misfit(
    op: str,
    attributes: dict,
    inputs: list[TensorType | None],
    values: list[np.ndarray | None],
    outputs: tuple[TensorType, ...],
) -> str | None:
    """Why the inputs do not fit the operator, None if nothing is seen.

    Args:
      values: contents of those inputs that are small integer constants, else None.
      outputs: the types that shape inference gave.
    """
    shape = inputs[0].shape if inputs and inputs[0] is not None else None
    if shape is None:
        return None
    if op == "Reshape" and prod(shape) != prod(outputs[0].shape):
        return "another number of elements"
    if op == "Split" and any(type(size) is int and size < 0 for output in outputs for size in output.shape):
        return "a part of negative size"
    if op == "Transpose" and "perm" in attributes and sorted(attributes["perm"]) != list(range(len(shape))):
        return "no permutation of the axes"
    if (
        op == "Squeeze"
        and len(values) > 1
        and values[1] is not None
        and len({k % len(shape) for k in values[1]}) < values[1].size
    ):
        return "an axis is named twice"
    if op == "Gemm" and len(inputs) > 2 and inputs[2] is not None and not _spreads(inputs[2].shape, outputs[0].shape):
        return "the third input does not fit"
    return None


POOLS = frozenset(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"))


def refused_at_some_size(op: str, inputs: list[TensorType | None]) -> str | None:
    """What ONNX Runtime has against an operator where sizes are symbols, None if nothing at any size.

    Raises Undecided where that differs from size to size. Asked of new operators: a model has its own for a reason.
    """
    if op in POOLS and not all(size > 0 for size in inputs[0].shape[1:]):
        return "there is nothing to pool"
    if op == "Attention" and not all(size > 0 for kind in inputs[:3] for size in kind.shape):
        return "there is nothing to attend to"
    if op == "MatMul" and all(kind.shape for kind in inputs):
        left, right = (kind.shape for kind in inputs)
        if not equal(left[-1], right[-2:][0]):
            return "the matrices do not fit"
    return None


def _spreads(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a tensor of that shape can be spread over the whole one."""
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(shape[::-1], whole[::-1], strict=False))
