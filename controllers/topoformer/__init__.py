"""Topoformer (Gagrani et al. 2022): a network that orders the nodes of any graph so that they need little memory.

| file | contents |
| --- | --- |
| `observation.py` | observations: node features, and the relation of every pair of nodes |
| `network.py` | the network: priorities of nodes, orders and their probabilities |
| `reinforce.py` | a gradient step |
| `controller.py` | the controller, which trains on random graphs and orders any graph |

**Training graphs are random graphs,** not the graph to be ordered (`rlflow.common.task.Sequencing.random_instance`).
One training therefore orders every model in one pass of the network. `controller.topoformer.start` names the folder of
an earlier training to begin with; `epochs=0` uses its network unchanged. No network comes with RLFlow (docs/MEMORY.md).

**Tensor sizes are relative to the largest tensor,** as in the paper. **Features do not depend on the numbering of
nodes:** the sign of each Laplacian eigenvector is chosen so that its entries grow with depth. **The relation of two
nodes is one byte.** The attention masks of all networks in Table 3 of the paper are looked up by this byte
(`network.GROUPS`).

**The baseline is the mean cost of several sampled orders,** which needs no second network. A paired t-test of the costs
of greedy orders decides which network is kept (Kool et al. 2019).
"""
