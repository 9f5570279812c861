"""The immutable computation graph, ONNX reading and writing, shape inference, and ONNX Runtime sessions.

- ir.py: `Graph`, `Node`, `Constant` and the edit `Graph.rewrite`; order.py: the canonical order of nodes.
- onnx_reader.py, onnx_writer.py: ONNX files to graphs and back; naming.py: names of nodes and tensors that rules add;
  repairs.py: the ONNX checker and repairs; limits.py: limits on untrusted models.
- opsets.py: conversion of operators between the form of the model's opset and the form inside the graph.
- bodies.py: bodies of If, Loop and Scan, and inlined functions; random_numbers.py: operators that draw random numbers.
- shapes.py: type inference for one operator; symbolic.py, contents.py, dims.py, symbols.py: symbolic sizes.
- typical.py: numeric sizes at which a model with symbolic sizes is estimated, measured and run.
- half_precision.py, dequantised.py: conversion of float16 and quantised models to float32.
- onnx_runtime.py: sessions and kernels; trial.py: the trial run; session_file.py: session options beside a model;
  contrib.py: schemas of ONNX Runtime's own operators; custom_ops.py: libraries of custom operators.
- feeds.py: the inputs on which a model is run, read by given_inputs.py or drawn by drawn_inputs.py; input_values.py,
  input_walk.py, input_demands.py: the values that the graph demands of its inputs.
"""
