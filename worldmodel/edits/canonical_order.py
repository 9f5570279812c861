"""Of two symmetric matches, the one that the environment names: its nodes come first in the graph's canonical order.

That order is depth first from the graph's outputs, operands before their consumers. Only as much of it is walked as
tells two nodes apart.
"""

from heapq import heappop, heappush

import numpy as np

from worldmodel.edits.dream_states import DreamStates


def as_named_by_environment(states: DreamStates, rows: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """The matches, int [k] in states rows, or their symmetric ones where those are what the environment names."""
    named, grounding = matches.copy(), states.index.grounding
    for k in np.flatnonzero(states.index.has_symmetric.values[matches]).tolist():
        match, symmetric = int(matches[k]), grounding.symmetric_match[int(matches[k])]
        one, other = grounding.matches[match].nodes, grounding.matches[symmetric].nodes
        differ = next(i for i in range(len(one)) if one[i] != other[i])
        if first_of(states, int(rows[k]), one[differ], other[differ]) == other[differ]:
            named[k] = symmetric
    return named


def first_of(states: DreamStates, row: int, one: int, other: int) -> int:
    """Which of two nodes comes first in the canonical order of a state."""
    grounding, producer = states.index.grounding, states.producer[row]
    primary_outputs = grounding.primary_outputs
    entrances, around = _entrances(states, row, one, other)
    met: set[int] = set()
    for entrance in entrances:
        stack = [(entrance, iter(grounding.nodes[entrance][1]))]
        while stack:
            node, inputs = stack[-1]
            tensor = next(inputs, None)
            if tensor is None:
                if node in (one, other):
                    return node
                stack.pop()
            elif tensor >= 0:
                for below in grounding.producers[tensor]:
                    if below in around and below not in met and producer[primary_outputs[below]] == below:
                        met.add(below)
                        stack.append((below, iter(grounding.nodes[below][1])))
                        break
    return one


def _entrances(states: DreamStates, row: int, one: int, other: int) -> tuple[list[int], set[int]]:
    """(where a walk from the outputs enters what leads to two nodes, in its order; all that does, from there on).

    A single node as soon as every way from the two leads through it; else the outputs.
    """
    grounding, producer, is_output = states.index.grounding, states.producer[row], states.index.is_output.values
    order_keys, primary_outputs = grounding.order_keys, grounding.primary_outputs
    around, outputs = {one, other}, []
    heap = sorted((order_keys[primary_outputs[node]], node) for node in around)
    while len(heap) > 1 or (outputs and heap):
        _, node = heappop(heap)
        if is_output[node]:
            outputs.append(node)
        for tensor in grounding.nodes[node][2]:
            for consumer in grounding.consumers[tensor] if tensor >= 0 else ():
                if consumer not in around and producer[primary_outputs[consumer]] == consumer:
                    around.add(consumer)
                    heappush(heap, (order_keys[primary_outputs[consumer]], consumer))
    if heap:
        return [heap[0][1]], around
    return sorted(outputs, key=lambda node: order_keys[primary_outputs[node]]), around
