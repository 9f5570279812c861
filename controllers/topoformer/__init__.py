"""Topoformer (Gagrani et al. 2022): a network that says in which order the nodes of any graph need little memory.

| module | what |
| --- | --- |
| `observation.py` | what the network sees: features, and how every two nodes are related |
| `network.py` | from there to priorities of the nodes |
| `decoder.py` | from priorities to orders, and how probable these are |
| `reinforce.py` | a gradient step |
| `controller.py` | the controller: learns on new graphs, orders any |

**Why it learns on other graphs than the one it is to order.** Priorities are a function of any graph, so what was
learnt once orders a model in the time of one pass. An instance draws others of its kind
(`rlflow.common.task.Sequencing`); a folder of a training begins another (`controller.topoformer.start`), with
`epochs=0` nothing is learnt besides. `shipped/` is one such folder, with the weights alone: the default options on
layered graphs of 100 nodes, seed 0, 202 epochs.

**Why sizes are shares of the largest.** A model's tensors have 4 to 10⁹ bytes, the paper's graphs 1 to 10⁴ units.
What decides is the largest ones, and by how much they differ; so nothing else is shown, as in the paper. No unit
matters, and no order changes with it. A logarithm would tell apart what is too small to matter.

**Why nothing depends on the numbering.** Eigenvectors of the Laplacian have no sign of their own; ours grow with
depth. Where a graph is so symmetrical that several have one eigenvalue, numbering does decide which of them are seen.

**Why the relations of a graph are bytes.** Masks of seven graphs would be seven times as large as they are, and those
of all networks of the paper's Table 3 are looked up in the same bytes (`network.GROUPS`).

**Why the baseline is the mean.** Drawing an order costs next to nothing beside the network, so several are drawn of
each graph. Their mean needs no second network, and teaches no worse than the paper's greedy orders of the best
network: after 525 steps on graphs of 50 nodes 4.9 % below depth-first orders instead of 3.9 %, one seed each. Which
network is kept is decided by greedy orders and a paired t-test, as in Kool et al. 2019.

**Where the decoder of the paper's Table 4 is,** which asks the network anew for every node: an ablation,
`benchmarks/autoregressive.py`.
"""

from pathlib import Path

SHIPPED = Path(__file__).parent / "shipped"  # the folder of the network that comes with RLFlow
