"""Peak memory: what a graph needs while it runs, under the best order of its nodes.

| module | what |
| --- | --- |
| `problem.py` | nodes and buffers; what thousands of orders need |
| `kernels.py`, `models.py` | what ONNX Runtime allocates when it runs a graph, as such a problem |
| `sorting.py` | orders depth first, breadth first, by priorities, at random |
| `beam.py`, `optimum.py` | the best order by levels, exact where nothing is cut; with a proof, or a bound |
| `cost.py` | the cost `memory`: the peak of the order that a quick search finds |
"""
