"""Steps of message passing that the world models are made of (graph_nets; Battaglia et al. 2018)."""

from collections.abc import Callable

import sonnet as snt
from graph_nets import modules
from graph_nets.graphs import GraphsTuple


def full_step(width: int, pooled: Callable) -> modules.GraphNetwork:
    """Edges from their ends, nodes from the edges on both sides, globals from all, `pooled` by graph."""
    model = _model_of(width)
    return modules.GraphNetwork(
        model, model, model,
        node_block_opt={"use_sent_edges": True},
        global_block_opt={"nodes_reducer": pooled, "edges_reducer": pooled},
    )  # fmt: skip


def messages(width: int) -> modules.InteractionNetwork:
    """Edges from their ends, nodes from the edges into them."""
    model = _model_of(width)
    return modules.InteractionNetwork(model, model)


def _model_of(width: int) -> Callable[[], snt.Module]:
    def model() -> snt.Module:
        return snt.Sequential([snt.nets.MLP([width, width]), snt.LayerNorm(-1, True, True)])

    return model


def processed(graphs: GraphsTuple, steps: list[modules.GraphNetwork]) -> GraphsTuple:
    """After these steps, each of which adds to what there was."""
    for core in steps:
        update = core(graphs)
        graphs = graphs.replace(
            nodes=graphs.nodes + update.nodes,
            edges=graphs.edges + update.edges,
            globals=graphs.globals + update.globals,
        )
    return graphs
