"""What lies around the nodes of states, as keys: equal for nodes that look alike as far as a key sees.

A cost of kernels that span several operators says of a node what it costs among others. How far one must look is not known
beforehand, so there is a key for every distance up to REACH (Weisfeiler and Leman 1968: a node's key is made of its own and its
neighbours' of one less).
"""

from typing import NamedTuple

import numpy as np

from worldmodel.edits.dreaming import REACH, Change, States

READ, MADE, FINISH = (np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xFF51AFD7ED558CCD))


class Surroundings(NamedTuple):
    """Nodes (int64 [k], in states rows) and their keys: uint32 [REACH, k], one for each distance from 1 on."""

    rows: np.ndarray
    nodes: np.ndarray
    keys: np.ndarray


def surroundings(states: States, rows: np.ndarray, nodes: np.ndarray) -> Surroundings:
    """Of all nodes within REACH edges of these, which are there: those whose keys depend on these."""
    width, what = states.index.home.size, states.index.what.values
    rings, ends, others, weights = _walk(states, rows * width + nodes, 2 * REACH, width)
    cells, concerned = np.concatenate(rings), sum(map(len, rings[: REACH + 1]))
    own = what[cells % width]
    result, keys = own, np.zeros((REACH, concerned), np.uint32)
    for distance in range(REACH):
        around = np.zeros_like(own)
        np.add.at(around, ends, _mixed(result[others]) * weights)
        result = _mixed(own * READ + around)
        keys[distance] = result[:concerned] >> np.uint64(32)
    return Surroundings(cells[:concerned] // width, cells[:concerned] % width, keys)


def after(change: Change) -> Surroundings:
    """Of all nodes whose keys a change has changed."""
    states, home = change.states, change.index.home.values
    gone, come = ([np.concatenate(parts) for parts in zip(*events, strict=True)] for events in (change.gone, change.come))
    which, others, _ = _neighbours(states, *gone)
    rows, nodes = np.concatenate([come[0], gone[0][which]]), np.concatenate([come[1], others])
    there = states.maker[rows, home[nodes]] == nodes  # what came may have gone again
    return surroundings(states, rows[there], nodes[there])


def _walk(states: States, begin: np.ndarray, distance: int, width: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """(the cells at each distance; of all but the last ones the edges: a cell and its neighbour, by number in that order, and what the
    neighbour counts for). A cell is a node of a state."""
    seen, number = np.zeros(states.n * width, bool), np.empty(states.n * width, np.int32)

    def new(cells: np.ndarray) -> np.ndarray:
        """Those that were not seen yet, each once."""
        cells = cells[~seen[cells]]
        number[cells] = order = np.arange(len(cells))
        cells = cells[number[cells] == order]  # of equal ones the last has left its number
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
    ends, others, weights = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    return rings, number[ends], number[others], weights


def _neighbours(states: States, rows: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which of the nodes, its neighbour, a weight): of all that make what a node reads, and read what it makes."""
    index = states.index
    reader, tensors = index.reads.take(nodes)
    makers = states.makers(rows[reader], tensors)
    maker, tensors = index.makes.take(nodes)
    read, readers = index.readers.take(tensors)
    maker = maker[read]
    there = states.maker[rows[maker], index.home.values[readers]] == readers
    which = np.concatenate([reader[makers >= 0], maker[there]])
    others = np.concatenate([makers[makers >= 0], readers[there]]).astype(np.int64)
    return which, others, np.repeat([READ, MADE], [np.count_nonzero(makers >= 0), np.count_nonzero(there)])


def _mixed(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(33))) * FINISH
    return values ^ (values >> np.uint64(29))
