"""The immutable computation graph with its canonical order, ONNX files in and out, and sessions of ONNX Runtime."""
