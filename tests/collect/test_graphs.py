"""Test graphs with shared rows: each graph reads as before, and a row that several graphs contain is stored once."""

import numpy as np

from rlflow.collect.episodes import with_shared_tables
from tests.toys.tiny import tiny_task


def test_graphs_with_shared_tables_are_unchanged_and_hold_every_row_once():
    states = [tiny_task().initial]
    for _ in range(6):
        states.append(states[-1].apply(*states[-1].valid_actions()[0]))
    graphs = [state.arrays() for state in states]
    result = with_shared_tables(graphs)
    for graph, back in zip(graphs, result, strict=True):
        for name, array in graph._asdict().items():
            assert np.array_equal(array, getattr(back, name)) and array.dtype == getattr(back, name).dtype, name
        assert all(np.array_equal(a, b) for a, b in zip(graph, back, strict=True))
    tables = result[0].tables
    assert all(graph.tables is tables for graph in result)
    assert len(np.unique(tables.edges, axis=0)) == len(tables.edges) < sum(len(graph.edges) for graph in graphs) / 2
    again = with_shared_tables(result)
    assert np.array_equal(again[-1].edges, graphs[-1].edges) and np.array_equal(again[0].tables.nodes, tables.nodes)


def test_a_graph_without_edges_is_kept():
    graph = tiny_task().initial.arrays()
    bare = graph._replace(edges=graph.edges[:0], senders=graph.senders[:0], receivers=graph.receivers[:0])
    assert with_shared_tables([bare])[0].edges.shape == bare.edges.shape
