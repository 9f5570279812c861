"""The grounding of learned rules on one initial graph: the tensors, nodes and matches that rewriting can reach.

Tensors, nodes and matches are numbered. A state is a set of nodes, and a match needs all its nodes in the state. All
imagined rollouts from an initial graph share its grounding, which grows when a rollout makes a new rewrite. A possible
match of several nodes waits until some state contains all of its nodes, because most combinations of nodes never occur
in one state.

A new tensor is identified by its owner, its producer, and the number of copies already in use. The owner is the
existing tensor for which the rewrite makes it. The same rewrite therefore gives the same numbers in every imagined
rollout and in recorded episodes, and a repeated rewrite gives different tensors. For this purpose, edits list new nodes
in the order of the rule's plan, which is the same for all graphs.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from rlflow.collect.edits import Edit
from rlflow.graph.ir import ABSENT
from worldmodel.edits.learned_rules import (
    Effect,
    LearnedRules,
    MatchPattern,
    NodePattern,
    Signature,
    lift,
    node_signature,
)

# Sort key of a tensor. A tensor of the initial graph has the position of its producer in the canonical order, and its
# id. A tensor that a rewrite makes has the position of its owner, and a hash.
OrderKey = tuple[int, int]


class GroundMatch(NamedTuple):
    """A match of a pattern in a grounding, present in the states that contain its nodes and fulfil its conditions.

    Attributes:
      pattern: the number of the pattern in `LearnedRules.patterns`.
      nodes: the grounding's numbers of the matched nodes, in the rule's order.
      operands: the grounding's numbers of the tensors of all variables, then of the replaced outputs.
      tensors: tensors[i] is the grounding's number of the pattern's local tensor i.
    """

    pattern: int
    nodes: tuple[int, ...]
    operands: tuple[int, ...]
    tensors: tuple[int, ...]


class GroundEffect(NamedTuple):
    """The effect of rewriting a match, in the grounding's numbers.

    Attributes:
      removed, added: the nodes that the rewrite removes and adds.
      rewired: (old tensor, new tensor) pairs; all consumers of the old tensor read the new tensor.
      made: the tensors that the rewrite makes.
      seen: True if the data contain the effect with exactly this signature, False if it is predicted.
    """

    removed: tuple[int, ...]
    added: tuple[int, ...]
    rewired: tuple[tuple[int, int], ...]
    made: tuple[int, ...]
    seen: bool


class Grounding:
    """The numbered tensors, nodes and matches that learned rules can reach from one initial graph.

    Attributes:
      rules: the learned rules.
      first: the first edit of the graph, with its initial nodes, tensors and matches.
      nodes: (operator, tensors read, tensors made) of each node.
      primary_outputs: for each node, the first tensor that it makes; states store the node under this tensor.
      rank_signatures, signatures: for each tensor, see `rlflow.collect.edits.TensorRecord`.
      order_keys: for each tensor, a sort key that does not depend on when the tensor was numbered.
      consumers, producers: for each tensor, the nodes that read it and the nodes that make it.
      matches: the matches.
      waiting: (pattern number, nodes) of matches whose nodes no state has had together; `admit` turns such an entry
        into a match. Matches of sibling patterns (see `are_siblings`) do not wait here; `meet` creates these matches.
      symmetric_match: {match of a symmetric rule: the match of the same nodes in the other order}.
    """

    def __init__(self, rules: LearnedRules, first: Edit, waits: bool = True):
        """Create a grounding without nodes.

        Args:
          rules: the learned rules.
          first: the first edit of the graph.
          waits: True if a match of several nodes waits until a state contains all of them. If False, the match exists
            as soon as all its nodes are numbered.
        """
        self.rules, self.first, self.waits = rules, first, waits
        self.tensor_numbers: dict[tuple, int] = {}
        self.order_keys: list[OrderKey] = []
        self.rank_signatures: list[int] = []
        self.signatures: list[int] = []
        self.node_numbers: dict[tuple, int] = {}
        self.nodes: list[NodePattern] = []
        self.primary_outputs: list[int] = []
        self.consumers: list[list[int]] = []
        self.producers: list[list[int]] = []
        self.match_numbers: dict[tuple, int] = {}
        self.matches: list[GroundMatch] = []
        self.waiting: list[tuple[int, tuple[int, ...]]] = []
        self._met: set[tuple[int, int]] = set()
        # A naming is one of the two orders in which a match of a symmetric rule can list its nodes.
        self._namings: dict[tuple, list[int]] = defaultdict(list)  # (symmetric rule, set of nodes) → waiting matches
        self.symmetric_match: dict[int, int] = {}
        self._first_naming: dict[tuple, int] = {}  # (symmetric rule, set of nodes) → the first match of these nodes
        self._effects: dict[tuple[int, int], GroundEffect | None] = {}

    # -- tensors -----------------------------------------------------------------------------------

    def initial_tensor(self, real: int, rank: int, rank_signature: int, signature: int) -> int:
        """Return the number of a tensor of the initial graph.

        Args:
          real: the id of the tensor in the initial graph.
          rank: the position of its producer in the canonical order of the initial graph; −1 without a producer.
          rank_signature: the rank signature of the tensor.
          signature: the signature of the tensor.
        """
        return self._tensor(("initial", real), (rank, real), rank_signature, signature)

    def made_tensor(
        self, owner: int, maker: tuple, rank_signature: int, signature: int, copies: dict[tuple, int]
    ) -> int:
        """Return the number of a tensor that a rewrite makes.

        Args:
          owner: the tensor for which the tensor is made: the last replaced output of the match. For a constant whose
            consumer makes an existing tensor, the owner is this tensor.
          maker: (operator, tensors read, output slot) of the node that makes the tensor. For a new constant: (operator
            of its consumer, (), input position).
          rank_signature: the rank signature of the tensor.
          signature: the signature of the tensor.
          copies: {(owner, *maker, signature): number of the next copy} (see `effect`); modified.
        """
        name = owner, *maker, signature
        key = *name, copies[name]
        copies[name] += 1
        if key in self.tensor_numbers:
            return self.tensor_numbers[key]
        operator, inputs, slot = maker
        stable = [self.order_keys[t] if t >= 0 else t for t in (owner, *inputs)], operator, slot, signature, key[-1]
        digest = hashlib.sha256(repr(stable).encode()).digest()
        order_key = self.order_keys[owner][0], int.from_bytes(digest[:7], "little")
        return self._tensor(key, order_key, rank_signature, signature)

    def _tensor(self, key: tuple, order_key: OrderKey, rank_signature: int, signature: int) -> int:
        result = self.tensor_numbers.get(key)
        if result is None:
            result = self.tensor_numbers[key] = len(self.order_keys)
            self.order_keys.append(order_key)
            self.rank_signatures.append(rank_signature)
            self.signatures.append(signature)
            self.consumers.append([])
            self.producers.append([])
        return result

    # -- nodes -------------------------------------------------------------------------------------

    def node(self, operator: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> int:
        """Return the number of a node. A new node gets the next number, and its possible matches are added.

        Args:
          operator: the operator of the node.
          inputs: the tensors that the node reads.
          outputs: the tensors that the node makes.
        """
        key = operator, inputs, outputs
        result = self.node_numbers.get(key)
        if result is None:
            result = self.node_numbers[key] = len(self.nodes)
            self.nodes.append(key)
            self.primary_outputs.append(next(t for t in outputs if t != ABSENT))
            for tensor in set(inputs) - {ABSENT}:
                self.consumers[tensor].append(result)
            for tensor in set(outputs) - {ABSENT}:
                self.producers[tensor].append(result)
            for pattern, position in self.rules.uses.get(self.rules.op_types[operator], ()):
                self._add_matches_with(pattern, position, result)
        return result

    def rewired_node(self, node: int, tensors: Mapping[int, int]) -> int:
        """Return the number of the node that equals a node but reads other tensors, given as {old: new}."""
        operator, inputs, outputs = self.nodes[node]
        return self.node(operator, tuple([tensors.get(t, t) for t in inputs]), outputs)

    def operator_signature(self, node: int) -> tuple[int, Signature]:
        """Return (operator, signature) of a node; see `node_signature`."""
        operator, inputs, outputs = self.nodes[node]
        return operator, node_signature(inputs, outputs, self.signatures.__getitem__)

    # -- matches -----------------------------------------------------------------------------------

    def match(self, xfer_id: int, nodes: tuple[int, ...], operands: tuple[int, ...]) -> int | None:
        """Return the number of a match, and add the match if it is new.

        Return None if the data do not contain the pattern of the match.

        Args:
          xfer_id: the rule.
          nodes: the matched nodes, in the rule's order.
          operands: the tensors of all variables, then the replaced outputs.
        """
        ground_nodes = [self.nodes[node] for node in nodes]
        pattern, tensors = lift(xfer_id, ground_nodes, operands, self.rank_signatures, self.rules.op_types)
        number = self.rules.numbers.get(pattern)
        if number is None:
            return None
        if xfer_id in self.rules.symmetric:  # also add the match in the other order, since both share a match class
            if self.waits and are_siblings(pattern):
                self.meet(*nodes)
            for waiting in self._namings.get((xfer_id, frozenset(nodes)), ()):
                self.admit(waiting)
        return self._add_match(GroundMatch(number, nodes, operands, tensors))

    def match_signature(self, match: GroundMatch) -> Signature:
        return (*[self.nodes[node][0] for node in match.nodes], *[self.signatures[t] for t in match.tensors])

    def order_of(self, nodes: tuple[int, ...], operands: tuple[int, ...]) -> tuple:
        """Return a sort key for the matches of a rule that does not depend on when a match was numbered.

        Args:
          nodes: the matched nodes.
          operands: the tensors of all variables, then the replaced outputs.
        """
        order_keys = self.order_keys
        of_nodes = [order_keys[self.primary_outputs[node]] for node in nodes]
        return of_nodes, [order_keys[t] if t >= 0 else (-1, t) for t in operands]

    def admit(self, waiting: int) -> None:
        """Add a waiting match to `matches`; called when a state contains all its nodes.

        Args:
          waiting: the index of the match in `waiting`.
        """
        number, nodes = self.waiting[waiting]
        pattern, bound = self.rules.patterns[number].pattern, {}
        for position, node in enumerate(nodes):
            self._unify(pattern, position, node, bound)
        self._add_match(_ground_match(number, pattern, nodes, bound))

    def meet(self, one: int, other: int) -> None:
        """Add the matches of exactly two nodes; called when a state contains both nodes and they share an input."""
        if (one, other) in self._met:
            return
        self._met |= {(one, other), (other, one)}
        for nodes in ((one, other), (other, one)):
            for number, position in self.rules.uses.get(self.rules.op_types[self.nodes[nodes[0]][0]], ()):
                pattern, bound = self.rules.patterns[number].pattern, {}
                if position == 0 and are_siblings(pattern):
                    if all(self._unify(pattern, k, node, bound) for k, node in enumerate(nodes)):
                        self._add_match(_ground_match(number, pattern, nodes, bound))

    def _add_match(self, match: GroundMatch) -> int:
        result = self.match_numbers.setdefault((match.pattern, match.nodes, match.operands), len(self.matches))
        if result == len(self.matches):
            self.matches.append(match)
            xfer_id = self.rules.patterns[match.pattern].pattern.xfer_id
            if xfer_id in self.rules.symmetric:
                first = self._first_naming.setdefault((xfer_id, frozenset(match.nodes)), result)
                if first != result and self.matches[first].nodes != match.nodes and first not in self.symmetric_match:
                    self.symmetric_match[first], self.symmetric_match[result] = result, first
        return result

    def _add_matches_with(self, number: int, position: int, node: int) -> None:
        """Add all matches of a pattern that have a given node at a given position, as matches or as waiting matches.

        Args:
          number: the number of the pattern.
          position: the position of the node in the pattern.
          node: the node.
        """
        pattern, bound = self.rules.patterns[number].pattern, {}
        if (self.waits and are_siblings(pattern)) or not self._unify(pattern, position, node, bound):
            return
        for tensors, by_position in self._completions(pattern, bound, {position: node}):
            nodes = tuple([by_position[p] for p in range(len(pattern.nodes))])
            if self.waits and len(nodes) > 1:
                if pattern.xfer_id in self.rules.symmetric:
                    self._namings[pattern.xfer_id, frozenset(nodes)].append(len(self.waiting))
                self.waiting.append((number, nodes))
            else:
                self._add_match(_ground_match(number, pattern, nodes, tensors))

    def _completions(self, pattern: MatchPattern, bound: dict, chosen: dict) -> Iterator[tuple[dict, dict]]:
        """Complete a partial match of a pattern in every possible way.

        Args:
          pattern: the pattern.
          bound: {local tensor of the pattern: tensor} of the partial match.
          chosen: {position in the pattern: node} of the partial match.

        Yields:
          (bound, chosen) of each complete match.
        """
        missing = [p for p in range(len(pattern.nodes)) if p not in chosen]
        if not missing:
            yield bound, chosen
            return
        candidates, position = None, missing[0]
        # Continue at the position with the fewest candidates. A candidate reads or makes a tensor of the partial match.
        for p in missing:
            _, inputs, outputs = pattern.nodes[p]
            for neighbours, tensors in ((self.producers, outputs), (self.consumers, inputs)):
                for t in tensors:
                    if t in bound and (candidates is None or len(neighbours[bound[t]]) < len(candidates)):
                        candidates, position = neighbours[bound[t]], p
        for node in tuple(candidates or ()):
            if node not in chosen.values():
                extended = dict(bound)
                if self._unify(pattern, position, node, extended):
                    yield from self._completions(pattern, extended, {**chosen, position: node})

    def _unify(self, pattern: MatchPattern, position: int, node: int, bound: dict[int, int]) -> bool:
        """Return True if a node fits a position of a pattern, and add the tensors of this position to `bound`.

        The node must have the operator type and the rank signatures of the pattern. Different local tensors must be
        different tensors.

        Args:
          pattern: the pattern.
          position: the position in the pattern.
          node: the node.
          bound: {local tensor of the pattern: tensor}; modified, also if the node does not fit.
        """
        wanted, ground = pattern.nodes[position], self.nodes[node]
        if wanted[0] != self.rules.op_types[ground[0]]:
            return False
        for local, real in zip(wanted[1:], ground[1:], strict=True):
            if len(local) != len(real):
                return False
            for t, tensor in zip(local, real, strict=True):
                if t < 0 or tensor < 0:
                    if t != tensor:
                        return False
                elif bound.setdefault(t, tensor) != tensor:
                    return False
                elif pattern.rank_signatures[t] != self.rank_signatures[tensor]:
                    return False
        return len(set(bound.values())) == len(bound)

    # -- effects -----------------------------------------------------------------------------------

    def effect(self, match: int, copy: int = 0) -> GroundEffect | None:
        """Return the effect of rewriting a match; None if the effect is unknown.

        Args:
          match: the number of the match.
          copy: the number of the copy of the new tensors. It is above 0 if the match was rewritten before and tensors
            of the earlier copies are still in use.
        """
        if (match, copy) not in self._effects:
            ground = self.matches[match]
            effect, seen = self.rules.effect(ground.pattern, self.match_signature(ground))
            self._effects[match, copy] = None if effect is None else self._grounded(ground, effect, seen, copy)
        return self._effects[match, copy]

    def _grounded(self, match: GroundMatch, effect: Effect, seen: bool, copy: int) -> GroundEffect:
        """Return an effect in the grounding's numbers, and add its new tensors and nodes to the grounding.

        Args:
          match: the match.
          effect: the effect, in local numbers of tensors.
          seen: see `GroundEffect`.
          copy: see `effect`.
        """
        tensors, owner, added = list(match.tensors), match.operands[-1], []
        made, copies = iter(effect.made), defaultdict(lambda: copy)

        def tensor(t: int, owner: int, maker: tuple) -> int:
            if t == len(tensors):
                tensors.append(self.made_tensor(owner, maker, *next(made), copies))
            return t if t == ABSENT else tensors[t]

        for operator, reads, makes in effect.added:
            # The owner of a new constant is the existing tensor that the constant's consumer makes, if there is one.
            gives = next((tensors[t] for t in makes if t in range(len(match.tensors))), owner)
            inputs = tuple([tensor(t, gives, (operator, (), position)) for position, t in enumerate(reads)])
            outputs = tuple([tensor(t, owner, (operator, inputs, slot)) for slot, t in enumerate(makes)])
            added.append(self.node(operator, inputs, outputs))
        removed = tuple([match.nodes[p] for p in effect.removed])
        rewired = tuple([(tensors[old], tensors[new]) for old, new in effect.rewired])
        return GroundEffect(removed, tuple(added), rewired, tuple(tensors[len(match.tensors) :]), seen)


@lru_cache(maxsize=65536)
def are_siblings(pattern: MatchPattern) -> bool:
    """Return True if a pattern has exactly two nodes, which share inputs but no other tensors.

    Such patterns are handled separately, because k alternatives of each node would give k² waiting matches.
    """
    if len(pattern.nodes) != 2:
        return False
    (_, one_reads, one_makes), (_, other_reads, other_makes) = pattern.nodes
    common = set(one_reads) & set(other_reads) - {ABSENT}
    return bool(common) and not set(one_makes) & {*other_reads, *other_makes} and not set(other_makes) & set(one_reads)


def _ground_match(number: int, pattern: MatchPattern, nodes: tuple[int, ...], tensors: dict[int, int]) -> GroundMatch:
    """Return the match of a pattern with given nodes and tensors.

    Args:
      number: the number of the pattern.
      pattern: the pattern.
      nodes: the matched nodes.
      tensors: {local tensor of the pattern: tensor}.
    """
    operands = tuple([tensors[t] if t >= 0 else t for t in pattern.operands])
    return GroundMatch(number, nodes, operands, tuple([tensors[t] for t in range(len(tensors))]))
