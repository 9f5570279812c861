"""Learning rules from logged edits: the patterns and effects that are seen."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rlflow.collect.edits import Edit, MatchRecord
from rlflow.collect.episodes import Episode
from worldmodel.edits.exception_learning import learn_exceptions
from worldmodel.edits.learned_rules import LearnedRules
from worldmodel.edits.logged_edits import LoggedEdits
from worldmodel.edits.match_patterns import Effect, MatchPattern, NodePattern, Numbering, Signature, lift


def learn_rules(episodes: Sequence[Episode], logs: Sequence[LoggedEdits], repeated: Sequence[int]) -> LearnedRules:
    """All patterns, signatures and effects of these episodes, and where the patterns say too much.

    repeated: see `repeated_steps`.
    """
    rules = LearnedRules(symmetric_rules(episodes, logs))
    for log, steps in zip(logs, repeated, strict=True):
        _learn_episode(rules, log, steps)
    learn_exceptions(rules, logs)
    return rules


def symmetric_rules(episodes: Sequence[Episode], logs: Sequence[LoggedEdits]) -> set[int]:
    """Rules of which twice as many matches are logged as the environment counts locations."""
    result = set()
    for episode, log in zip(episodes, logs, strict=True):
        records = Counter()
        for edit, counts in zip(log.edits, episode.counts, strict=True):
            appeared = [match.xfer_id for match in edit.appeared]
            records.update(appeared)
            records.subtract(match.xfer_id for match in edit.lost)
            for xfer_id in set(appeared):
                if records[xfer_id] == 2 * counts[xfer_id] > 0:
                    result.add(xfer_id)
    return result


def _learn_episode(rules: LearnedRules, log: LoggedEdits, repeated: int) -> None:
    """Where rules apply is learnt from all its states; what they do, not from the repeated steps."""
    graph = _LoggedGraph(log.edits[0], rules.op_types)
    for match in log.edits[0].appeared:
        pattern, tensors = graph.lift(match)
        rules.add(pattern, graph.signature(match, tensors))
    for t, (edit, taken) in enumerate(zip(log.edits[1:], log.taken, strict=True)):
        if taken is not None and t >= repeated:
            pattern, tensors = graph.lift(taken)
            seen = rules.add(pattern, graph.signature(taken, tensors))
            seen[graph.effect(taken, tensors, edit)] += 1
        graph.follow(edit)
        for match in edit.appeared:
            pattern, tensors = graph.lift(match)
            rules.add(pattern, graph.signature(match, tensors))


class _LoggedGraph:
    """One episode's nodes and tensors as they were logged. op_types: operator → op type, to which it adds."""

    def __init__(self, first: Edit, op_types: dict[int, int]):
        self.op_types = op_types
        self.nodes: dict[int, NodePattern] = {}
        self.rank_signatures: dict[int, int] = {}
        self.signatures: dict[int, int] = {}
        self.follow(first)

    def follow(self, edit: Edit) -> None:
        for node_id in edit.removed:
            del self.nodes[node_id]
        for record in edit.nodes:
            self.nodes[record.id] = record.operator, record.inputs, record.outputs
            self.op_types[record.operator] = record.op_type
        for record in edit.tensors:
            self.rank_signatures[record.id], self.signatures[record.id] = record.rank_signature, record.signature

    def lift(self, match: MatchRecord) -> tuple[MatchPattern, tuple[int, ...]]:
        nodes = [self.nodes[n] for n in match.nodes]
        return lift(match.xfer_id, nodes, match.operands, self.rank_signatures, self.op_types)

    def signature(self, match: MatchRecord, tensors: Iterable[int]) -> Signature:
        return (*[self.nodes[n][0] for n in match.nodes], *[self.signatures[t] for t in tensors])

    def effect(self, match: MatchRecord, tensors: tuple[int, ...], edit: Edit) -> Effect:
        """What rewriting the match did. A node of it goes with it if its tensors were taken over."""
        numbering, records = Numbering(tensors), {record.id: record for record in edit.tensors}
        taken_over, added = {old for old, _ in edit.rewired}, []
        for record in edit.nodes:
            if record.id not in self.nodes:
                added.append(numbering.node(record.operator, record.inputs, record.outputs))
                taken_over.update(record.outputs)
        removed = []
        for position, node in enumerate(match.nodes):
            if node in edit.removed and taken_over.intersection(self.nodes[node][2]):
                removed.append(position)
        rewired = tuple([(numbering(old), numbering(new)) for old, new in edit.rewired])
        made = []
        for tensor in list(numbering.number)[len(tensors) :]:
            made.append((records[tensor].rank_signature, records[tensor].signature))
        return Effect(tuple(removed), tuple(added), rewired, tuple(made))
