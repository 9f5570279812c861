"""The task `ordering`: the order in which nodes run decides how much memory is needed at the peak; which order is best?

| module | what |
| --- | --- |
| `layered.py` | problems: the paper's graphs (Topoformer, Gagrani et al. 2022) |
| `local_search.py` | orders improved by small changes |
| `guided.py` | the best order by levels, guided by priorities that were learnt |
| `runtime.py` | what ONNX Runtime does: which order it runs, which results share a buffer, and where |
| `offsets.py` | where buffers of a given order are put at best |
| `instance.py`, `task.py` | the one-shot task: a decision is an order of the nodes |
| `files.py`, `sessions.py` | files in a chosen order, and the order that sessions run; what runs add to a process |
| `memory.py`, `rewrites.py` | the command `memory`: a model made to need less by its order, or rewritten first |
| `receipt.py`, `page.py` | the receipt of what it wrote, and its page |

What peaks, orders and their optimum are is `rlflow.costs.memory`'s, as rewriting counts them, too.

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

**Why rewrites are searched before the order is.** The search asks for thousands of peaks, of what ONNX Runtime is
expected to make of each graph (`rlflow.costs.memory`); what it really makes of the last one is then ordered with all
care, and taken only if its peak is below that of the model in its best order. What is rewritten rounds otherwise: it is
compared as `optimise` compares, within a tolerance; the file with the rewritten model bit for bit.
"""
