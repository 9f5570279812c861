import numpy as np

from rlflow.common.task import GraphArrays
from tests.toys import letters as toy


def shuffled(graph: GraphArrays, random: np.random.Generator) -> GraphArrays:
    """Return the same graph with its nodes renumbered and its edges in another order."""
    nodes, edges = random.permutation(len(graph.ops)), random.permutation(len(graph.senders))
    position = np.argsort(nodes).astype(np.int32)
    return GraphArrays(
        graph.ops[nodes], graph.nodes[nodes], graph.edges[edges], position[graph.senders][edges],
        position[graph.receivers][edges], graph.globals,
    )


def graphs() -> list[GraphArrays]:
    return toy.episode(0).graphs


def test_the_order_of_nodes_and_edges_does_not_matter(trained):
    model, _ = trained
    random = np.random.default_rng(0)
    other = [shuffled(graph, random) for graph in graphs()]
    np.testing.assert_allclose(model.encode(graphs()), model.encode(other), atol=2e-3)


def test_the_structure_does_matter(trained):
    """Two chains of the same letters in another order differ only in their edges."""
    model, _ = trained
    one, two = model.encode([toy.graph(toy.START), toy.graph(tuple(sorted(toy.START)))])
    assert np.abs(one - two).max() > 0.5


def test_other_graphs_in_the_batch_do_not_change_an_encoding(trained):
    model, _ = trained
    single = np.concatenate([model.encode([graph]) for graph in graphs()])
    np.testing.assert_allclose(model.encode(graphs()), single, atol=2e-3)


def test_a_graph_without_edges_is_encoded(trained):
    model, _ = trained
    assert np.isfinite(model.encode([toy.graph(((toy.C, 1),))])).all()


def test_graphs_of_any_size_are_encoded_by_one_trace(trained):
    model, _ = trained
    for size in (1, 2, 5, 9):
        model.encode([toy.graph(toy.START[:size + 1])] * size)
    assert model._encode.experimental_get_tracing_count() == 1
