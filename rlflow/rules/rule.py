"""The classes of a rewrite rule, its conditions and a set of rules; language.py creates their instances."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from rlflow.common.errors import RLFlowError, nearest
from rlflow.common.messages import command
from rlflow.rules.expressions import Expression
from rlflow.rules.patterns import Op, Output, Star, Var, depth_of, ops_of, paths_of, variables_of, walk


class Condition(NamedTuple):
    """One condition of a rule.

    Attributes:
      holds: expression that is true if the condition holds at a match.
      reason: why the rule does not apply if the condition fails, in words for the user.
    """

    holds: Expression
    reason: str


@dataclass(frozen=True)
class Rule:
    """One direction of an equation: a source pattern and its replacement.

    Attributes:
      name, family, why: the rule's name, the stem of its file, and its purpose in a few words.
      source, target: (output name, Output or Var) pairs; outputs of the two sides correspond by name and order.
      lets: (name, expression) pairs of the `let` clauses that define numbers. A `let` that defines a tensor is
        substituted into `target`.
      conditions: all conditions of the rule, each with its reason.
      counts_readers: True if a condition or a `let` depends on how many nodes read a tensor.
      content_names: names of the tensors that `finite`, `zeros` or `nonzeros` reads in a condition, a `let` or a value
        in `target`. These functions read the elements of large weights, too (rules/contents.py).
      symmetric: True if the source has two roots of equal structure that the target merges into one operator. Swapping
        the roots of a match then gives an equivalent match.
      text: the canonical text; the rule set's hash and the proof record are computed from this text.
      for_all_shapes: True if the rule is proved for every size; other rules apply only where all sizes are numbers.
      definition: the lines of the rule file that define the rule, and perhaps its inverse. A pickled rule consists of
        these lines, because the functions of a rule cannot be pickled.
    """

    name: str
    family: str
    why: str
    source: tuple[tuple[str, Output], ...]
    target: tuple[tuple[str, Any], ...]
    lets: tuple[tuple[str, Expression], ...]
    conditions: tuple[Condition, ...]
    counts_readers: bool
    content_names: tuple[str, ...]
    symmetric: bool
    text: str
    for_all_shapes: bool = False
    definition: str = field(default="", compare=False, repr=False)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Distinct operators of the source, in depth-first order from the outputs, which begins with the first root."""
        return tuple(ops_of(self.source).values())

    @cached_property
    def target_ops(self) -> tuple[Op, ...]:
        """Distinct operators of the target, in depth-first order from the outputs."""
        return tuple(ops_of(self.target).values())

    @cached_property
    def roots(self) -> tuple[Op, ...]:
        """Distinct operators that give the outputs of the source, in the order of the outputs."""
        return tuple({output.op.key: output.op for _, output in self.source}.values())

    @cached_property
    def root_positions(self) -> tuple[int, ...]:
        """Positions in `ops` of the operators that give the outputs of the source."""
        return tuple(self.ops.index(root) for root in self.roots)

    @cached_property
    def replaced(self) -> tuple[tuple[int, int], ...]:
        """(position in `ops` of the operator, index of its output) for each output of the source."""
        positions = {op.key: position for position, op in enumerate(self.ops)}
        return tuple((positions[output.op.key], output.slot) for _, output in self.source)

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensor variables of the source, sorted."""
        return tuple(sorted({name for _, output in self.source for name in _tensor_names(output)}))

    @cached_property
    def margins(self) -> tuple[str, ...]:
        """Names of the first and last variable of a rule Concat(*l, …, *r) => Concat(*l, …, *r); () for other rules.

        Such a rule replaces consecutive inputs of a Concat and applies whatever the inputs before and after them are,
        so that one plan serves all positions in a wide Concat (`rlflow.rules.apply.margins_to_skip`). A rule with
        `conditions` or `lets`, or without a proof for all shapes, has no margins.
        """
        (_, old), (_, new) = self.source[0], self.target[0]
        if len(self.source) > 1 or self.lets or self.conditions or not self.for_all_shapes or isinstance(new, Var):
            return ()
        ends = [(op.op, op.domain, op.attributes, op.rest, *op.inputs[:1], *op.inputs[-1:]) for op in (old.op, new.op)]
        names = tuple(end.name for end in ends[0][-2:] if isinstance(end, Star))
        alike = ends[0] == ends[1] and ends[0][:2] == ("Concat", "") and ends[0][3] is None
        once = all(
            [name for side in (old, new) for name in _tensor_names(side)].count(end) == 2 for end in names
        )
        return names if alike and once and len(set(names)) == 2 else ()

    @cached_property
    def attribute_names(self) -> tuple[str, ...]:
        """Names that the source binds to attribute values or to all remaining attributes of an operator, sorted."""
        return tuple(sorted(variables_of(self.source) - set(self.tensor_names)))

    @cached_property
    def n_outputs(self) -> dict[int, int]:
        """Key of each target operator → number of its outputs up to the last that the target uses."""
        used = [output for _, output in self.target if isinstance(output, Output)]
        used += [child for op in self.target_ops for child in op.inputs if isinstance(child, Output)]
        return {op.key: 1 + max(o.slot for o in used if o.op.key == op.key) for op in self.target_ops}

    @cached_property
    def depth(self) -> int:
        """Number of operators on the longest path from a root of the source to a variable or literal."""
        return max(depth_of(output.op) for _, output in self.source)

    @cached_property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Distinct paths of operator names, each from an operator of the source up to a root."""
        return tuple(dict.fromkeys(path for root in self.roots for path in paths_of(root)))

    @cached_property
    def children(self) -> frozenset[str]:
        """Names of the operators that, for every root, compute an input of the root."""
        return frozenset.intersection(
            *[frozenset(c.op.op for c in root.inputs if isinstance(c, Output)) for root in self.roots]
        )


def _tensor_names(pattern) -> Iterator[str]:
    """Yield the name of a tensor variable at each of its occurrences in a pattern."""
    return (part.name for part in walk(pattern) if isinstance(part, Var | Star))


@dataclass(frozen=True, eq=False)
class RuleSet:
    """Rules in the order of their xfer_ids; `hash` is a SHA-256 digest of the texts of the loaded rules."""

    rules: tuple[Rule, ...]
    hash: str = field(default="")

    def __len__(self) -> int:
        return len(self.rules)

    def __iter__(self):
        return iter(self.rules)

    def __getitem__(self, xfer_id: int) -> Rule:
        return self.rules[xfer_id]

    def index(self, name: str) -> int:
        """Return the xfer_id of the rule with this name. Raise RLFlowError if no rule has it."""
        for xfer_id, rule in enumerate(self.rules):
            if rule.name == name:
                return xfer_id
        hint = nearest(name, [rule.name for rule in self.rules]) or f"; `{command('rules', 'list')}` lists all rules"
        raise RLFlowError(f"no rule is named '{name}'{hint}")
