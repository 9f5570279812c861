"""The world model "graph-mdn": graph networks say what a rewrite does, over graphs whose nodes have names.

  signature_table.py   SignatureTable: how operators and tensors are observed, by signature
  match_graphs.py      MatchBatch: matches as graphs, with what is equal in them
  effects.py           Vocabulary, Menu: what can happen, taken apart into choices; what is a sum
  comparison.py        Comparison: what is equal in two things
  network.py           MatchNetwork, NodeNetwork: the two networks
  judge.py             Judge: what the match networks say of matches, remembered
  neural_rules.py      NeuralRules: that in place of the tables of "edits"
  node_batches.py      NodeRows: nodes and what is around them, as arrays
  cost_laws.py         CostLaws: a law for each kind of operator, from its sizes to what it costs
  neural_costs.py      NeuralCosts: what laws and the node network say of nodes
  simulator.py         NeuralSimulator: steps of dreams
  match_training.py, node_training.py, descent.py, training.py
  model.py             GraphMDNWorldModel

Why it is built so. The latent state of a dream is a graph, and a rewrite changes a few of its nodes. The machinery of
worldmodel/edits steps such graphs by the hundred: it knows which nodes are there and finds where patterns match. What
"edits" looks up in tables, and so knows of what it has met alone, is here asked of networks, which see what operators
and tensors are (their attributes, sizes, which sizes are equal) instead of their names:

- *Does the rule apply?* The match network reads the match as a graph: nodes, tensors, who reads what, and an edge
  between every two tensors that says which of their axes agree, since most conditions of rules are equalities. A rule
  that no match was ever seen to refute is not asked about, but trusted.
- *What does it do?* A choice among structures, then for each slot of the structure (the operator of a new node, the
  shape of a new tensor) a choice among what the match has, a copy, and what the rule ever made. A filling is seen
  beside all that the match has: what is equal in them, and which sizes are sums. A new shape is recognised by whose
  axes it has, merged channels by what they add up to.
- *What does a node cost?* A law for each kind of operator, of arithmetic and memory, says it for sizes that nobody has
  met. The node network predicts a mixture of Gaussians of what the law leaves over of the logarithm, from the node
  alone where costs are sums over operators, else from all within five edges. A gain is what goes less what comes, so
  errors of a whole episode are those of two graphs and do not add up. The temperature scales the mixture's spread. One
  Gaussian is the default: an estimate costs a node the same each time, and four were seven times as far off after as
  many steps.

A question is asked once: an answer depends on the match's signature, or on the neighbourhood of a node, and is kept.
So a dream steps as fast as one of "edits" once it has met what there is to meet, however large the networks are.

Nothing recurs: the graph is the whole state. A recurrent state would be of use where rewards depend on more than that.

Where a pattern was never seen, no match of it is dreamt of: the patterns, which say how matches hang together, are
learnt as they are in "edits". Where a network is not sure (an effect to which one of the match networks gives less than
SURE, a cost whose spread is wide) a step says so by the same three uncertainties as "edits".
"""
