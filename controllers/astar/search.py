"""A*, Monte Carlo tree search and Q* over real states, guided by a value, and the targets that a search leaves behind.

All searches run within a `rlflow.search.base.Search`, which holds their limits and the cheapest state:

    search = Search(task.initial, Limits(interactions=300))
    astar(search, Explored(search, value, horizon=10))  # returns a reason, or raises LimitReached

A *value of states* is a function from graphs to float [B, horizon]: for each graph the gain per step that is expected
within 1, 2, … steps, in the unit of the objective. `Explored` holds all states of a search; a state is expanded only
once. A *value of choices* is a function from a graph and its K choices to float [K, horizon], the same for the steps
that begin with each choice. `Tried` holds the states of a search that makes one choice at a time.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np

from controllers.astar.network import Choices, choices_of
from rlflow.common.task import GraphArrays, LocalState
from rlflow.search.base import Path, Search

Value = Callable[[Sequence[GraphArrays]], np.ndarray]
ChoiceValue = Callable[[GraphArrays, Choices], np.ndarray]
Action = tuple[int, int]  # (action type, index)
IDLE = 100  # number of successive trajectories without a new state after which `mcts` ends


class Node:
    """A state of a search.

    Attributes:
      state, path: the state, and the matches that first led to it.
      graph: the encoding of the state.
      values: float [horizon], the gains per step that are expected within 1, 2, … steps.
      left: number of steps left on the shortest known path to the state.
      before: (node, action) from which this path leads to the state; None at the start.
      children: (action, node) of the different successors; None before the state is expanded.
    """

    __slots__ = ("before", "children", "graph", "left", "path", "state", "values")

    def __init__(self, state: LocalState, path: Path | None, left: int, before: "tuple[Node, Action] | None"):
        self.state, self.path, self.left, self.before = state, path, left, before
        self.graph, self.children = state.arrays(), None

    def reach(self, left: int, before: "tuple[Node, Action]") -> bool:
        """Store a path to this state if it is shorter than all earlier paths, and return True if it is.

        Args:
          left: number of steps left at the end of the path.
          before: the last node of the path before this state, and the action from there.
        """
        if left <= self.left:
            return False
        self.left, self.before = left, before
        return True

    def expected(self, left: int) -> float:
        """Return the gain that is expected within a number of steps."""
        return left * float(self.values[left - 1]) if left else 0.0


class Example(NamedTuple):
    """A training example: a graph, and the largest gains per step that a search found within 1, 2, … steps from it.

    Attributes:
      graph: the graph.
      choices: K choices in the graph, for gains of the steps that begin with each choice; None for the gains of all
        sequences of steps (K = 1).
      gains: float64 [K, horizon], largest decreases of the objective divided by the number of steps. Without choices
        they are at least 0. With choices they can be negative, because the first step is prescribed.
      left: the number of steps whose gains are known; later columns of `gains` are no targets.
    """

    graph: GraphArrays
    choices: Choices | None
    gains: np.ndarray
    left: int


def examples_along(states: Sequence[LocalState], actions: Sequence[Action] | None, horizon: int) -> list[Example]:
    """Return an example for each state of a path but the last state. The gains are those along the path.

    Args:
      states: the states of a path of at most `horizon` steps.
      actions: the actions of the path for examples with choices, otherwise None.
      horizon: largest number of steps.
    """
    result = []
    for place, state in enumerate(states[:-1]):
        choices, lowest, gains = None, state.objective, np.zeros((1, horizon))
        if actions is not None:
            choices, lowest = choices_of(state, [state.match(*actions[place])]), states[place + 1].objective
        for steps in range(1, horizon + 1):
            if place + steps < len(states):
                lowest = min(lowest, states[place + steps].objective)
            gains[0, steps - 1] = (state.objective - lowest) / steps
        result.append(Example(state.arrays(), choices, gains, horizon - place))
    return result


class Explored:
    """The states of one search, by their hash, with the values that a network gave them.

    Args:
      search: the search.
      value: the value.
      horizon: largest number of steps from the start.
    """

    def __init__(self, search: Search, value: Value, horizon: int):
        self.search, self.value, self.horizon = search, value, horizon
        self.root = Node(search.start, None, horizon, None)
        self.nodes = {search.start.hash: self.root}
        self._evaluate([self.root])

    def _evaluate(self, nodes: list[Node]) -> None:
        if nodes:
            for node, values in zip(nodes, self.value([node.graph for node in nodes]), strict=True):
                node.values = values

    def expand(self, node: Node) -> list[tuple[Action, Node]]:
        """Return (action, node) of the different successors; the first call applies all matches of the state.

        Raises:
          LimitReached: a limit of the search is reached.
        """
        if node.children is None:
            children, new = {}, []
            for match in node.state.matches:
                after = self.search.follow(node.state, match)
                path, action = (match, node.path), (match.xfer_id, node.state.index_of(match))
                self.search.saw(after, path)
                child = self.nodes.get(after.hash)
                if child is None:
                    child = self.nodes[after.hash] = Node(after, path, 0, (node, action))
                    new.append(child)
                children.setdefault(after.hash, (action, child))
            self._evaluate(new)
            node.children = list(children.values())
        return node.children

    def actions_to(self, state: LocalState) -> list[Action]:
        """Return the actions of the shortest known path to an explored state, at most `horizon` of them."""
        actions, node = [], self.nodes[state.hash]
        while node.before is not None:
            node, action = node.before
            actions.append(action)
        return actions[::-1]

    def examples(self) -> list[Example]:
        """Return an example for each expanded state. Its gains are the largest gains that the explored states show."""
        nodes = list(self.nodes.values())
        number = {id(node): k for k, node in enumerate(nodes)}
        pairs = [(k, number[id(child)]) for k, node in enumerate(nodes) for _, child in node.children or ()]
        parents, children = np.array(pairs, np.int64).reshape(-1, 2).T
        lowest = _lowest(nodes, parents, children, self.horizon)
        rows = (lowest[:, :1] - lowest[:, 1:]) / np.arange(1, self.horizon + 1)
        return [
            Example(node.graph, None, row[None], node.left)
            for node, row in zip(nodes, rows, strict=True)
            if node.children is not None
        ]


def _lowest(nodes: Sequence, parents: np.ndarray, children: np.ndarray, horizon: int) -> np.ndarray:
    """Return the lowest objectives within 0, 1, … steps from each of n states, float64 [n, horizon + 1].

    Args:
      nodes: n objects of the class `Node` or `Trial`.
      parents, children: int64 [m], the numbers of the nodes at both ends of each known step.
      horizon: largest number of steps.
    """
    objectives = np.array([node.state.objective for node in nodes], np.float64)
    columns = [objectives]
    for _ in range(horizon):
        below = objectives.copy()
        np.minimum.at(below, parents, columns[-1][children])
        columns.append(below)
    return np.stack(columns, axis=1)


def astar(search: Search, explored: Explored, patience: float = inf) -> str:
    """Expand the state with the largest gain so far plus the expected gain, again and again (algorithm 2).

    If several states have the same sum, the state that was reached last is expanded. A state that is reached again with
    more steps left is queued again.

    Args:
      search: the search.
      explored: an object without expanded states; it holds the states afterwards.
      patience: number of rewrites after the last improvement at which the search ends; it has no effect before the
        first improvement.

    Returns:
      The reason of the end as text.

    Raises:
      LimitReached: a limit of the search is reached.
    """
    root, queue, pushed = explored.root, [], 0
    heappush(queue, (0.0, 0, root, root.left))
    while queue:
        *_, node, left = heappop(queue)
        if left < node.left:
            continue
        if len(search.trace) > 1 and search.interactions - search.trace[-1][1] > patience:
            return "patience"
        for action, child in explored.expand(node):
            if child.reach(left - 1, (node, action)):
                gain, pushed = root.state.objective - child.state.objective, pushed + 1
                heappush(queue, (-gain - child.expected(child.left), -pushed, child, child.left))
    return "nothing left to try"


class Trial:
    """A state of Q*, with the choices that the search has tried there.

    Attributes:
      state, path, left, before: see `Node`.
      graph, choices: the encoding of the state and of all its choices.
      values: float [K, horizon], the gains per step that are expected within 1, 2, … steps that begin with each choice.
      children: number of a choice → the trial it leads to, for the choices that were made.
      order: pairs (expected gain, choice) of the choices that are not in the queue yet, in ascending order of the gain.
        When the state is reached with more steps left, `order` holds all choices again.
    """

    __slots__ = ("before", "children", "choices", "graph", "left", "order", "path", "state", "values")

    def __init__(self, state: LocalState, path: Path | None, value: ChoiceValue):
        self.state, self.path, self.left, self.before = state, path, -1, None
        self.graph, self.choices, self.children = state.arrays(), choices_of(state, state.matches), {}
        self.values = value(self.graph, self.choices)
        self.order: list[tuple[float, int]] = []


class Tried:
    """The states of one Q* search, by their hash.

    Args:
      search: the search.
      value: the value of choices.
      horizon: largest number of steps from the start.
    """

    def __init__(self, search: Search, value: ChoiceValue, horizon: int):
        self.search, self.value, self.horizon = search, value, horizon
        self.root = Trial(search.start, None, value)
        self.nodes = {search.start.hash: self.root}

    def follow(self, node: Trial, choice: int) -> Trial:
        """Return the trial that a choice leads to; the first call for a choice applies it.

        Args:
          node: the trial in which the choice is made.
          choice: index of the choice in `node.state.matches`.

        Raises:
          LimitReached: a limit of the search is reached.
        """
        if choice not in node.children:
            match = node.state.matches[choice]
            after, path = self.search.follow(node.state, match), (match, node.path)
            self.search.saw(after, path)
            if after.hash not in self.nodes:
                self.nodes[after.hash] = Trial(after, path, self.value)
            node.children[choice] = self.nodes[after.hash]
        return node.children[choice]

    def actions_to(self, state: LocalState) -> list[Action]:
        """Return the actions of the shortest known path to an explored state, at most `horizon` of them."""
        actions, node = [], self.nodes[state.hash]
        while node.before is not None:
            node, choice = node.before
            match = node.state.matches[choice]
            actions.append((match.xfer_id, node.state.index_of(match)))
        return actions[::-1]

    def examples(self) -> list[Example]:
        """Return an example for each state in which a choice was made, with these choices.

        The gains are the largest gains that the explored states show.
        """
        nodes = list(self.nodes.values())
        number = {id(node): k for k, node in enumerate(nodes)}
        pairs = [(k, number[id(child)]) for k, node in enumerate(nodes) for child in node.children.values()]
        parents, children = np.array(pairs, np.int64).reshape(-1, 2).T
        lowest = _lowest(nodes, parents, children, self.horizon)
        gains = (lowest[parents, :1] - lowest[children, :-1]) / np.arange(1, self.horizon + 1)
        gains = np.split(gains, np.cumsum([len(node.children) for node in nodes])[:-1])
        return [
            Example(node.graph, _some(node.choices, list(node.children)), rows, node.left)
            for node, rows in zip(nodes, gains, strict=True)
            if node.children
        ]


def _some(choices: Choices, chosen: Sequence[int]) -> Choices:
    """Return some of the choices of a graph, in a new order."""
    places = [np.flatnonzero(choices.owners == k) for k in chosen]
    return Choices(
        choices.sorts[chosen], choices.firsts[chosen], choices.rows[np.concatenate(places)],
        np.repeat(np.arange(len(chosen), dtype=np.int32), [len(each) for each in places]),
    )  # fmt: skip


def qstar(search: Search, tried: Tried, patience: float = inf, noise: float = 0.0) -> str:
    """Make the choice with the largest gain so far plus the expected gain, again and again (Agostinelli et al. 2021).

    A* applies all choices of a state to value the states after them. Q* values the choices, so that one evaluation of
    the network ranks all choices of a state, and only the best of them are applied. If a state is reached again with
    more steps left, its choices are queued again; choices that were applied before need no new rewrite.

    Args:
      search: the search.
      tried: an object without tried choices; it holds the states afterwards.
      patience: see `astar`.
      noise: scale of the Gumbel noise that is added to each expected gain, in the unit of the objective.

    Returns:
      The reason of the end as text.

    Raises:
      LimitReached: a limit of the search is reached.
    """
    queue, pushed = [], 0

    def push(node: Trial) -> None:
        nonlocal pushed
        if node.order:
            expected, choice = node.order.pop()
            gain, pushed = tried.root.state.objective - node.state.objective, pushed + 1
            heappush(queue, (-gain - expected, -pushed, node, choice, node.left))

    def reach(node: Trial, left: int, before: tuple[Trial, int] | None) -> None:
        node.left, node.before = left, before
        if left:
            expected = left * node.values[:, left - 1]
            if noise:
                expected = expected + noise * search.rng.gumbel(size=len(expected))
            node.order = [(float(expected[k]), int(k)) for k in np.argsort(expected, kind="stable")]
            push(node)

    reach(tried.root, tried.horizon, None)
    while queue:
        *_, node, choice, left = heappop(queue)
        if left < node.left:
            continue
        if len(search.trace) > 1 and search.interactions - search.trace[-1][1] > patience:
            return "patience"
        push(node)
        child = tried.follow(node, choice)
        if left - 1 > child.left:
            reach(child, left - 1, (node, choice))
    return "nothing left to try"


def mcts(search: Search, explored: Explored, unit: float, exploration: float, alpha: float) -> str:
    """Run Monte Carlo tree search with rollouts that follow the value (algorithm 3).

    Args:
      search: the search.
      explored: see `astar`.
      unit: the gain that counts as 1 in equations 8 and 9.
      exploration: the constant c of equation 8.
      alpha: the inverse temperature α of equation 9.

    Returns:
      The reason of the end as text.

    Raises:
      LimitReached: a limit of the search is reached.
    """
    visits: dict[Node, int] = {}
    gains: dict[Node, float] = {}
    idle = 0
    while idle < IDLE:
        known, tree, node, left = len(explored.nodes), [explored.root], explored.root, explored.horizon
        while left and visits.get(node) and (children := explored.expand(node)):
            bonus, best = log(visits[node]), []
            for _, child in children:
                n = visits.get(child, 0)
                best.append(gains.get(child, 0.0) / max(n, 1) + exploration * sqrt(bonus / (n + 1)))
            node, left = _followed(node, children[int(np.argmax(best))], left)
            tree.append(node)
        lowest = node.state.objective
        while left and (children := explored.expand(node)):
            choice = drawn(expected_gains(node, children, left), unit, alpha, search.rng)
            node, left = _followed(node, children[choice], left)
            lowest = min(lowest, node.state.objective)
        for each in tree:
            visits[each] = visits.get(each, 0) + 1
            gains[each] = gains.get(each, 0.0) + (explored.root.state.objective - lowest) / unit
        idle = idle + 1 if len(explored.nodes) == known else 0
    return "nothing left to try"


def _followed(node: Node, chosen: tuple[Action, Node], left: int) -> tuple[Node, int]:
    """Return a chosen successor and the number of steps left there.

    Args:
      node: the present node.
      chosen: the successor, with the action that leads to it.
      left: number of steps left at the present node.
    """
    action, child = chosen
    child.reach(left - 1, (node, action))
    return child, left - 1


def expected_gains(node: Node, children: Sequence[tuple[Action, Node]], left: int) -> np.ndarray:
    """Return the gain that is expected with each of K successors within `left` steps from a node, float64 [K].

    Args:
      node: the node.
      children: its successors, as `Explored.expand` returns them.
      left: number of steps left at the node, at least 1.
    """
    objective = node.state.objective
    return np.array([objective - child.state.objective + child.expected(left - 1) for _, child in children], np.float64)


def drawn(gains: np.ndarray, unit: float, alpha: float, rng: np.random.Generator) -> int:
    """Draw a choice with the probabilities softmax(α (R + V)) (equation 9), and return its number.

    Args:
      gains: float64 [K], the gain R + V that is expected of each choice.
      unit: the gain that counts as 1.
      alpha: the inverse temperature α.
      rng: the generator.
    """
    return int(np.argmax(alpha * gains / unit + rng.gumbel(size=len(gains))))
