"""EGRL (Khadka et al. 2021): evolution and policy gradients that place the tensors of a network in memories.

| file | contents |
| --- | --- |
| `networks.py` | the graph U-Net of the policy and the critic, as functions of flat parameter vectors |
| `gradients.py` | SAC for discrete actions: a gradient step of the actor and the twin critics |
| `evolution.py` | the population of networks and Boltzmann chromosomes |
| `agent.py` | the controller: generations of rollouts, gradient steps and evolution |

**What the paper does not specify is an option** of `controllers.controller_options.EGRLConfig`, whose default value is
our decision: elites, tournament, mutation, pooling ratios, the critic's network, noise.

**An episode has one step,** so the critic learns the reward itself. With `bootstrap=true` it learns the paper's Bellman
target on the same graph, with the discount and the target networks.

**Sub-populations keep their sizes,** as the paper's Figure 2 draws them: a network's place is taken by networks, a
chromosome's by chromosomes. An elite network seeds the prior of a chromosome where the paper's Algorithm 2 crosses two
encodings. A chromosome cannot seed a network.
"""
