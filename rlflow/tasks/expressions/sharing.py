"""A search for cheaper arithmetic programs that removes all `let`s, calls and tuples, and adds new `let`s at the end.

In the rewrite sequences that people recorded, most rewrites only move `let`s. `sharing_search` needs no such rewrites
to find a cheaper form:

1. It inlines every `let` and call, so that the program is one tree.
2. It descends by the rules of arithmetic (`descend`). A move rewrites all equal subexpressions at once.
   If the rule needs another order of operands, the operands change places first. The cost of a form is the cost of a
   program that computes each subexpression once and binds each subexpression with several uses by a `let`.
   Subexpressions that differ only in the order of operands count as one.
3. It binds equal subexpressions by the rules new_bind, lift_bind and cse_bind.

Each step is a sequence of rewrites, so the result has a receipt like the result of any other search. Operators whose
operands are all constants cost nothing during the descent. They are computed at the end, because no rule undoes this.
The search descends repeatedly, from the beginning or from a random place on the path to the best form so far.

A valley is a sequence of moves that first raises the cost and then lowers it below the first cost. The moves that cross
a valley are mostly near each other. The descent therefore tries chains of neighbouring moves. Such chains cross valleys
that a beam over all moves misses. Many valleys are shallower without `let`s.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

from rlflow.common.task import Match
from rlflow.search.base import Path, Search
from rlflow.tasks.expressions.cost import CALL, LET, PRICES
from rlflow.tasks.expressions.expr import ARITHMETIC, Expr
from rlflow.tasks.expressions.rules import all_rules, local_rewrites, rewrite_locally
from rlflow.tasks.expressions.state import ExpressionState
from rlflow.tasks.expressions.syntax import UNITS

INLINING = ("delete_let", "select_of_tuple", "inline_call", "inline_let")
BINDING = ("new_bind", "lift_bind", "cse_bind")
FOLDING = ("cprop_add", "cprop_sub", "cprop_mul", "cprop_div")
COMMUTED = {"add": "commute_add", "mul": "commute_mul"}
OPERATORS = (*ARITHMETIC, "exp", "log", "get", "apply", "constant", "variable", "external")
GROWTH = 2  # largest factor by which a move may multiply the number of nodes of the tree
NOISE = 3 * UNITS  # largest random addition to the costs by which `descend` sorts moves
LEVELS = ((1, 1), (4, 3), (8, 6))  # (width, length) of the chains, the levels that take the least time first
# Probability that the first level takes no single move although one lowers the cost. The second level then takes one.
PASSED_OVER = 0.3


class Course:
    """A state of a search and the path to the state, extended rewrite by rewrite."""

    def __init__(self, search: Search, state: ExpressionState, path: Path | None):
        self.search, self.state, self.path = search, state, path

    def follow(self, match: Match) -> None:
        self.state, self.path = self.search.follow(self.state, match), (match, self.path)

    def exhaust(self, rules: tuple[str, ...]) -> None:
        """Apply rewrites until none of the rules has a match; earlier rules are applied before later ones."""
        sorts = [self.state.task.number[rule] for rule in rules if rule in self.state.task.number]
        while match := next((m for sort in sorts for m in self.state.matches if m.xfer_id == sort), None):
            self.follow(match)

    def row(self, place: list[int]) -> int:
        """Return the row of the node to which a list of positions of arguments leads."""
        row = 0
        for position in place:
            row = self.state.table.children(row)[position]
        return row

    def rewrite(self, rule: str, place: list[int]) -> bool:
        """Apply a rule at a location if the rule has a match there, and return whether it was applied.

        Args:
          rule: the name of the rule.
          place: the positions of arguments that lead from the root to the location.
        """
        number, location = self.state.task.number[rule], self.state.ids[self.row(place)]
        match = next((m for m in self.state.matches if m.xfer_id == number and m.location == location), None)
        if match is not None:
            self.follow(match)
        return match is not None


def sharing_search(search: Search) -> str:
    """Search for a cheaper arithmetic program as the module docstring describes.

    Returns:
      The reason why the search ended, as text, such as operators that are not arithmetic on numbers.
    """
    rules = search.start.task.rules
    if not set(BINDING) <= set(rules):
        return "the rule set has no rules that bind"
    course = Course(search, search.start, None)
    course.exhaust(INLINING)
    tree, place = course.state.expr, []
    while tree.op in ("let", "lam"):
        tree = tree.args[0]
        place.append(0)
    if any(node.op not in OPERATORS for node in tree.nodes()):
        return "the program is not arithmetic on numbers"
    forms = _Forms(rules)
    begin = Form(tree, forms)
    best, moves = begin.cost + 1, []
    while moves or best > begin.cost or any(begin.moves()):
        cost = moves[-1].form.cost if moves else begin.cost
        if cost <= best:
            trail = moves
        if cost < best:
            best, found = cost, Course(search, course.state, course.path)
            for move in moves:
                _repeat(found, *move.step)
            found.exhaust(FOLDING)
            _align(found, forms)
            _bind(found, place)
            search.saw(found.state, found.path)
        kept = trail[: max(search.rng.integers(-len(trail), len(trail) + 1), 0)]
        moves = kept + descend(kept[-1].form if kept else begin, search.rng, NOISE, search.count)
    return "nothing left to try"


class _Forms:
    """The rules and the numbers of subexpressions that all forms of one program share.

    Two subexpressions have the same number if they differ only in the order of operands that a rule of the set can
    change.

    Attributes:
      commuted: operator → the rule that exchanges its operands.
      rules: the rules of arithmetic for the descent; rules that exchange operands or compute constants are left out.
    """

    def __init__(self, rules: tuple[str, ...]):
        self.commuted = {op: rule for op, rule in COMMUTED.items() if rule in rules}
        arithmetic = {rule for rule in rules if all_rules()[rule].group in ("arithmetic", "constants")}
        self.rules = arithmetic - {*COMMUTED.values(), *FOLDING}
        self._numbers: dict[tuple, int] = {}
        self._of_key: dict[bytes, int] = {}

    def number(self, node: Expr) -> int:
        """Return the number of a subexpression."""
        known = self._of_key.get(node.key)
        if known is None:
            parts = [self.number(arg) for arg in node.args]
            label = (node.op, node.value, node.type) if not parts else (node.op, node.value)
            key = (*label, *(sorted(parts) if node.op in self.commuted else parts))
            known = self._of_key[node.key] = self._numbers.setdefault(key, len(self._numbers))
        return known


class Form:
    """An arithmetic expression without `let`s, which `descend` improves.

    Attributes:
      tree: the expression.
      key: the number of the expression (`_Forms`), equal exactly for forms that count as the same.
      cost: the cost with shared subexpressions in units of 1e-4, as the module docstring describes.
    """

    def __init__(self, tree: Expr, forms: _Forms):
        self.tree, self.forms = tree, forms
        self.key = forms.number(tree)
        self._nodes: dict[bytes, Expr] = {}
        self.cost = self._visit(tree, {})

    def _visit(self, node: Expr, uses: dict[int, int]) -> int:
        number = self.forms.number(node)
        uses[number] = uses.get(number, 0) + 1
        self._nodes.setdefault(node.key, node)
        if uses[number] > 1:
            return LET if uses[number] == 2 and not _is_free(node) else 0
        return _price(node) + sum(self._visit(arg, uses) for arg in node.args)

    def moves(self, near: frozenset[bytes] | None = None) -> "Iterator[Move]":
        """Yield the moves: all rewrites of arithmetic, at all equal subexpressions at once.

        Args:
          near: keys of subexpressions. Only these, their operands, and the operators at most two levels above them are
            rewritten. None for all subexpressions.
        """
        done = set()
        for node in self._near(near) if near else self._nodes.values():
            for turns, turned in _turned(node, self.forms.commuted):
                for rule, position in local_rewrites(turned):
                    if rule in self.forms.rules:
                        new = rewrite_locally(turned, rule, position)
                        if (node.key, new.key) in done:
                            continue
                        done.add((node.key, new.key))
                        tree = _replaced(self.tree, node.key, new, {})
                        if tree.size <= GROWTH * self.tree.size:
                            place = frozenset((new.key, *(arg.key for arg in new.args)))
                            yield Move(Form(tree, self.forms), place, (node.key, turns, rule))

    def _near(self, keys: frozenset[bytes]) -> list[Expr]:
        hit = {key for key in keys if key in self._nodes}
        found, above = dict.fromkeys(hit), hit
        for _ in range(2):
            above = {key for key, node in self._nodes.items() if any(arg.key in above for arg in node.args)}
            found |= dict.fromkeys(above)
        found |= dict.fromkeys(arg.key for key in hit for arg in self._nodes[key].args)
        return [node for key, node in self._nodes.items() if key in found]


class Move(NamedTuple):
    """A change of a form.

    Attributes:
      form: the form after the move.
      place: keys of the new subexpression and its operands, an argument of `Form.moves`.
      step: (key of the rewritten subexpression, operators whose operands are exchanged first, rule), see `_repeat`.
    """

    form: Form
    place: frozenset[bytes]
    step: tuple[bytes, list[list[int]], str]


def descend(form: Form, rng: np.random.Generator, noise: float, count: Callable[[], None]) -> list[Move]:
    """Descend until no chain of any level of LEVELS leads to a lower cost, and return the moves.

    Each step takes a random single move that lowers the cost. Without such a move, it takes the first chain found that
    lowers the cost.

    Args:
      form: the form at which the descent begins.
      rng: the source of the random choices.
      noise: the first moves of chains are tried in the order of the cost after the move plus a random number from 0 to
        `noise`, in the unit of the cost.
      count: called for each move that is tried; it may raise an exception that ends the descent.
    """
    moves: list[Move] = []
    level = 0
    while level < len(LEVELS):
        width, length = LEVELS[level]
        firsts = []
        for move in form.moves():
            count()
            firsts.append(move)
        lower = [move for move in firsts if move.form.cost < form.cost]
        chain = None
        if lower and (length > 1 or rng.random() >= PASSED_OVER):
            chain = [lower[rng.integers(len(lower))]]
        elif length > 1:
            order = np.argsort([move.form.cost + noise * rng.random() for move in firsts], kind="stable")
            chain = _first_lower(form, [firsts[place] for place in order], width, length, count)
        if chain is None:
            level += 1
        else:
            moves += chain
            form, level = chain[-1].form, 0
    return moves


def _first_lower(
    form: Form, firsts: list[Move], width: int, length: int, count: Callable[[], None]
) -> list[Move] | None:
    """Return the first chain of at least two moves found that leads to a lower cost, or None.

    Args:
      form: the form at which the chains begin.
      firsts: the first moves of the chains, in the order in which they are tried.
      width: number of chains that are kept of each length.
      length: largest number of moves of a chain.
      count: see `descend`.
    """
    seen = {form.key}
    for first in firsts:
        if first.form.key in seen:
            continue
        seen.add(first.form.key)
        chains = [[first]]
        for _ in range(length - 1):
            longer = []
            for chain in chains:
                for move in chain[-1].form.moves(chain[-1].place):
                    count()
                    if move.form.key in seen:
                        continue
                    seen.add(move.form.key)
                    longer.append([*chain, move])
                    if move.form.cost < form.cost:
                        return longer[-1]
            chains = sorted(longer, key=lambda chain: chain[-1].form.cost)[:width]
    return None


def _price(node: Expr) -> int:
    if node.op == "apply":
        return CALL + node.args[0].value.cost
    return 0 if _is_number(node) else PRICES.get(node.op, 0)


def _is_number(node: Expr) -> bool:
    return all(map(_is_number, node.args)) if node.args else node.op == "constant"


def _is_free(node: Expr) -> bool:
    return _price(node) == 0 and all(map(_is_free, node.args))


def _turned(node: Expr, commuted: Mapping[str, str]) -> Iterator[tuple[list[list[int]], Expr]]:
    """Yield a node with all combinations of exchanged operands, of the node itself and of its arguments.

    Args:
      node: the node.
      commuted: the operators whose operands can be exchanged, see `_Forms`.

    Yields:
      (paths from the node to the operators whose operands are exchanged, the resulting node). The first result is the
      unchanged node.
    """
    for turns in product(*([0, 1] if one.op in commuted else [0] for one in (*node.args, node))):
        args = [arg.with_args(arg.args[::-1]) if turn else arg for arg, turn in zip(node.args, turns[:-1], strict=True)]
        places = [[position] for position, turn in enumerate(turns[:-1]) if turn]
        yield (places + [[]], node.with_args(tuple(args[::-1]))) if turns[-1] else (places, node.with_args(tuple(args)))


def _replaced(tree: Expr, key: bytes, new: Expr, known: dict[bytes, Expr]) -> Expr:
    """Return the tree in which `new` replaces each subexpression with the given key; `known` caches key → result."""
    if tree.key == key:
        return new
    if tree.key not in known:
        args = tuple(_replaced(arg, key, new, known) for arg in tree.args)
        known[tree.key] = tree if args == tree.args else tree.with_args(args)
    return known[tree.key]


# -- rewrites --------------------------------------------------------------------------------------


def _repeat(course: Course, key: bytes, turns: list[list[int]], rule: str) -> None:
    """Repeat the step of a move in the state: rewrite all subexpressions with a key by a rule.

    Args:
      course: the state, which is extended.
      key: the key of the subexpressions.
      turns: paths below each subexpression to the operators whose operands are exchanged first.
      rule: the rule.
    """
    while True:
        table = course.state.table
        row = next((row for row, node in enumerate(table.exprs) if node.key == key), None)
        if row is None:
            return
        place = table.path(row)
        for turn in turns:
            course.rewrite(COMMUTED[course.state.table.exprs[course.row(place + turn)].op], place + turn)
        course.rewrite(rule, place)


def _align(course: Course, forms: _Forms) -> None:
    """Make subexpressions equal that differ only in the order of operands, the smallest subexpressions first."""
    table, keys = course.state.table, {}
    for row in sorted(range(len(table.exprs)), key=lambda row: table.exprs[row].size):
        node = table.exprs[row]
        if node.op in forms.commuted and keys.setdefault(forms.number(node), node.key) != node.key:
            if course.rewrite(forms.commuted[node.op], table.path(row)):
                return _align(course, forms)


def _bind(course: Course, root: list[int]) -> None:
    """Bind each subexpression that occurs several times by a `let`, the largest first.

    Args:
      course: the state, which is extended.
      root: the path to the arithmetic expression; the `let`s stay inside it.
    """
    while True:
        table = course.state.table
        places: dict[object, list[int]] = {}
        for row, key in enumerate(table.absolute_keys()):
            if row > course.row(root) and not _is_free(table.exprs[row]):
                places.setdefault(key, []).append(row)
        again = [rows for rows in places.values() if len(rows) > 1]
        if not again:
            return
        rows = max(again, key=lambda rows: table.exprs[rows[0]].size)
        first = _lifted(course, table.path(rows[0]), root)
        for _ in rows[1:]:
            table = course.state.table
            keys = table.absolute_keys()
            value = course.row([*first, 0])
            row = next(row for row, key in enumerate(keys) if key == keys[value] and row != value)
            _lifted(course, table.path(row), [*first, 1])
            if not course.rewrite("cse_bind", first):
                return


def _lifted(course: Course, place: list[int], to: list[int]) -> list[int]:
    """Bind a subexpression by a `let`, move the `let` outwards, and return the path to its last position.

    Args:
      course: the state, which is extended.
      place: the path to the subexpression.
      to: the path at which the `let` stops, even if it could move further.
    """
    course.rewrite("new_bind", place)
    while place != to and course.rewrite("lift_bind", place):
        place = place[:-1]
    return place
