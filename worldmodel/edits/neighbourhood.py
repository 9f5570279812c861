"""Neighbourhoods of nodes of dream states, as hash keys that are equal for nodes with equal neighbourhoods.

A profiled kernel spans several operators, so the cost of a node depends on its neighbours. The relevant distance is
unknown, so there is a key for every distance up to REACH. A node's key of one distance is made of its own signature and
its neighbours' keys of the next smaller distance (Weisfeiler and Leman 1968).
"""

from typing import NamedTuple

import numpy as np

from worldmodel.edits.cost_model import REACH
from worldmodel.edits.dream_states import DreamStates, StateChange

READ, MADE, FINISH = (np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xFF51AFD7ED558CCD))


class Neighbourhoods(NamedTuple):
    """Nodes of states with their keys.

    Attributes:
      rows: int64 [k], the states.
      nodes: int64 [k].
      keys: uint32 [REACH, k], one key for each distance from 1 on.
    """

    rows: np.ndarray
    nodes: np.ndarray
    keys: np.ndarray


class _Walk(NamedTuple):
    """The cells near some first cells, where a cell is a node of a state.

    Attributes:
      rings: the cells at each distance.
      ends, others: the edges from all cells before the last ring to their neighbours, as positions in the rings.
      weights: the kind of each edge, READ or MADE.
    """

    rings: list[np.ndarray]
    ends: np.ndarray
    others: np.ndarray
    weights: np.ndarray


def neighbourhoods(states: DreamStates, rows: np.ndarray, nodes: np.ndarray) -> Neighbourhoods:
    """Return all present nodes within REACH edges of these nodes: the nodes whose keys depend on them.

    Args:
      states: the states.
      rows: int [k], the state of each node.
      nodes: int [k].
    """
    width, hashes = states.index.primary_output.size, states.index.signature_hash.values
    walk = _walk(states, rows * width + nodes, 2 * REACH, width)
    cells, concerned = np.concatenate(walk.rings), sum(map(len, walk.rings[: REACH + 1]))
    sizes = np.uint64(states.index.grounding.first.sizes & 0xFFFFFFFFFFFFFFFF)  # runtimes depend on the sizes
    own = hashes[cells % width] ^ sizes
    result, keys = own, np.zeros((REACH, concerned), np.uint32)
    for distance in range(REACH):
        around = np.zeros_like(own)
        np.add.at(around, walk.ends, _mixed(result[walk.others]) * walk.weights)
        result = _mixed(own * READ + around)
        keys[distance] = result[:concerned] >> np.uint64(32)
    return Neighbourhoods(cells[:concerned] // width, cells[:concerned] % width, keys)


def changed_neighbourhoods(change: StateChange) -> Neighbourhoods:
    """Return all nodes whose keys a change has affected."""
    states, primary_output = change.states, change.index.primary_output.values
    removed_in, removed = (np.concatenate(parts) for parts in zip(*change.removed, strict=True))
    added_in, added = (np.concatenate(parts) for parts in zip(*change.added, strict=True))
    which, others, _ = _neighbours(states, removed_in, removed)
    rows, nodes = np.concatenate([added_in, removed_in[which]]), np.concatenate([added, others])
    there = states.producer[rows, primary_output[nodes]] == nodes  # an added node may have been removed again
    return neighbourhoods(states, rows[there], nodes[there])


def around(
    states: DreamStates, rows: np.ndarray, nodes: np.ndarray, distance: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the nodes within a distance of these nodes, and the edges between them.

    Args:
      states: the states.
      rows: int [k], the state of each node.
      nodes: int [k], different cells.
      distance: edges.

    Returns:
      (nodes, senders, receivers, makes). The given nodes come first. senders and receivers are positions in nodes, and
      receivers are nearer than the distance. makes: bool [e], whether the sender makes a tensor that the receiver
      reads; otherwise the sender reads a tensor that the receiver makes.
    """
    width = states.index.primary_output.size
    walk = _walk(states, rows * width + nodes, distance, width)
    return np.concatenate(walk.rings) % width, walk.others, walk.ends, walk.weights == READ


def _walk(states: DreamStates, begin: np.ndarray, distance: int, width: int) -> _Walk:
    """Return all cells within this distance of the first cells, int64 [k]."""
    seen, number = np.zeros(states.n * width, bool), np.empty(states.n * width, np.int32)

    def new(cells: np.ndarray) -> np.ndarray:
        """Return the cells that were not seen yet, each once."""
        cells = cells[~seen[cells]]
        number[cells] = order = np.arange(len(cells))
        cells = cells[number[cells] == order]  # keeps the last of equal cells
        seen[cells] = True
        return cells

    rings, edges = [new(begin)], []
    for _ in range(distance):
        rows = rings[-1] // width
        which, others, weights = _neighbours(states, rows, rings[-1] % width)
        others += rows[which] * width
        edges.append((rings[-1][which], others, weights))
        rings.append(new(others))
    cells = np.concatenate(rings)
    number[cells] = np.arange(len(cells))
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64)
    ends, others, weights = (np.concatenate(parts) for parts in zip(nothing, *edges, strict=True))
    return _Walk(rings, number[ends], number[others], weights)


def _neighbours(states: DreamStates, rows: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (position in nodes, neighbour, weight) for all producers of inputs and consumers of outputs."""
    index = states.index
    reading, tensors = index.inputs.take(nodes)
    producers = states.producers(rows[reading], tensors)
    making, tensors = index.outputs.take(nodes)
    read, consumers = index.consumers.take(tensors)
    making = making[read]
    there = states.producer[rows[making], index.primary_output.values[consumers]] == consumers
    which = np.concatenate([reading[producers >= 0], making[there]])
    others = np.concatenate([producers[producers >= 0], consumers[there]]).astype(np.int64)
    return which, others, np.repeat([READ, MADE], [np.count_nonzero(producers >= 0), np.count_nonzero(there)])


def _mixed(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(33))) * FINISH
    return values ^ (values >> np.uint64(29))
