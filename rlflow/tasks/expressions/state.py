"""Expressions as states: the rewrites of an expression, its cost, its graph, and its successor states.

A node of an expression has an id as long as no rewrite replaces it. Rows number the nodes of one state in preorder, so
the nodes of a subtree are consecutive rows. The locations of a rule are numbered in the order of their rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log1p, log2
from typing import ClassVar, NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.task import EncodingSpec, GraphArrays, LocalState
from rlflow.tasks.expressions.cost import VECTOR, cost_of
from rlflow.tasks.expressions.expr import ARITY, BINDERS, BOOL, FLOAT, INTEGER, Expr, elements, replace_at
from rlflow.tasks.expressions.rules import (
    AT_CALL,
    AT_VARIABLE,
    NEW_BIND,
    SETS,
    all_rules,
    inline,
    local_rewrites,
    rewrite_locally,
)
from rlflow.tasks.expressions.syntax import UNITS, Program

OPS = {op: number for number, op in enumerate(ARITY, start=1)}
KINDS = {FLOAT: 0, INTEGER: 1, BOOL: 2, "Vec": 3, "Tuple": 4, "Lam": 5}
NODE_FEATURES = len(KINDS) + 5
# Kinds of edges: from the first, second, third or a later argument; from a binder; between equal subtrees.
FIRST, SECOND, THIRD, LATER, BINDS, IDENTICAL = range(6)
EDGE_FEATURES = 6


class Rewrite(NamedTuple):
    """A rewrite of an expression; see `rlflow.common.task.Match`.

    Attributes:
      xfer_id: number of the rule in the rule set.
      location, redex: ids of the location and the redex, see `rules`.
      nodes: ids of the location, the redex and the arguments of the redex.
      plan: the rule and the key of the subtree that determines the replacement.
    """

    xfer_id: int
    location: int
    redex: int
    nodes: tuple[int, ...]
    plan: tuple[str, bytes]


@dataclass(frozen=True)
class ExpressionTask:
    """A program with a rule set; `rlflow.common.task.Task` describes the attributes.

    Attributes:
      program: the program at which every episode begins.
      rules: names of the rules; their positions are the action types.
      max_locations: largest number of locations of one rule that actions can select.
    """

    unit: ClassVar[str] = "cost"
    per_unit: ClassVar[float] = float(UNITS)

    program: Program
    rules: tuple[str, ...]
    max_locations: int

    @cached_property
    def number(self) -> Mapping[str, int]:
        """Name of a rule → its action type."""
        return {name: number for number, name in enumerate(self.rules)}

    @cached_property
    def initial(self) -> "ExpressionState":
        return ExpressionState(self, self.program.expr)

    @property
    def encoding_spec(self) -> EncodingSpec:
        return EncodingSpec(
            n_ops=len(OPS) + 1, node_features=NODE_FEATURES, edge_features=EDGE_FEATURES, global_features=2,
            n_rules=len(self.rules), max_locations=self.max_locations,
        )  # fmt: skip


def rules_of(rule_set: str) -> tuple[str, ...]:
    """Return the names of the rules of a set, in the order of rules.ks."""
    if rule_set not in SETS:
        raise RLFlowError(f"no rule set '{rule_set}'; choose one of {', '.join(SETS)}")
    return tuple(rule.name for rule in all_rules().values() if rule.group in SETS[rule_set])


class _Origin(NamedTuple):
    """The part of the state before a rewrite that determines the ids and the rewrites of the state after it.

    Attributes:
      ids: the id of each row.
      next_id: the smallest unused id.
      keys: the key of each node of the redex, in preorder.
      sizes: the number of nodes of the subtree at each node of the redex.
      redex: the row of the root of the redex.
      parent: the id of the parent of the redex, or -1 if the redex is the whole expression.
      rewrites: the rewrites of the state, as `_rewrites` returns them.
    """

    ids: list[int]
    next_id: int
    keys: list[bytes]
    sizes: list[int]
    redex: int
    parent: int
    rewrites: Mapping[tuple, Rewrite]


@dataclass(frozen=True, eq=False)
class ExpressionState(LocalState):
    """An expression; see `rlflow.common.task.LocalState`.

    The cost of a node depends on other nodes at any distance: on the operators that repeat the node, and on the other
    arm of an `if` around the node. `reach` is therefore practically infinite. A search keeps known gains although they
    may be outdated, and computes all gains again before it concludes that no rewrite gains.
    """

    reach: ClassVar[int] = 10**9

    task: ExpressionTask
    expr: Expr
    _origin: _Origin | None = field(default=None, repr=False)

    @cached_property
    def objective(self) -> int:
        return cost_of(self.expr)

    @property
    def hash(self) -> str:
        return self.expr.key.hex()

    @cached_property
    def table(self) -> "Table":
        return Table(self.expr)

    @cached_property
    def _numbering(self) -> tuple[list[int], int, frozenset[int]]:
        """(the id of each row, the smallest unused id, the ids in `touched`).

        Outside the redex all nodes keep their ids. Inside, a subtree takes the ids of an equal subtree of the redex if
        no other subtree has taken them.
        """
        origin = self._origin
        if origin is None:
            return list(range(self.expr.size)), self.expr.size, frozenset(range(self.expr.size))
        start, old_size, next_id = origin.redex, origin.sizes[0], origin.next_id
        old = origin.ids[start : start + old_size]
        places: dict[bytes, list[int]] = {}
        for offset in range(old_size - 1, -1, -1):
            places.setdefault(origin.keys[offset], []).append(offset)
        new, reused, fresh, row = [], set(), [], start
        end = start + self.expr.size - (len(origin.ids) - old_size)
        while row < end:
            node = self.table.exprs[row]
            for offset in reversed(places.get(node.key, ())):
                kept = old[offset : offset + node.size]
                if reused.isdisjoint(kept) and not (row == start and offset == 0):
                    new += kept
                    reused.update(kept)
                    row += node.size
                    break
            else:
                new.append(next_id)
                fresh.append(next_id)
                next_id, row = next_id + 1, row + 1
        touched = frozenset(fresh) | (frozenset(old) - reused) | ({origin.parent} - {-1})
        return origin.ids[:start] + new + origin.ids[start + old_size :], next_id, touched

    @property
    def ids(self) -> list[int]:
        return self._numbering[0]

    @property
    def touched(self) -> frozenset[int]:
        return self._numbering[2]

    @cached_property
    def rows(self) -> dict[int, int]:
        return {node: row for row, node in enumerate(self.ids)}

    @cached_property
    def _rewrites(self) -> dict[tuple, Rewrite]:
        """(rule number, id of the location, key of `Rewrite.plan`) → rewrite, in the order of `matches`.

        At most `max_locations` rewrites of each rule are listed. Rewrites that the previous state had are the same
        objects.
        """
        task, ids, table = self.task, self.ids, self.table
        before = self._origin.rewrites if self._origin is not None else {}
        found: list[list[tuple]] = [[] for _ in task.rules]  # (row of the location, row of the redex, key)
        for name, location, redex, key in table.rewrites():
            number = task.number.get(name)
            if number is not None:
                found[number].append((location, redex, key))
        result = {}
        for number, places in enumerate(found):
            places.sort()
            for location, redex, key in places[: task.max_locations]:
                index = number, ids[location], key
                nodes = tuple(dict.fromkeys(ids[row] for row in (location, redex, *table.children(redex))))
                known = before.get(index)
                if known is None or known.redex != ids[redex] or known.nodes != nodes:
                    known = Rewrite(number, ids[location], ids[redex], nodes, (task.rules[number], key))
                result[index] = known
        object.__setattr__(self, "_origin", None)  # computed from now on; earlier states need not stay in memory
        return result

    @cached_property
    def matches(self) -> list[Rewrite]:
        return list(self._rewrites.values())

    @cached_property
    def counts(self) -> np.ndarray:
        return np.bincount([one.xfer_id for one in self.matches], minlength=len(self.task.rules)).astype(np.int32)

    @cached_property
    def _first(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.counts)])

    def match(self, sort: int, index: int) -> Rewrite:
        if not (0 <= sort < len(self.counts) and 0 <= index < self.counts[sort]):
            raise RLFlowError(f"rule {sort} has no location {index} in this expression")
        return self.matches[self._first[sort] + index]

    @cached_property
    def _place(self) -> dict[Rewrite, int]:
        return {one: place for place, one in enumerate(self.matches)}

    def index_of(self, match: Rewrite) -> int:
        return int(self._place[match] - self._first[match.xfer_id])

    def apply(self, sort: int, index: int) -> "ExpressionState":
        return self.follow(self.match(sort, index))

    def follow(self, match: Rewrite) -> "ExpressionState":
        location, redex = self.rows[match.location], self.rows[match.redex]
        name, table = self.task.rules[match.xfer_id], self.table
        path = table.path(redex)
        if name in (AT_VARIABLE, AT_CALL):
            within = table.path(location)[len(path) :]
            expr = replace_at(self.expr, path, lambda let: inline(let, within))
        else:
            position = -1 if location == redex else table.position[location]
            expr = replace_at(self.expr, path, lambda old: rewrite_locally(old, name, position))
        last = redex + table.exprs[redex].size
        nodes, parent = table.exprs[redex:last], table.parent[redex]
        origin = _Origin(
            self.ids, self._numbering[1], [node.key for node in nodes], [node.size for node in nodes], redex,
            self.ids[parent] if parent >= 0 else -1, self._rewrites,
        )  # fmt: skip
        return ExpressionState(self.task, expr, origin)

    def __getstate__(self) -> dict:
        return {"task": self.task, "expr": self.expr, "_origin": None}

    def near(self, nodes: Iterable[int], reach: int) -> set[int]:
        result = set(nodes)
        rows = [self.rows[node] for node in result if node in self.rows]
        seen = set(rows)
        for _ in range(reach):
            rows = [other for row in rows for other in self.table.neighbours[row] if other not in seen]
            if not rows:
                break
            seen.update(rows)
        return result | {self.ids[row] for row in seen}

    def arrays(self) -> GraphArrays:
        table = self.table
        senders, receivers, kinds = table.edges()
        edges = np.zeros((len(kinds), EDGE_FEATURES), np.float32)
        edges[np.arange(len(kinds)), kinds] = 1
        initial = max(self.task.initial.objective, 1)
        return GraphArrays(
            ops=np.array([OPS[node.op] for node in table.exprs], np.int32),
            nodes=table.features(),
            edges=edges,
            senders=np.array(senders, np.int32),
            receivers=np.array(receivers, np.int32),
            globals=np.array([self.objective / initial, log1p(self.objective / UNITS) / 10], np.float32),
        )


class Table:
    """The nodes of an expression in preorder.

    Attributes:
      exprs: the subtree at each row.
      parent: the row of the parent, -1 of the root.
      position: the position among the parent's arguments.
      binder: of a bound variable the row of its binder, else -1.
    """

    def __init__(self, expr: Expr):
        self.exprs: list[Expr] = []
        self.parent: list[int] = []
        self.position: list[int] = []
        self.binder: list[int] = []
        stack: list[tuple] = [(expr, -1, 0, None)]
        while stack:
            node, parent, position, around = stack.pop()
            row = len(self.exprs)
            self.exprs.append(node)
            self.parent.append(parent)
            self.position.append(position)
            self.binder.append(-1)
            if node.op == "variable":
                scope = around
                for _ in range(node.value):
                    scope = scope[1]
                self.binder[row] = scope[0]
            elif node.args:
                under = BINDERS.get(node.op)
                for each in range(len(node.args) - 1, -1, -1):
                    stack.append((node.args[each], row, each, (row, around) if each == under else around))

    def children(self, row: int) -> list[int]:
        """Return the rows of the arguments of the node at a row."""
        result, child = [], row + 1
        for arg in self.exprs[row].args:
            result.append(child)
            child += arg.size
        return result

    def path(self, row: int) -> list[int]:
        """Return the positions of arguments that lead from the root to a row."""
        result = []
        while self.parent[row] >= 0:
            result.append(self.position[row])
            row = self.parent[row]
        return result[::-1]

    def rewrites(self) -> Iterator[tuple[str, int, int, bytes]]:
        """Yield (rule, row of the location, row of the redex, key of the subtree that determines the replacement)."""
        for row, node in enumerate(self.exprs):
            rewrites = local_rewrites(node)
            if rewrites:
                children = self.children(row)
                for name, position in rewrites:
                    location = row if position < 0 else children[position]
                    yield name, location, row, self.exprs[location if name == NEW_BIND else row].key
            function = node.args[0] if node.op == "apply" else node
            if function.op == "variable":
                binder = self.binder[row + (function is not node)]
                let = self.exprs[binder]
                if let.op == "let":
                    if function is not node and let.args[0].op == "lam":
                        yield AT_CALL, row, binder, let.args[0].key
                    elif function is node and let.args[0].op != "lam":
                        yield AT_VARIABLE, row, binder, let.args[0].key

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """The rows next to each row: its parent, its arguments, and its binder or the variables that it binds."""
        result: list[list[int]] = [[] for _ in self.exprs]
        for row in range(1, len(self.exprs)):
            for other in {self.parent[row], self.binder[row]} - {-1}:
                result[row].append(other)
                result[other].append(row)
        return result

    def edges(self) -> tuple[list[int], list[int], list[int]]:
        """Return the senders, receivers and kinds of the edges, one list each.

        An edge leads from each argument to its operator, and from each binder to its variables. Two edges of kind
        IDENTICAL, one in each direction, join each subtree of several nodes, or external, to the next equal one in
        preorder.
        """
        senders, receivers, kinds = [], [], []
        for row in range(1, len(self.exprs)):
            senders.append(row)
            receivers.append(self.parent[row])
            kinds.append(min(self.position[row], LATER))
            if self.binder[row] >= 0:
                senders.append(self.binder[row])
                receivers.append(row)
                kinds.append(BINDS)
        last: dict[object, int] = {}
        for row, key in enumerate(self.absolute_keys()):
            if self.exprs[row].size > 1 or self.exprs[row].op == "external":
                if key in last:
                    senders += [last[key], row]
                    receivers += [row, last[key]]
                    kinds += [IDENTICAL, IDENTICAL]
                last[key] = row
        return senders, receivers, kinds

    def absolute_keys(self) -> list[object]:
        """Return a value for each row that is equal for subtrees with the same value, wherever the subtrees stand.

        A key of an expression counts binders from its root. Here a variable is identified by its binder instead.
        """
        result: list[object] = [None] * len(self.exprs)
        for row in range(len(self.exprs) - 1, -1, -1):
            node = self.exprs[row]
            if not node.free:
                result[row] = node.key
            elif node.op == "variable":
                result[row] = self.binder[row]
            else:
                result[row] = hash((node.op, str(node.value), *(result[child] for child in self.children(row))))
        return result

    def features(self) -> np.ndarray:
        """Return the features of the nodes, float32 [n, NODE_FEATURES].

        The first columns are the kind of the type (one-hot, KINDS). Five columns follow: the log16 of the number of
        elements (the rank); the number of `build`s and `sumbuild`s that repeat the node; the log2 of the number of
        nodes of the subtree, divided by 8; and the sign and log(1 + magnitude) of a constant.
        """
        result = np.zeros((len(self.exprs), NODE_FEATURES), np.float32)
        times = [0.0] * len(self.exprs)
        for row, node in enumerate(self.exprs):
            parent = self.parent[row]
            if parent >= 0:
                repeated = self.exprs[parent].op in ("build", "sumbuild") and self.position[row] == 1
                times[row] = times[parent] + repeated
            kind = node.type if isinstance(node.type, str) else node.type[0]
            if kind in KINDS:
                result[row, KINDS[kind]] = 1
            number = float(node.value) if node.op == "constant" else 0.0
            result[row, len(KINDS) :] = (
                log2(elements(node.type, VECTOR)) / log2(VECTOR), times[row], log2(node.size) / 8,
                np.sign(number), log1p(abs(number)),
            )  # fmt: skip
        return result
