"""Searches for a cheaper graph over the same states that the environment plays with.

A search is a function

    method(search: Search, **options) -> str

that follows rewrites from `search.start` through `search.follow`, gives `search.saw` every state that might
be delivered, and returns why it stopped; its options are those that its dataclass in `rlflow/search/options.py`
declares. Limits, the best so far and what happens at Ctrl-C are the business of `rlflow.search.search`. A new one is
one file, one line here and those options.

A search works in one neighbourhood. Rewrites far apart hardly concern each other, so a queue of whole graphs fills with
the same rewrites in every order. Beam grows chains whose later rewrites touch what the earlier ones touched, a loss
first if need be; annealing draws most of its moves near the last one; best-first branches only on what conflicts with
the best match. GRASP is for what the steepest descent blocks: it draws whole descents, by a cost that times nothing.
What a match gains is kept until a rewrite touches its neighbourhood (gains.py), so a neighbour is judged without being
carried out; a gain that is out of date changes only the order of trying, as costs are those of the states. With
`search.moves=alike` a match of the start's is a move on all alike matches at once (rlflow/env/alike.py). Its gain is
that of one of the rewrites, and it lowers the cost by that for each of them; results are of single rewrites
(`numbered`). Beam tries its chains by single rewrites at the first of alike matches, and carries out at all of them
what pays there (`Position.of_single`, `everywhere`), so that what does not pay costs what it costs in one block.
Annealing walks by moves: a walk by single rewrites would draw among twelve equal blocks again, and found less. Alike is
the default, as it wins or draws by the clock (docs/results/alike_moves.md): the steepest descent ends in the same
optimum after a fifth of the rewrites, and in the same seconds beam and annealing go further, since a chain that pays in
one block is found once. That of the environment stays single (`env.moves`): the actions, masks and episodes of dreams
and trained controllers are single rewrites. TASO's backtracking carries out every rewrite: it is the control. Where a
gain has to be timed, the steepest step is the costliest to know: first-improvement descent takes the first that gains.
"""

from rlflow.common.registry import Registry

SEARCHES = Registry(
    "search",
    {
        "random": "rlflow.search.random_play:random_play",
        "greedy": "rlflow.search.greedy:steepest_descent",
        "taso": "rlflow.search.taso:taso",
        "best-first": "rlflow.search.best_first:best_first",
        "beam": "rlflow.search.beam:beam",
        "annealing": "rlflow.search.annealing:annealing",
        "descent": "rlflow.search.descent:first_improvement",
        "grasp": "rlflow.search.grasp:grasp",
    },
)
