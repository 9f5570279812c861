"""Topoformer (Gagrani et al. 2022): a network that says in which order the nodes of any graph need little memory.

| file | contents |
| --- | --- |
| `observation.py` | what the network sees: features, and how every two nodes are related |
| `network.py` | from there to priorities of the nodes, to orders and their probabilities |
| `reinforce.py` | a gradient step |
| `controller.py` | the controller: it learns on new graphs and orders any graph |

**It learns on other graphs than the one it orders.** Priorities are a function of any graph, so one training orders
every model in the time of one pass. An instance draws others of its kind (`rlflow.tasks.base.Sequencing`). The folder
of a training can begin another one (`controller.topoformer.start`); with `epochs=0` nothing more is learnt.
`shipped/` is such a folder, with the weights alone: the default options on layered graphs of 100 nodes, seed 0, 202
epochs.

**Sizes are shares of the largest.** Tensors of a model have 4 to 10⁹ bytes, the graphs of the paper 1 to 10⁴ units.
The largest ones decide, and by how much they differ, so nothing else is shown, as in the paper. A logarithm would
tell apart what is too small to matter.

**Nothing depends on the numbering.** Eigenvectors of the Laplacian have no sign of their own; here they grow with
depth. In a graph so symmetrical that several have one eigenvalue, the numbering does decide which of them are seen.

**The relations of a graph are bytes.** Masks of seven graphs would be seven times as large. The masks of all networks
in Table 3 of the paper are looked up in the same bytes (`network.GROUPS`).

**The baseline is the mean.** Drawing an order costs next to nothing beside the network, so several are drawn of each
graph. Their mean needs no second network, as the greedy orders of the paper do, and teaches no worse. After 525 steps
on graphs of 50 nodes the result is 4.9 % below depth-first orders instead of 3.9 %, one seed each. Greedy orders and
a paired t-test decide which network is kept (Kool et al. 2019).

**The decoder of Table 4 of the paper,** which asks the network anew for every node, is an ablation.
"""

from pathlib import Path

SHIPPED = Path(__file__).parent / "shipped"  # the folder of the network that comes with RLFlow
