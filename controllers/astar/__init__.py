"""A* and Q* with a learned value: searches of real states, guided by the best gain that a network expects.

Knossos (github.com/microsoft/knossos-ksc) rewrites functional programs; equations and algorithms with a number in this
package are from its paper. Its value V(s, t) is the largest decrease of the objective within t steps from a state s,
divided by t. A* expands the state with the highest f = t·V(s, t) + c(s₀) − c(s), where t is the number of steps left
and c is the objective. To expand a state, A* applies all its choices. Q* (Agostinelli et al. 2021, "A* Search Without
Expansions") learns the value Q(s, a, t) of the steps that begin with a choice a. Q* makes the choice with the highest
f = t·Q(s, a, t) + c(s₀) − c(s), so that it applies only promising choices. A search leaves behind a graph of states,
and the gains in this graph are the targets of the value.

| file | contents |
| --- | --- |
| `network.py` | batches of graphs, and the gated graph neural network with one output for each number of steps |
| `search.py` | the explored graph of states and its targets, A*, Monte Carlo tree search, Q* |
| `agent.py` | training with a curriculum of problems, and acting |

The paper of Knossos is an unfinished draft, so this list states where this version decides or differs:

- *Any step-by-step task.* The network reads `rlflow.common.task.GraphArrays`. An edge's features scale the message of
  the edge, where the paper has a matrix for each kind of edge. Messages go both ways along edges.
- *All numbers of steps are learnt* from every expanded state. The paper learns one, the steps left of the state.
- *States that were not expanded are no targets*, since nothing is known of their gains.
- *Best known paths are learnt again in every epoch.* Otherwise an epoch whose searches fail would erase the value.
- *A success* is a search that finds the lowest known objective of its problem. The paper counts rollouts, but A* makes
  none.
- *The value begins at 0.* Before training, A* is a best-first search by the objective, the paper's baseline.
- *Q* adds noise in training.* Each expected gain gets Gumbel noise with the scale of equation 9. Without noise, choices
  that the network undervalues would never be tried. The searches in `act` have no noise.
- *The learning rate decays to 0* over the epochs, so that the last value does not depend on the last few examples.
- *An evaluation is a rewrite that is applied*, as in every search of `rlflow.search`. The paper counts different
  states.
- *If several states have the same f, A* expands the state that it reached last.* Without a value, A* then found 31.8 of
  the gain of 34.8 (units of cost) in twelve training expressions within 2,500 evaluations. It found only 20.1 when it
  expanded the state that it reached first.
- *Acting searches again* from the end of the found path, until a search finds nothing. A path can thus be longer than
  `horizon`.
"""
