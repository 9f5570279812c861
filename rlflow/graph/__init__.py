"""The immutable computation graph with its canonical order, ONNX files in and out, and sessions of ONNX Runtime.

Tensors keep their ids through a rewrite. A replacement's outputs take over the ids of what they replace, so consumers
need no change and an edit touches only its neighbourhood (`Graph.touched`).

Why the order of nodes is what it is, stands in order.py; why an operator has one form, in opsets.py; what ONNX
Runtime's own operators need, in contrib.py; why constant expressions stay nodes, in fold.py.
"""
