"""X-RLflow: an agent that sees the graph and all graphs that valid actions lead to, and learns from the real graph.

| file | contents |
| --- | --- |
| `network.py` | observations side by side as one graph, the graph network, the heads of policy and value |
| `agent.py` | PPO over candidates; before it, imitation of what beam search did |

What the network sees is made in rlflow/env/candidates.py. The authors' settings are configs/xrlflow.yaml. This
version departs from the paper and its code in these points:

- *Candidates are patches* (`controller.xrlflow.encoding=local`). With k layers of attention a node sees k edges back,
  so a candidate differs from the current graph only within k edges behind its rewrite. Its rows are computed beside
  the rows of the current graph, by the same network in the same pass. The encoding equals the encoding of whole
  candidates. BERT-Base has 423 of them with 622 nodes each; `whole` makes and encodes them all.
- *One head scores each candidate* (`head=each`), whatever its number. The flattened layer of the paper learns for
  each of 500 positions anew what the same rewrite is worth.
- *A candidate is shown by what it changes.* NO-OP is the candidate that changes nothing.
- *Weights and inputs are no nodes.* Their shapes are summed into the nodes that read them, as in equation 6. A node
  also says whether it is constant, since constants are folded and cost nothing.
- *Rewards are divided by their running deviation*, as for PPO, so any reward will do. A cut episode counts the value
  of its last state, which the code leaves out.
- *Gains can be shown* (`gains=true`). A known estimate then need not be learnt, and the policy departs from greedy
  descent on models that it never saw, too.
- *A greedy episode is played and counted* before the first update and after each, and the best policy is kept.
"""

