"""What operators ask of their inputs beyond what ONNX's shape inference checks (its version 1.23 lets these pass)."""

from collections.abc import Iterator
from math import prod

import numpy as np

from rlflow.graph.dims import Dim, equal
from rlflow.graph.model import TensorType
from rlflow.graph.symbolic import ELEMENT_WISE


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


def refused_at_some_size(
    op: str, attributes: dict, inputs: list[TensorType | None], outputs: tuple[TensorType, ...]
) -> str | None:
    """What ONNX Runtime has against an operator where sizes are symbols, None if nothing at any size.

    Raises Undecided where that differs from size to size. Asked of new operators: a model has its own for a reason,
    so that sizes which must be equal for it to run are taken to be equal (`symbolic`); here that must be known.
    """
    if op in POOLS and not all(size > 0 for size in inputs[0].shape[1:]):
        return "there is nothing to pool"
    if op == "Attention" and not all(size > 0 for kind in inputs[:3] for size in kind.shape):
        return "there is nothing to attend to"
    shapes, results = [kind.shape for kind in inputs if kind is not None], [kind.shape for kind in outputs]
    if op == "FusedMatMul" and not shapes[0][-2 if attributes.get("transA") else -1] > 0:
        return "there is nothing to add up"  # its kernel then leaves in the result what was in its memory before
    if not all(equal(a, b) for a, b in _must_be_equal(op, attributes, shapes, results)):
        return "the operands do not fit"
    return None


def _must_be_equal(op: str, attributes: dict, shapes: list[tuple], results: list[tuple]) -> Iterator[tuple]:
    """Pairs of sizes that are equal wherever the operator runs."""
    if op in ELEMENT_WISE:
        yield from (pair for shape in shapes for pair in _spread(shape, results[0]))
    elif op == "MatMul" and all(shapes):
        left, right = shapes
        yield left[-1], right[-2:][0]
        if min(len(left), len(right)) > 2:
            yield from (pair for shape in shapes for pair in _spread(shape[:-2], results[0][:-2]))
    elif op == "Gemm":
        left, right = shapes[:2]
        yield left[0 if attributes.get("transA") else 1], right[1 if attributes.get("transB") else 0]
    elif op == "Concat":
        axis = attributes["axis"] % len(shapes[0])
        for other in shapes[1:]:
            yield from (pair for k, pair in enumerate(zip(shapes[0], other, strict=True)) if k != axis)
    elif op == "Split":
        axis = attributes.get("axis", 0) % len(shapes[0])
        yield shapes[0][axis], sum(shape[axis] for shape in results)


def _spread(shape: tuple, whole: tuple) -> Iterator[tuple]:
    """The sizes that are not 1, each with that of the broadcast result."""
    return (pair for pair in zip(shape[::-1], whole[::-1], strict=False) if type(pair[0]) is Dim or pair[0] != 1)


def _spreads(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a tensor of that shape can be spread over the whole one."""
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(shape[::-1], whole[::-1], strict=False))
