"""The immutable computation graph, ONNX reading and writing, shape inference, and ONNX Runtime sessions.

- ir.py: `Graph`, `Node`, `Constant` and the edit `Graph.rewrite`; order.py: the canonical order of nodes.
- onnx_reader.py, onnx_writer.py: ONNX files to graphs and back; limits.py: limits on untrusted models.
- opsets.py: conversion of operators between the form of the model's opset and the form inside the graph.
- shapes.py: type inference for one operator; symbolic.py, contents.py, dims.py, symbols.py: symbolic sizes.
- typical.py: numeric sizes at which a model with symbolic sizes is estimated, measured and run.
- onnx_runtime.py: sessions and random inputs; contrib.py: schemas of ONNX Runtime's own operators; custom_ops.py:
  libraries of custom operators.
"""
