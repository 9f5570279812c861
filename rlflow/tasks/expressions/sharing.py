"""A search of arithmetic without `let`s, calls and tuples, which puts the `let`s back at the end.

Most rewrites of a person's sequence move `let`s about. `sharing_search` needs none of them to find a cheaper form:

1. It inlines every `let` and call, so that the program is one tree.
2. It descends by the rules of arithmetic (`rlflow.search.chains`). A move rewrites all equal subexpressions at once,
   after a change of the order of operands where the rule needs one. A form costs as much as the program that
   computes each subexpression once, whatever the order of operands, and pays a `let` for each one with several uses.
3. It binds equal subexpressions by the rules new_bind, lift_bind and cse_bind.

Each of these is a sequence of rewrites, so that the result has a receipt like any other. Operators on numbers alone are
free until the end and then computed, for this cannot be undone. The search descends again and again, from the
beginning or from a random place on the path to the best form so far.
"""

from collections.abc import Iterator, Mapping
from itertools import product

from rlflow.common.task import Match
from rlflow.search.base import Path, Search
from rlflow.search.chains import Move, descend
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
GROWTH = 2  # a move may not make the tree more than this much larger
NOISE = 3 * UNITS


class Course:
    """A state and the path to it, extended rewrite by rewrite."""

    def __init__(self, search: Search, state: ExpressionState, path: Path | None):
        self.search, self.state, self.path = search, state, path

    def follow(self, match: Match) -> None:
        self.state, self.path = self.search.follow(self.state, match), (match, self.path)

    def exhaust(self, rules: tuple[str, ...]) -> None:
        """Apply the first of several rules that has a match, until none has."""
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
        """Apply a rule at a location if it has a match there, and return whether it had."""
        number, location = self.state.task.number[rule], self.state.ids[self.row(place)]
        match = next((m for m in self.state.matches if m.xfer_id == number and m.location == location), None)
        if match is not None:
            self.follow(match)
        return match is not None


def sharing_search(search: Search) -> str:
    """Search for a cheaper program of arithmetic as the module describes.

    Returns: the reason of the end, such as operators that are not arithmetic on numbers.
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
    """What the forms of one program share: the rules, and numbers of subexpressions.

    Two subexpressions have one number if they differ only in the order of operands that a rule of the set can change.
    """

    def __init__(self, rules: tuple[str, ...]):
        self.commuted = {op: rule for op, rule in COMMUTED.items() if rule in rules}
        arithmetic = {rule for rule in rules if all_rules()[rule].group in ("arithmetic", "constants")}
        self.rules = arithmetic - {*COMMUTED.values(), *FOLDING}
        self._numbers: dict[tuple, int] = {}
        self._of_key: dict[bytes, int] = {}

    def number(self, node: Expr) -> int:
        known = self._of_key.get(node.key)
        if known is None:
            parts = [self.number(arg) for arg in node.args]
            label = (node.op, node.value, node.type) if not parts else (node.op, node.value)
            key = (*label, *(sorted(parts) if node.op in self.commuted else parts))
            known = self._of_key[node.key] = self._numbers.setdefault(key, len(self._numbers))
        return known


class Form:
    """A tree, see `rlflow.search.chains.Form`."""

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

    def moves(self, near: frozenset[bytes] | None = None) -> Iterator[Move]:
        """Yield the moves: all rewrites of arithmetic, at all equal subexpressions at once.

        Args:
          near: keys of subexpressions; only these, their operands, and two levels of what contains them are rewritten.
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


def _price(node: Expr) -> int:
    if node.op == "apply":
        return CALL + node.args[0].value.cost
    return 0 if _is_number(node) else PRICES.get(node.op, 0)


def _is_number(node: Expr) -> bool:
    return all(map(_is_number, node.args)) if node.args else node.op == "constant"


def _is_free(node: Expr) -> bool:
    return _price(node) == 0 and all(map(_is_free, node.args))


def _turned(node: Expr, commuted: Mapping[str, str]) -> Iterator[tuple[list[list[int]], Expr]]:
    """Yield (places below the node where operands change places, the result) for each such choice."""
    for turns in product(*([0, 1] if one.op in commuted else [0] for one in (*node.args, node))):
        args = [arg.with_args(arg.args[::-1]) if turn else arg for arg, turn in zip(node.args, turns[:-1], strict=True)]
        places = [[position] for position, turn in enumerate(turns[:-1]) if turn]
        yield (places + [[]], node.with_args(tuple(args[::-1]))) if turns[-1] else (places, node.with_args(tuple(args)))


def _replaced(tree: Expr, key: bytes, new: Expr, known: dict[bytes, Expr]) -> Expr:
    """Return the tree with another subexpression for each one with a key."""
    if tree.key == key:
        return new
    if tree.key not in known:
        args = tuple(_replaced(arg, key, new, known) for arg in tree.args)
        known[tree.key] = tree if args == tree.args else tree.with_args(args)
    return known[tree.key]


# -- rewrites --------------------------------------------------------------------------------------


def _repeat(course: Course, key: bytes, turns: list[list[int]], rule: str) -> None:
    """Rewrite all subexpressions with a key by a rule, after a change of operands at places (`turns`) below each."""
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
    """Give subexpressions that differ only in the order of operands one order, the smallest first."""
    table, keys = course.state.table, {}
    for row in sorted(range(len(table.exprs)), key=lambda row: table.exprs[row].size):
        node = table.exprs[row]
        if node.op in forms.commuted and keys.setdefault(forms.number(node), node.key) != node.key:
            if course.rewrite(forms.commuted[node.op], table.path(row)):
                return _align(course, forms)


def _bind(course: Course, root: list[int]) -> None:
    """Bind each subexpression that occurs several times, the largest first, by a `let` inside a place."""
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
    """Bind a subexpression, move its `let` outwards as far as a place, and return the place where it ends."""
    course.rewrite("new_bind", place)
    while place != to and course.rewrite("lift_bind", place):
        place = place[:-1]
    return place
