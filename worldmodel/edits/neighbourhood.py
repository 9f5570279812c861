"""Neighbourhood keys: hashes of nodes of imagined states that are equal for nodes with equal neighbourhoods.

A profiled kernel spans several operators, so the runtime of a node depends on its neighbours. The relevant distance is
unknown, so a node has a key for every distance from 1 to REACH edges. Its key for distance d is a hash of its own
signature and of its neighbours' keys for distance d − 1 (Weisfeiler and Leman 1968).
"""

from typing import NamedTuple

import numpy as np

from worldmodel.edits.cost_model import MATCH_LEVELS, REACH
from worldmodel.edits.dream_states import DreamStates, NodeSets, StateChange

# Odd factors: the weight of a producer's and of a consumer's hash in a key, and the factor of the final mixing.
READ, MADE, FINISH = (np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xFF51AFD7ED558CCD))


class Neighbourhoods(NamedTuple):
    """k nodes of the states of a batch, with their neighbourhood keys.

    Attributes:
      rows: int64 [k], the index of the state of each node.
      nodes: int64 [k], the grounding's numbers of the nodes.
      keys: uint32 [reach, k], row d − 1 has the keys for distance d.
    """

    rows: np.ndarray
    nodes: np.ndarray
    keys: np.ndarray


class _Walk(NamedTuple):
    """The cells within a distance of some first cells. A cell is one node of one state: `state · width + node`.

    Attributes:
      rings: rings[d] has the cells at distance d from the first cells.
      ends, others: int [e], an edge from each cell that is not in the last ring to each of its neighbours. The numbers
        are positions in the concatenation of the rings.
      weights: uint64 [e], READ if the neighbour makes a tensor that the cell reads, MADE if the neighbour reads one.
    """

    rings: list[np.ndarray]
    ends: np.ndarray
    others: np.ndarray
    weights: np.ndarray


def neighbourhoods(states: NodeSets, rows: np.ndarray, nodes: np.ndarray, reach: int = REACH) -> Neighbourhoods:
    """Return the present nodes whose keys depend on the given nodes: all nodes within `reach` edges of a given node.

    Args:
      states: the batch of states.
      rows: int [k], the index of the state of each given node.
      nodes: int [k], the given nodes, which are present.
      reach: the largest distance of keys.
    """
    # The keys of a node at `reach` edges depend on nodes up to 2 · `reach` edges away.
    width, hashes = states.index.primary_output.size, states.index.signature_hash.values
    walk = _walk(states, rows * width + nodes, 2 * reach, width)
    cells, concerned = np.concatenate(walk.rings), sum(map(len, walk.rings[: reach + 1]))
    sizes = np.uint64(states.index.grounding.first.sizes & 0xFFFFFFFFFFFFFFFF)  # runtimes depend on the sizes
    own = hashes[cells % width] ^ sizes
    result, keys = own, np.zeros((reach, concerned), np.uint32)
    for distance in range(reach):
        around = np.zeros_like(own)
        np.add.at(around, walk.ends, _mixed(result[walk.others]) * walk.weights)
        result = _mixed(own * READ + around)
        keys[distance] = result[:concerned] >> np.uint64(32)
    return Neighbourhoods(cells[:concerned] // width, cells[:concerned] % width, keys)


def changed_neighbourhoods(change: StateChange, reach: int = REACH) -> Neighbourhoods:
    """Return the present nodes whose neighbourhood keys a step may have changed, with their new keys.

    Args:
      change: the change of a step.
      reach: the largest distance of keys.
    """
    states, primary_output = change.states, change.index.primary_output.values
    removed_in, removed = (np.concatenate(parts) for parts in zip(*change.removed, strict=True))
    added_in, added = (np.concatenate(parts) for parts in zip(*change.added, strict=True))
    which, others, _ = _neighbours(states, removed_in, removed)
    rows, nodes = np.concatenate([added_in, removed_in[which]]), np.concatenate([added, others])
    there = states.producer[rows, primary_output[nodes]] == nodes  # an added node may have been removed again
    return neighbourhoods(states, rows[there], nodes[there], reach)


def match_keys(states: DreamStates, rows: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Return MATCH_LEVELS keys of each match, where each key distinguishes more matches than the key before.

    `CostModel.match_gains` contains the observed gains by these keys. The first three keys are equal for matches of one
    rule, of one pattern, and of one pattern and signature. The further keys also include the keys of the matched nodes
    for the distances 1, 2, …

    Args:
      states: the batch of states, with the current `keys`.
      rows: int [k], the index of the state of each match.
      matches: int [k], the matches.

    Returns:
      uint32 [MATCH_LEVELS, k].
    """
    index, grounds = states.index, states.index.grounding.matches
    nodes = [grounds[match].nodes for match in matches.tolist()]
    which = np.repeat(np.arange(len(rows)), [len(of_match) for of_match in nodes])
    position = np.concatenate([np.arange(len(of_match)) for of_match in nodes]).astype(np.uint64)
    every = np.concatenate([np.array(of_match, np.int64) for of_match in nodes])
    near = states.keys[rows[which], index.primary_output.values[every], : MATCH_LEVELS - 3].T.astype(np.uint64)
    result = np.zeros((MATCH_LEVELS, len(rows)), np.uint64)
    result[0] = _mixed((index.rule.values[matches] + 1).astype(np.uint64) * READ)
    result[1] = _mixed(np.array([grounds[match].pattern + 1 for match in matches.tolist()], np.uint64) * MADE)
    for level, of_nodes in enumerate([index.signature_hash.values[every], *near], 2):
        np.add.at(result[level], which, _mixed(of_nodes * MADE + position * READ))
        result[level] = _mixed(result[level] + result[1])
    return (result >> np.uint64(32)).astype(np.uint32)


def around(
    states: NodeSets, rows: np.ndarray, nodes: np.ndarray, distance: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the present nodes within a distance of the given nodes, and their edges.

    Args:
      states: the batch of states.
      rows: int [k], the index of the state of each given node.
      nodes: int [k], the given nodes; the pairs (state, node) are different.
      distance: the distance in edges.

    Returns:
      (int [m] nodes with the given nodes first, int [e] senders, int [e] receivers, bool [e] makes). Senders and
      receivers are positions in the nodes. Receivers are nearer to the given nodes than `distance`. `makes` is True if
      the sender makes a tensor that the receiver reads, and False if the receiver makes a tensor that the sender reads.
    """
    width = states.index.primary_output.size
    walk = _walk(states, rows * width + nodes, distance, width)
    return np.concatenate(walk.rings) % width, walk.others, walk.ends, walk.weights == READ


def _walk(states: NodeSets, begin: np.ndarray, distance: int, width: int) -> _Walk:
    """Return all cells `state · width + node` within `distance` edges of the cells `begin`, int64 [k]."""
    seen, number = np.zeros(states.n * width, bool), np.empty(states.n * width, np.int32)

    def new(cells: np.ndarray) -> np.ndarray:
        """Return the cells that no earlier call returned, each once."""
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


def _neighbours(states: NodeSets, rows: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all present producers of the inputs and consumers of the outputs of k nodes.

    Args:
      states: the batch of states.
      rows: int [k], the index of the state of each node.
      nodes: int [k], the nodes.

    Returns:
      (int [e] position of the node in `nodes`, int64 [e] neighbour, uint64 [e]: READ for a producer, MADE for a
      consumer).
    """
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
    """Scramble the bits of values, uint64 [k], so that sums of results rarely agree for different sets of values."""
    values = (values ^ (values >> np.uint64(33))) * FINISH
    return values ^ (values >> np.uint64(29))
