"""The world model "graph-mdn": graph networks predict what a rewrite does, over graphs whose nodes have names.

| file | contents |
| --- | --- |
| `network_inputs.py` | operators and tensors as features by signature; matches as graphs |
| `effects.py` | what a rewrite can do, as choices that a network makes |
| `network.py` | the match network and the node network |
| `neural_rules.py` | the match networks, asked instead of the tables of "edits" |
| `neural_costs.py` | cost laws and the node network, asked instead of the cost tables |
| `simulator.py` | steps of dreams |
| `training_batches.py`, `training.py` | what the networks are trained on; the training |
| `model.py` | the interface and its files |

The latent state of a dream is a graph, and a rewrite changes a few of its nodes. `worldmodel.edits` steps such graphs
by the hundred. Where "edits" looks up a table, this model asks a network, which sees attributes and sizes instead of
names:

- *Does the rule apply?* The match network reads the match as a graph. An edge between every two tensors says which of
  their axes agree, since most conditions of rules are equalities. A rule that was never refuted is trusted.
- *What does it do?* The network chooses a structure. It then fills each slot of the structure, which is the operator
  of a new node or the shape of a new tensor: with a copy from the match, or with what the rule ever made. It sees
  which values are equal and which sizes are sums, so it recognises merged channels by what they add up to.
- *What does a node cost?* A law for each kind of operator, of arithmetic and memory, holds for sizes that were never
  met. The node network predicts a mixture of Gaussians for what the law leaves over of the logarithm: from the node
  alone where costs are sums over operators, else from all nodes within five edges. A gain is a difference of two
  graphs, so errors do not add up over an episode. The temperature scales the spread of the mixture. One Gaussian is
  the default: with four the error after as many steps was seven times as large.

An answer depends only on the signature of a match or on the neighbourhood of a node, and is kept. A dream is
therefore as fast as one of "edits" once it has met what there is to meet. Nothing recurs, since the graph is the
whole state. Patterns are learnt as in "edits", so a match whose pattern was never seen is not dreamt. A doubtful
network raises the same three uncertainties as "edits".
"""

