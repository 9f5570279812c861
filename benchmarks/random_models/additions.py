"""Additions to random models: random draws, a wide Concat or Max, and outputs with unknown sizes.

Each draw has a seed of its own, so that equal models give equal draws in new sessions. A rewrite that merges, repeats
or leaves out a draw then changes an output.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper

DRAWS = ("RandomUniformLike", "RandomNormalLike")
WIDTHS = (6, 24)  # smallest and largest number of operands of a wide operator
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
NO_KERNEL = 22  # first opset in which ONNX Runtime 1.31 has no kernels for DRAWS
UNKNOWN = 0.3  # probability that an output has unknown sizes


def with_additions(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return the model with draws and a wide operator behind two of its floating-point tensors, as new outputs.

    Args:
        model: the model.
        seed: seed of the choices.
    """
    rng, result = np.random.default_rng([seed, 44]), onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    inferred = onnx.shape_inference.infer_shapes(model).graph
    made = {value.name for value in graph.input} | {name for node in graph.node for name in node.output}
    kinds = {value.name: value.type.tensor_type for value in (*inferred.input, *inferred.value_info, *inferred.output)}
    floats = sorted(n for n in made & kinds.keys() if kinds[n].elem_type in FLOATS and kinds[n].HasField("shape"))
    ranked = [name for name in floats if kinds[name].shape.dim]

    def new(op: str, inputs: list[str], **attributes) -> str:
        name = f"added{len(graph.node)}"
        graph.node.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def give(name: str, source: str) -> None:
        """Declare an output with the type of the tensor `source` and unknown sizes."""
        rank = len(kinds[source].shape.dim)
        graph.output.append(helper.make_tensor_value_info(name, kinds[source].elem_type, [None] * rank))

    if floats and model.opset_import[0].version < NO_KERNEL:
        source, op = floats[int(rng.integers(len(floats)))], DRAWS[int(rng.integers(len(DRAWS)))]
        first, second = (new(op, [source], seed=float(number)) for number in (1, 2))
        drawn = new("Sub", [new("Neg", [new("Neg", [first])]), second])
        give(new("Add", [new("Identity", [source]), drawn]), source)
    if ranked:
        source = ranked[int(rng.integers(len(ranked)))]
        ops = [("Relu", "Neg", "Abs", "Identity")[int(k)] for k in rng.integers(0, 4, 2)]
        parts = [new(ops[int(rng.integers(2))], [source]) for _ in range(int(rng.integers(*WIDTHS)))]
        give(new("Relu", [new("Concat", parts, axis=0) if rng.random() < 0.5 else new("Max", parts)]), source)
    for value in graph.output:
        if rng.random() < UNKNOWN:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    return result
