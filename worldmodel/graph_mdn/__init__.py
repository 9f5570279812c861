"""The world model "graph-mdn": graph networks predict the effects and costs of rewrites, over graphs with named nodes.

| file | contents |
| --- | --- |
| `network_inputs.py` | features of operators and tensors by signature; matches as graphs |
| `effects.py` | effects of rewrites as choices of a network |
| `network.py` | the match network and the node network |
| `neural_rules.py` | the match networks, used instead of the tables of "edits" |
| `neural_costs.py` | cost laws and the node network, used instead of the cost tables |
| `simulator.py` | steps of dreams |
| `training_batches.py`, `training.py` | training data and losses; the training |
| `model.py` | the interface and its files |

The latent state of a dream is a graph, and a rewrite changes a few of its nodes. The code of `worldmodel.edits` applies
rewrites to batches of such graphs. "edits" looks up its predictions in tables by the hashes of operators and tensors.
This model uses networks instead, whose inputs are attributes and sizes:

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

A prediction depends only on the signature of a match or on the neighbourhood of a node, and is cached. A dream without
new signatures is therefore as fast as in "edits". There is no recurrent state, since the graph is the whole state.
Patterns are learned as in "edits", so a match with an unknown pattern never appears in a dream. The model has
the same levels of uncertainty as "edits".
"""

