"""The world model "edits" predicts which nodes disappear and which appear when a rule rewrites a match.

| file | contents |
| --- | --- |
| `learned_rules.py` | match patterns, their effects, prediction by analogy, match classes, conversion to JSON |
| `cost_model.py`, `node_values.py` | runtimes of nodes, alone and in their neighbourhood; the latent state z |
| `reward_scales.py` | conversion of runtimes to rewards |
| `grounding.py`, `grounding_index.py` | the numbered nodes, tensors and matches of one initial graph; their arrays |
| `logged_episodes.py` | recorded episodes, in the numbers of a grounding |
| `dream_states.py`, `neighbourhood.py` | batches of states, a step in a batch, hashes of node neighbourhoods |
| `simulator.py` | gain and uncertainty of a step |
| `imagination.py`, `searchable_dream.py` | imagined rollouts, observers, replays; states that a search can explore |
| `rule_learning.py`, `cost_training.py`, `class_rewards.py` | learning from the training set |
| `model.py`, `training.py` | the class of the world model and its files; the training |

Rewriting is deterministic and local, and observations show where rules apply. The model therefore learns match patterns
with their signatures, and the effect of rewriting a match of each pattern. A pattern contains no node ids, so examples
from one block of a network hold for all equal blocks, in other networks too. Symbolic sizes are symbols in a signature,
so examples at one typical size hold for all sizes. Only runtimes depend on the size. The only random quantity of a
step is the runtime of nodes with equal neighbourhoods.
"""

