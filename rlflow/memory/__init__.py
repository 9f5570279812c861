"""Peak memory: how much memory a graph needs while it runs, and how to lower it.

| module | content |
| --- | --- |
| `problem.py` | the ordering problem (nodes and buffers), the peak of an order, simple orders |
| `allocation.py` | the ordering problem of a model, and a simulation of ONNX Runtime's memory planner |
| `order_search.py` | search for the order with the lowest peak, with a bound; beams guided by learned priorities |
| `cost.py` | the cost `memory`: the peak of the order that a quick search finds |
| `ordered_files.py` | files with a chosen node order; the order and the memory of real sessions |
| `pipeline.py` | the command `memory`: rewrite, order, check, measure, write the receipt |

A buffer exists from the run of its maker to the run of its last reader. Therefore the memory in use at some step
depends on the set of nodes that have run and not on their order. Dynamic programming, beams and proofs rest on this
property.
"""
