"""The world model "edits" predicts which nodes disappear and which appear when a rule rewrites a match.

| file | contents |
| --- | --- |
| `learned_rules.py` | match patterns, effects of rewriting them, analogies, match classes, conversion to JSON |
| `cost_model.py`, `node_values.py` | costs of nodes, alone and in their neighbourhood; the latent z |
| `reward_scales.py` | conversion of runtimes to rewards |
| `grounding.py`, `grounding_index.py` | numbered nodes, tensors and matches of one initial graph; the same as arrays |
| `logged_episodes.py` | recorded episodes, in the numbers of a grounding |
| `dream_states.py`, `neighbourhood.py` | batches of states, one step of them, hashes of node neighbourhoods |
| `simulator.py` | gain and uncertainty of a step |
| `imagination.py`, `searchable_dream.py` | dreams, observers and replays; dreams that a search can explore |
| `rule_learning.py`, `cost_training.py`, `class_rewards.py` | learning from the training set |
| `model.py`, `training.py` | the interface and its files; the training |

Rewriting is deterministic and local, and an agent sees where rules apply. The model therefore learns match patterns
with their signatures, and the effect of rewriting each. A pattern names no node, so one block of a network teaches the
rules of all equal blocks, in other networks too. A symbolic size is a symbol in a pattern, so one typical size teaches
the rules for all sizes. Only runtimes depend on the size. The only random quantity is the spread of runtimes within
equal neighbourhoods.
"""

