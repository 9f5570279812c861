"""Peak memory: how much memory a graph needs while it runs, and how to lower it.

| module | content |
| --- | --- |
| `problem.py` | nodes and buffers; the peak of an order; simple orders |
| `allocation.py` | what ONNX Runtime allocates for a model, as such a problem and byte for byte |
| `order_search.py` | the best order by levels, with a proof or a bound; beams guided by learned priorities |
| `cost.py` | the cost `memory`: the peak of the order that a quick search finds |
| `ordered_files.py` | files with a chosen node order; the order and the memory of real sessions |
| `pipeline.py` | the command `memory`: rewrite, order, check, measure, write the receipt |

A buffer exists from its maker to its last reader. Therefore the memory in use depends on which nodes have run and not
on their order. Dynamic programming, beams and proofs rest on this property.
"""
