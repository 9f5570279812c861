"""A model with custom operators of the package onnxruntime-extensions, and the path of their library."""

import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Do not import the package: its import makes child processes use protobuf's slow implementation in Python.
PACKAGE = Path(importlib.util.find_spec("onnxruntime_extensions").origin).parent
LIBRARY = str(PACKAGE / f"_extensions_pydll{EXTENSION_SUFFIXES[0]}")
DOMAIN = "ai.onnx.contrib"


def custom_model(op: str = "NegPos") -> onnx.ModelProto:
    """Return a model in which two Transposes cancel behind two equal custom operators.

    Args:
      op: name of the custom operator, which has two outputs.
    """

    def floats(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(op, ["h"], ["neg", "pos"], "first", domain=DOMAIN),
        helper.make_node(op, ["h"], ["neg2", "pos2"], "second", domain=DOMAIN),
        helper.make_node("Add", ["pos", "neg2"], ["sum"]),
        helper.make_node("Transpose", ["sum"], ["t"], perm=[1, 0]),
        helper.make_node("Transpose", ["t"], ["u"], perm=[1, 0]),
        helper.make_node(op, ["w"], ["wneg", "wpos"], "of_a_weight", domain=DOMAIN),
        helper.make_node("MatMul", ["u", "wpos"], ["y"]),
    ]
    w = numpy_helper.from_array(np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32), "w")
    known = [floats(name) for name in ("neg", "pos", "neg2", "pos2", "sum", "wneg", "wpos")]
    graph = helper.make_graph(nodes, "custom", [floats("x")], [floats("y")], [w], value_info=known)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
