"""X-RLflow: an agent that observes the graph and the successor graph of every valid action; trained on the real graph.

A *candidate* is the current graph (candidate 0, chosen by NO-OP) or the successor graph of one valid action.

| file | contents |
| --- | --- |
| `network.py` | batches of observations, the graph network, the policy and value heads |
| `agent.py` | PPO over candidates, after optional imitation of beam search |

rlflow/env/candidates.py makes the observations. configs/xrlflow.yaml holds the settings of the authors. This version
differs from the paper and its code in these points:

- *Candidates are patches* (`controller.xrlflow.encoding=local`). With k attention layers a node depends on nodes up to
  k edges upstream, so a candidate differs from the current graph only within k edges downstream of its rewrite. The
  network computes these rows in the same pass as the current graph. The result equals the encoding of whole
  candidates (`encoding=whole`), which is expensive: BERT-Base has 423 candidates of 622 nodes each.
- *One head scores every candidate* (`head=each`). The flattened layer of the paper learns the value of the same
  rewrite separately for each of 500 positions.
- *A candidate is represented by its difference to the current graph,* which is 0 for NO-OP.
- *Weights and inputs are not nodes.* Their shapes are summed into the nodes that read them, as in equation 6. A
  feature marks constant nodes, which are folded and cost nothing.
- *Rewards are divided by their running standard deviation*, as in PPO, so any reward can be used. A truncated episode
  includes the value of its last state; the code of the authors leaves this value out.
- *Estimated gains can be inputs* (`gains=true`). The policy then begins near greedy descent, also on unseen models.
- *A greedy evaluation episode* is played, and counted, before the first update and after each; the best policy is kept.
"""

