"""X-RLflow: an agent that sees the graph and all graphs that valid actions lead to, and learns from the real graph.

| file | idea |
| --- | --- |
| `meta_graphs.py` | observations side by side, as one graph |
| `network.py` | the graph network, the policy's head and the value's |
| `imitation.py` | what beam search did, to learn from before that |
| `agent.py` | PPO over candidates |

What the network sees is made in rlflow/env/candidates.py. The authors' settings are configs/xrlflow.yaml; where we
depart from the paper and its code, and why:

- *Candidates are patches* (`controller.xrlflow.encoding=local`). With k layers of attention a node sees k edges back,
  so a candidate differs from the graph as it is in what lies within k edges behind its rewrite, and nowhere else. Its
  rows are computed beside those of the graph as it is, by the same network in the same pass: the encoding is that of
  the whole candidates, of which BERT-Base has 423 with 622 nodes each. `whole` makes and encodes them all.
- *One head scores each candidate* (`head=each`), whatever its number and however many there are. The paper's flattened
  layer learns anew for each of 500 positions what the same rewrite is worth.
- *A candidate is shown by what it changes*; see network.py. NO-OP is a candidate, the one that changes nothing.
- *Weights and inputs are no nodes*: their shapes are summed into the nodes that read them, as equation 6 has it. A node
  says besides whether it is constant, since what is constant is folded and costs nothing.
- Rewards are divided by their running deviation, as for our PPO, so that any reward will do; an episode that is cut
  counts what its last state is worth (the code leaves out the value of a batch's last step).
- *Gains can be shown* (`gains=true`): where the estimate of a candidate is known anyway, nobody need learn it. Then
  it is greedy descent that it departs from, on models that it never saw, too.
- Before the first update and after each a greedy episode is played, and counted; the best policy is kept.
"""
