"""The world model "edits" predicts which nodes disappear and which appear when a rule rewrites a match.

| file | contents |
| --- | --- |
| `learned_rules.py` | match patterns, what rewriting them does, analogies, match classes, the same as JSON |
| `cost_model.py`, `node_values.py` | what nodes cost, alone and among others; the latent z |
| `reward_scales.py` | how runtimes are rewarded |
| `grounding.py`, `grounding_index.py` | the numbered nodes, tensors and matches of one initial graph, also as arrays |
| `logged_episodes.py` | what episodes recorded, in the numbers of a grounding |
| `dream_states.py`, `neighbourhood.py` | many states of a grounding, one step of them, keys of what is around nodes |
| `simulator.py` | gain and uncertainty of a step |
| `imagination.py`, `searchable_dream.py` | dreams, observers and replays; dreams that a search can walk |
| `rule_learning.py`, `cost_training.py`, `class_rewards.py` | what is learnt from the training set |
| `model.py`, `training.py` | the interface and its files; the training |

Rewriting is deterministic and local, and an agent sees where rules apply. The model therefore learns match patterns
with their signatures, and the effect of rewriting each. A pattern names no node: one block of a network is enough to
know all others, and other networks. A symbolic size is a symbol in a pattern, so one typical size is enough to know
every other. Only runtimes depend on the size. Nothing is sampled but the spread that runtimes had in the same
neighbourhood.
"""

