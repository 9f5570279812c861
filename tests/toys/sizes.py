"""A model with a symbolic sequence length, and its tasks at typical sizes."""

from functools import cache

from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.zoo.transformers import TINY_BERT, Transformer, bert_layer


@cache
def encoder_task(*typical: int, sequence: int | str = "seq", cost: type = AnalyticCost) -> Task:
    """Return the task of a BERT encoder of two layers, x [1, sequence, 32] and a mask, at these typical sizes of
    `seq`."""
    b = Transformer("encoder", 0, TINY_BERT, fused=False)
    x, mask = b.input("x", [1, sequence, TINY_BERT.hidden]), b.input("mask", [1, 1, 1, sequence])
    for k in range(TINY_BERT.layers):
        with b.scope(f"layer.{k}"):
            x = bert_layer(b, x, mask, 0)  # A 0 in a Reshape keeps the sequence length of its input.
    b.output(x, "y", [1, sequence, TINY_BERT.hidden])
    graph = load_graph(b.model())
    sizes = tuple([{"seq": size} for size in typical]) or ({},)
    return Task(graph, load_rules(), cost(), sizes=sizes)
