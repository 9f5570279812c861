"""The world model "graph-mdn": graph networks, a recurrent mixture-density state, and a memory of what was observed.

| file | contents |
| --- | --- |
| `network_inputs.py` | features of operators and tensors by signature; matches as graphs |
| `effects.py` | effects of rewrites as choices of a network |
| `network.py` | the match network and the node network |
| `neural_rules.py` | recorded effects, and the match networks for all other matches |
| `neural_costs.py` | logged costs, and cost laws and the node network for all other nodes |
| `graph_latents.py` | the latent state z, by message passing |
| `episode_network.py` | the recurrent state h with its mixture of rewards |
| `reward_kinds.py` | the kinds of rewards, recognised from the data |
| `simulator.py`, `imagination.py` | steps of graphs; rollouts, observers and replays with z and h |
| `training_batches.py`, `training.py` | training data and losses; the training |
| `model.py` | the interface and its files |

The state of a dream is a graph, and a rewrite changes a few of its nodes. The code of `worldmodel.edits` applies
rewrites to batches of such graphs. "edits" looks up its predictions in tables by the hashes of operators and tensors.
This model recalls an effect or a cost that the data contain. Networks predict everything else from the attributes of
operators and the sizes of tensors:

- *Does the rule apply?* The match network reads the match as a graph. An edge between every two tensors shows which of
  their axes agree, since most conditions of rules are equalities. A rule that was never refuted is assumed to apply.
- *What is the effect?* The network chooses a structure and then fills each slot of the structure: the operator of a new
  node or the shape of a new tensor. It chooses among copies from the match and values that the rule has made before. It
  sees which values are equal and which sizes are sums, so it recognises concatenated channels.
- *What does a node cost?* A law of arithmetic and memory for each kind of operator extrapolates to new sizes. The node
  network predicts a mixture of Gaussians for the logarithm of the cost minus the logarithm that the law gives. It uses
  the node alone if costs are sums over operators, and otherwise all nodes within five edges. A gain is the difference
  of the predicted costs of two graphs, so errors do not add up over an episode. The temperature scales the spread of
  the mixture. The default is one Gaussian: with four, the error after the same number of training steps was seven times
  as large.

A prediction depends only on the pattern and signature of a match or on the neighbourhood of a node, and is cached.
Controllers see the graph as z, a sum of vectors of its nodes. The recurrent state h predicts quantities that the graph
does not determine: rewards that are no sum over nodes, and ends of episodes. The temperature of a dream acts on the
reward mixture of h. Patterns are learned as in "edits", so a match with an unknown pattern never appears in a dream.
worldmodel/edits/simulator.py defines the levels of uncertainty.
"""

