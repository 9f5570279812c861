"""The task `ordering`: the order in which nodes run decides how much memory is needed at the peak; which order is best?

| module | what |
| --- | --- |
| `problem.py` | nodes and buffers; what thousands of orders need |
| `layered.py`, `models.py` | problems: the paper's graphs (Topoformer, Gagrani et al. 2022), and models |
| `sorting.py`, `local_search.py` | orders depth first, breadth first, by priorities, at random; by small changes |
| `beam.py`, `optimum.py` | the best order by levels, exact where nothing is cut; with a proof, or a bound |
| `kernels.py`, `runtime.py` | what ONNX Runtime does: which order it runs, which results share a buffer, and where |
| `offsets.py` | where buffers of a given order are put at best |
| `instance.py`, `task.py` | the one-shot task: a decision is an order of the nodes |
| `files.py`, `sessions.py` | files in a chosen order, and the order that sessions run; what runs add to a process |
| `memory.py`, `receipt.py`, `page.py` | the command `memory`: a model made to need less; its receipt and its page |

**Why nodes and buffers.** In the paper's cost every node has one output, which ends with its last reader (equations 2,
3 and 15: `Problem.of_nodes`). In a model a node makes several results or none of its own (a Reshape is a view), outputs
stay to the end, some results are written over an input. All of it is one rule: a buffer is there from its maker to its
last reader. What is in use then depends on *which* nodes have run, and not on their order. That is what dynamic
programming, beams and proofs rest on.

**Why two costs of a model.** The peak of a problem is what an ideal allocator needs, and has proofs. ONNX Runtime needs
more: it takes over a freed buffer only for a result of the same shape and element size, and for longer than that one
lived; it puts buffers where they happen to fit. That (`runtime.plan`) depends on the whole order. It is simulated to
the byte and reported beside the peak; best orders are those of the peak.

**Why whole numbers.** Sums of them are the same in any order and on any machine.

**Why the file that `memory` writes is ONNX Runtime's own.** Sessions keep the order of a file if they do not optimise
it, so the optimising is done before. What is called "as it is" is asked of sessions and not simulated: the optimised
graph keeps its nodes in memory in an order that no file shows.

**Why one size.** At another size of its inputs the same file is right, but another order may be best.

**Why no integer program.** The question "is there an order with a peak of P?", asked of a walk over sets of nodes,
proves the optimum of real networks in seconds (docs/results/ordering.md), as the memory limit leaves few sets.
"""
