"""The task `ordering`: the order in which nodes run decides how much memory is needed at the peak; which order is best?

`problem.py` says what is ordered, and what thousands of orders need. Problems come from the paper's generator
(`layered.py`) and from models (`models.py`).

**Why nodes and buffers.** In Topoformer's cost every node has one output. In a model a node has several or none of its
own (a Reshape is a view), some are kept to the end, some are written over an input. All of it is one rule: a buffer is
there from its maker to its last reader, and then memory in use is a matter of *which* nodes have run, not of their
order. That is what dynamic programming, beams and proofs rest on (`beam.py`, `optimum.py`).

**Why whole numbers.** Sums of them are the same in any order and on any machine.
"""
