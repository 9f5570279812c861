"""Macros: short sequences of rules that solved problems have in common, used as the moves of a search.

A valley is a sequence of rewrites that first raises the cost and then lowers it below the first cost. A search of
single rewrites that follows the cost does not cross a valley. `learn` cuts the paths of solved problems where they
reach a new lowest cost: each piece crosses one valley (the peak-to-peak macros of Iba 1989, doi 10.1007/BF00116836). A
macro keeps the rules of the piece, not the places, so that it applies to other problems; a rule that occurs several
times in a row becomes a repetition.

    macros = learn([(states, actions), …])            paths of other, smaller problems
    run_search(macro_search, start, macros=macros)

A *sketch* guides the search (Kœhler et al. 2024, doi 10.1145/3632900). It is a property of the goal, given as a
function that returns how far a state is from having the property.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from rlflow.common.task import LocalState, Match
from rlflow.search.base import Path, Search

RADIUS = 1  # distance in edges between a step of a macro and the nodes that its earlier steps touched
LOOKAHEAD = 2  # largest number of macros that a descent carries out before the cost must be lower
TRIED = 3  # largest number of places that are compared for one step of a macro


ONCE, ALL, UNTIL = "once", "all", "until"
MOST_TIMES = 12  # largest number of repetitions of a step after its first match


class Step(NamedTuple):
    """A step of a macro.

    Attributes:
      sort: the action type.
      times: ONCE; ALL, to repeat the rule at nearby matches with the same plan; or UNTIL, to repeat the rule at nearby
        matches until the next step of the macro has a match, or in the last step until the cost is lower than before
        the macro. ALL and UNTIL repeat a step at most MOST_TIMES times.
      like: number of an earlier step. The match of this step must have the plan of that step and may be anywhere in the
        graph. None if the match must only be near the nodes that the earlier steps touched.
    """

    sort: int
    times: str = ONCE
    like: int | None = None


Macro = tuple[Step, ...]
Sketch = Callable[[LocalState], tuple[int, ...]]


def learn(
    paths: Iterable[tuple[Sequence[LocalState], Sequence[tuple[int, int]]]], at_least: int = 2, longest: int = 8
) -> list[Macro]:
    """Return the macros of solved problems, the most frequent first.

    Args:
      paths: the states along each path and the actions between them.
      at_least: number of pieces of paths in which a macro must occur.
      longest: largest number of steps of a macro.
    """
    counts: Counter[Macro] = Counter()
    for states, actions in paths:
        begin, lowest = 0, states[0].objective
        for end in range(1, len(states)):
            if states[end].objective < lowest:
                macro = _macro(states[begin:end], actions[begin:end])
                if len(macro) <= longest:
                    counts[macro] += 1
                begin, lowest = end, states[end].objective
    kept = [macro for macro in counts if counts[macro] >= at_least]

    def order(macro: Macro) -> tuple:
        return -counts[macro], len(macro), [one._replace(like=-1 if one.like is None else one.like) for one in macro]

    return sorted(kept, key=order)


_STEP = re.compile(r"(\w+)([+*]?)(?:=(\d+))?")
_TIMES = {"": ONCE, "+": ALL, "*": UNTIL}


def read_macros(text: str, rules: Sequence[str]) -> list[Macro]:
    """Return the macros of a text, one in each line, whose rules are all among the given names of rules.

    Args:
      text: the names of the rules of each macro. After a name, `+` is ALL, `*` is UNTIL, and `=0` requires the plan of
        step 0. A line that begins with `;` is a comment.
      rules: name of each action type.
    """
    number = {name: position for position, name in enumerate(rules)}
    result = []
    for line in text.splitlines():
        steps = [_STEP.fullmatch(word) for word in line.split()] if not line.startswith(";") else []
        if steps and all(step[1] in number for step in steps):
            like = [None if step[3] is None else int(step[3]) for step in steps]
            result.append(
                tuple(Step(number[step[1]], _TIMES[step[2]], to) for step, to in zip(steps, like, strict=True))
            )
    return result


def _macro(states: Sequence[LocalState], actions: Sequence[tuple[int, int]]) -> Macro:
    steps: list[Step] = []
    plans: list[tuple] = []  # (action type, plan) of the last match of each step
    for state, (sort, index) in zip(states, actions, strict=True):
        made = sort, state.match(sort, index).plan
        if steps and steps[-1].sort == sort:
            is_same = plans[-1] == made and steps[-1].times != UNTIL
            steps[-1], plans[-1] = steps[-1]._replace(times=ALL if is_same else UNTIL), made
        else:
            steps.append(Step(sort, like=plans.index(made) if made in plans else None))
            plans.append(made)
    return tuple(steps)


def macro_search(search: Search, macros: Sequence[Macro], sketch: Sketch | None = None, width: int = 10_000) -> str:
    """Expand the cheapest state again and again, with macros as its moves, and then each rule as a macro of one step.

    A macro may end at a higher cost. A descent by macros near the nodes that the macro touched then completes the move,
    since rules become applicable there. The moves of a state are tried one by one. A state that is cheaper than all
    states of the queue is expanded next, while the other moves of its predecessor wait in the queue.

    Args:
      search: the search.
      macros: the macros, in the order in which they are tried.
      sketch: a function that returns the distances of a state from a sketch of the goal, all 0 at the sketch. The state
        nearest to the sketch counts as the cheapest, whatever it costs. From a state that is not at the sketch, only
        macros that come nearer are completed. None for no sketch.
      width: a new state is dropped while more states than this number are in the queue.

    Returns:
      the reason of the end.
    """
    distance = sketch or (lambda state: ())
    known = set(macros)
    rules = [(Step(sort),) for sort in range(len(search.start.counts))]
    macros = [*macros, *(rule for rule in rules if rule not in known)]
    seen, queue, pushed = {search.start.hash}, [], 0
    begin = _Place(search.start, None, set())
    heappush(queue, (distance(begin.state), begin.state.objective, 0, _ends(search, begin, macros, distance, seen)))
    while queue:
        *rank, ends = heappop(queue)
        end = next(ends, None)
        if end is None:
            continue
        heappush(queue, (*rank, ends))
        if len(queue) <= width:
            pushed += 1
            ends = _ends(search, end, macros, distance, seen)
            heappush(queue, (distance(end.state), end.state.objective, -pushed, ends))
    return "nothing left to try"


class _Place(NamedTuple):
    """A state, the path to it, and the ids of the nodes that a move has touched."""

    state: LocalState
    path: Path | None
    touched: set[int]


def _ends(search: Search, begin: _Place, macros: Sequence[Macro], distance: Sketch, seen: set) -> Iterator[_Place]:
    """Yield the states after each macro from each match of its first rule, completed by a descent nearby.

    Args:
      search: the search.
      begin: the state at which the macros begin.
      macros: the macros.
      distance: see `macro_search`.
      seen: hashes of the states reached so far, before and after the descents; it is extended.
    """
    far = distance(begin.state)
    for macro in macros:
        for match in _openings(begin.state, macro):
            end = carried_out(search, _Place(begin.state, begin.path, set()), match, macro)
            if end is None or end.state.hash in seen:
                continue
            seen.add(end.state.hash)
            if any(far) and distance(end.state) >= far:
                continue
            settled = descended(search, end, macros, 1 if any(far) else LOOKAHEAD)
            if settled is end or settled.state.hash not in seen:
                seen.add(settled.state.hash)
                yield settled


def _openings(state: LocalState, macro: Macro, near: set[int] | None = None) -> Iterator[Match]:
    """Yield the matches of the first rule of a macro; one of each plan if the macro repeats the rule.

    Args:
      state: the state.
      macro: the macro.
      near: a match must have one of these node ids; None for no condition.
    """
    begun = set()
    for match in state.matches:
        if match.xfer_id != macro[0].sort or (near is not None and near.isdisjoint(match.nodes)):
            continue
        if macro[0].times == ALL:
            if match.plan in begun:
                continue
            begun.add(match.plan)
        yield match


def descended(search: Search, place: _Place, macros: Sequence[Macro], depth: int = LOOKAHEAD) -> _Place:
    """Apply macros that lower the cost near the touched nodes until no macro does, and return the reached place.

    Short macros are tried first: a long macro can gain by one of its steps alone, and lose by its other steps.

    Args:
      search: the search.
      place: the place at which the descent begins.
      macros: the macros.
      depth: largest number of macros after which the cost must be lower.
    """
    macros = sorted(macros, key=len)
    while (lower := _lower(search, place, macros, place.state.objective, place.touched, depth)) is not None:
        place = lower
    return place


def _lower(
    search: Search, place: _Place, macros: Sequence[Macro], than: int, touched: set[int], depth: int
) -> _Place | None:
    """Return the first cheaper place that is found, or None.

    The place is reached by one macro near the touched nodes, or by several macros, each near the nodes that the macro
    before it touched.

    Args:
      search: the search.
      place: the place at which the macros begin.
      macros: the macros, in the order in which they are tried.
      than: the cost to undercut.
      touched: ids of nodes; the first macro begins near them.
      depth: largest number of macros.
    """
    near, dearer = place.state.near(touched, RADIUS), []
    for macro in macros:
        for match in _openings(place.state, macro, near):
            end = carried_out(search, _Place(place.state, place.path, set()), match, macro)
            if end is None:
                continue
            if end.state.objective < than:
                return _Place(end.state, end.path, place.touched | end.touched)
            dearer.append(end)
    if depth > 1:
        for end in dearer:
            lower = _lower(search, end, macros, than, end.touched, depth - 1)
            if lower is not None:
                return _Place(lower.state, lower.path, place.touched | lower.touched)
    return None


def carried_out(search: Search, place: _Place, first: Match, macro: Macro) -> _Place | None:
    """Apply a macro, and return the reached place, or None if a step has no match.

    Each step after the first is applied at the match that leads to the lowest cost, among at most TRIED matches. A step
    that is repeated UNTIL, and every repetition of a step, is applied at the first match that is found.

    Args:
      search: the search.
      place: the state at which the macro begins.
      first: the match of the first step.
      macro: the macro.
    """
    state, path, own = place.state, place.path, set()
    plans: list[object] = []
    match: Match | None = first
    for number, step in enumerate(macro):
        if number == 0:
            after = search.follow(state, first)
        else:
            match, after = _cheapest(search, state, step, plans, own)
        if match is None or after is None:
            return None
        plans.append(match.plan)
        state, path = after, (match, path)
        own |= state.touched
        following = macro[number + 1] if number + 1 < len(macro) else None
        for _ in range(MOST_TIMES):
            if step.times == ALL:
                match = _with_same_plan(state, match, own)
            elif step.times == ONCE or (
                state.objective < place.state.objective if following is None else _places(state, following, plans, own)
            ):
                break
            else:
                match = next(iter(_places(state, step._replace(like=None), plans, own)), None)
            if match is None:
                break
            state, path = search.follow(state, match), (match, path)
            own |= state.touched
    search.saw(state, path)
    return _Place(state, path, place.touched | own)


def _with_same_plan(state: LocalState, made: Match, touched: set[int]) -> Match | None:
    """Return a match of the same rule and plan near the touched nodes."""
    near = state.near(touched, RADIUS)
    alike = (m for m in state.matches if m.xfer_id == made.xfer_id and m.plan == made.plan)
    return next((match for match in alike if not near.isdisjoint(match.nodes)), None)


def _places(state: LocalState, step: Step, plans: Sequence[object], touched: set[int]) -> list[Match]:
    """Return the matches for a step; matches at nodes that the last rewrite touched come first.

    Args:
      state: the state.
      step: the step.
      plans: the plans of the steps before.
      touched: ids of the nodes that the steps before touched.
    """
    matches = [match for match in state.matches if match.xfer_id == step.sort]
    if step.like is not None:
        matches = [match for match in matches if match.plan == plans[step.like]]
    else:
        near = state.near(touched, RADIUS)
        matches = [match for match in matches if not near.isdisjoint(match.nodes)]
    return sorted(matches, key=lambda match: state.touched.isdisjoint(match.nodes))


def _cheapest(
    search: Search, state: LocalState, step: Step, plans: Sequence[object], touched: set[int]
) -> tuple[Match | None, LocalState | None]:
    """Return the match for a step that leads to the lowest cost, and the state after it; (None, None) without a match.

    Args:
      search: the search.
      state: the state.
      step: the step.
      plans: the plans of the steps before.
      touched: ids of the nodes that the steps before touched.
    """
    places = _places(state, step, plans, touched)[: 1 if step.times == UNTIL else TRIED]
    ends = [(search.follow(state, match), match) for match in places]
    if not ends:
        return None, None
    after, match = min(ends, key=lambda one: one[0].objective)
    return match, after
