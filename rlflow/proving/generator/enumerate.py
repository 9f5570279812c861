"""Find rules by enumeration: compare small graphs by value and keep the equalities that no other equality implies.

A world is a set of variables and operators. In each world, graphs grow by one operator at a time (graphs.py). A graph
that has the value of an earlier graph gives a candidate equality. A candidate is kept unless the kept equalities imply
it (derive.py). Each direction that does not add operators (`paying`) becomes a rule, with conditions that make it true
for other shapes and attributes, too (generalise.py). At the end, equalities that other equalities of all worlds imply
are dropped, and the rules that the prover accepts are written (selection.py).
"""

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from time import monotonic
from time import time as now

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_text
from rlflow.common.processes import fresh_processes
from rlflow.proving.generator.derive import THOROUGH, derivable, instance, reachable
from rlflow.proving.generator.generalise import generalise, variants
from rlflow.proving.generator.graphs import WORLDS, Graphs, World
from rlflow.proving.generator.operators import (
    COMMUTATIVE,
    Label,
    Named,
    Node,
    Pattern,
    Term,
    operators,
    rename,
    value,
    variables,
)
from rlflow.proving.generator.selection import handwritten_rules, write
from rlflow.rules.rule import RuleSet

COSTLY = frozenset(("MatMul", "Conv"))


def paying(source: tuple[Term, ...], target: tuple[Term, ...]) -> tuple[str, ...] | None:
    """Return the smallest set of variables that must be weights so that rewriting `source` to `target` is useful.

    It is useful if the target does not run more operators than the source; operators on weights alone do not run. If no
    variable is a weight, the target may run one more operator, but no more MatMul and Conv: such a rule can enable
    others. A variable that some output of the source does not depend on must be a weight.

    Args:
      source: the outputs of the side to match.
      target: the outputs of the replacement.

    Returns:
      the variables, or None if no such set makes the rewrite useful.
    """
    names = variables(*source)
    if not set(variables(*target)) <= set(names):
        return None
    forced = set(names) - set.intersection(*(set(variables(root)) for root in source))
    if set(source) & {Node(*op) for op in operators(*target)}:
        return None  # The target contains the source.
    for count in range(len(forced), min(max(3, len(forced) + 1), len(names))):
        for constants in combinations(names, count):
            if not forced <= set(constants):
                continue
            before, after = _run_ops(source, constants), _run_ops(target, constants)
            cheap = sum(op in COSTLY for op in after) <= sum(op in COSTLY for op in before)
            if before and (len(after) <= len(before) or (not count and cheap and len(after) == len(before) + 1)):
                return constants
    return None


def _run_ops(side: tuple[Term, ...], constants: tuple[str, ...]) -> list[str]:
    """Return the types of the operators that run if `constants` are weights: operators on weights alone do not run."""
    return [result.op for result, inputs in operators(*side) if not set(variables(*inputs)) <= set(constants)]


CHECKPOINT = 1000  # number of candidates between two checkpoints

@dataclass
class Report:
    """The result of an enumeration.

    Attributes:
      worlds: one dictionary per world: its name, the numbers of graphs by size and operator, the numbers of candidates
        by verdict (`_consider`), and the seconds.
      finished: True if all worlds are finished; otherwise a call with the same folder continues.
      derived: the number of kept candidates that were dropped at the end because the others imply them.
      unwritten: the number of rules that were not written, by reason.
      rules: the text of the rules file; "" if the enumeration is not finished.
    """

    worlds: list[dict]
    finished: bool
    derived: int = 0
    unwritten: Counter = field(default_factory=Counter)
    rules: str = ""


@dataclass
class BestSoFar:
    """The equalities and rules that the enumeration of one world has kept so far.

    Attributes:
      kept: (equalities, rules made of these equalities) for each kept candidate, in order.
      merges: (outputs, the same outputs as the parts of one Split) pairs, the equalities of merged operators.
      equalities: all kept equalities.
      by_root: (label, slot) → the kept equalities, in both directions, whose left term has this root.
    """

    kept: list[tuple[list[tuple[Term, Term]], list[Pattern]]] = field(default_factory=list)
    merges: list[tuple[tuple[Term, ...], tuple[Term, ...]]] = field(default_factory=list)
    equalities: list[tuple[Term, Term]] = field(default_factory=list)
    by_root: dict = field(default_factory=lambda: defaultdict(list))

    def keep(self, pairs: list[tuple[Term, Term]], patterns: list[Pattern]) -> None:
        """Add the equalities of one candidate and the rules that were made of them."""
        self.kept.append((pairs, patterns))
        self.equalities += pairs
        for source, target in [*pairs, *(pair[::-1] for pair in pairs)]:
            if isinstance(source, Node) and set(variables(target)) <= set(variables(source)):
                self.by_root[source.label, source.slot].append((source, target))


def enumerate_rules(
    max_ops: int = 4, worlds: Sequence[World] = WORLDS, folder: Path | str | None = None, workers: int = 1,
    seconds: float = 1800.0, known: RuleSet | None = None,
) -> Report:
    """Enumerate all rules whose sides have up to `max_ops` operators of a world.

    Args:
      max_ops: the largest number of operators of a side.
      worlds: the worlds to enumerate.
      folder: the folder of the checkpoints, from which a call with the same arguments continues; None to keep none.
      workers: the number of processes; each process enumerates one world at a time.
      seconds: the time in seconds after which no further candidate is examined.
      known: rules that are not written again; None for the hand-written families.

    Returns:
      the report; its `rules` do not depend on the number of workers or interruptions.
    """
    with tempfile.TemporaryDirectory() as temporary:
        paths = [Path(folder or temporary) / f"{world.name}-{max_ops}.json".replace(" ", "-") for world in worlds]
        jobs = [(world, max_ops, path, now() + seconds) for world, path in zip(worlds, paths, strict=True)]
        if workers == 1:
            states = [_explore(*job) for job in jobs]
        else:
            with fresh_processes(workers) as pool:
                states = [future.result() for future in [pool.submit(_explore, *job) for job in jobs]]
    report = Report([state["report"] for state in states], all(state["finished"] for state in states))
    if report.finished:
        kept = [entry for state in states for entry in _result(state).kept]
        minimal = _minimal(kept)
        report.derived = len(kept) - len(minimal)
        result = [pattern for _, patterns in minimal for pattern in patterns]
        report.rules = write(result, handwritten_rules() if known is None else known, report.unwritten, workers)
    return report


def _minimal(kept: list) -> list:
    """Drop each kept candidate whose equalities the remaining candidates imply, and return the remaining candidates.

    The last candidates are tried first.

    Args:
      kept: (equalities, rules) for each candidate, as in `BestSoFar.kept`.
    """
    left = list(kept)
    for entry in reversed(kept):
        others = [pair for other in left if other is not entry for pair in other[0]]
        if entry[0] and all(derivable(*pair, others, THOROUGH) for pair in entry[0]):
            left = [other for other in left if other is not entry]
    return left


def _explore(world: World, max_ops: int, path: Path, until: float) -> dict:
    """Enumerate one world, from its checkpoint if there is one, and return the new checkpoint.

    Args:
      world: the world.
      max_ops: the largest number of operators of a side.
      path: the file of the checkpoint.
      until: the time in seconds since 1970 after which no further candidate is examined.

    Raises:
      RLFlowError: if the checkpoint belongs to another world.
    """
    started = monotonic()
    state = read_json(path) if path.exists() else None
    if state is not None and state["finished"]:
        return state
    if state is not None and state["world"] != repr(world):
        raise RLFlowError(f"{path} is the checkpoint of another world; remove it or choose another folder")
    graphs, sizes, candidates = _candidates(world, max_ops)
    result = BestSoFar() if state is None else _result(state)
    verdicts = Counter() if state is None else Counter(state["report"]["verdicts"])
    before = 0.0 if state is None else state["report"]["seconds"]
    done = sum(verdicts.values())

    def checkpoint() -> dict:
        report = {"world": world.name, "sizes": sizes, "verdicts": dict(sorted(verdicts.items()))}
        report["seconds"] = round(before + monotonic() - started, 1)
        state = {"world": repr(world), "report": report, "finished": done == len(candidates)}
        state |= {"kept": [_encoded(entry) for entry in result.kept], "merges": _encoded(result.merges)}
        write_text(path, json.dumps(state) + "\n")
        return read_json(path)

    for source, target in candidates[done:]:
        if done % CHECKPOINT == 0:
            checkpoint()
        if now() > until:
            break
        verdicts[_consider(graphs, result, max_ops, source, target)] += 1
        done += 1
    return checkpoint()


def _candidates(world: World, max_ops: int) -> tuple[Graphs, list[dict], list[tuple[Node, Term]]]:
    """Return (graphs, counts, candidates) of a world.

    The counts are one dictionary per number of operators, and the candidates are equalities, general ones first.
    """
    graphs, sizes, candidates = Graphs(world), [], []
    for size in range(1, max_ops + 1):
        counts: Counter = Counter()
        candidates += _grow(graphs, size, size < max_ops, counts)
        sizes.append({"size": size} | dict(counts))
    return graphs, sizes, sorted(candidates, key=lambda pair: _generality(*pair))


# -- checkpoints -----------------------------------------------------------------------------------


def _encoded(result):
    """Encode terms and patterns as JSON: variables as strings, everything else as a list that begins with its kind."""
    match result:
        case Named():
            return ["named", result.text]
        case Label():
            return ["label", result.op, *([name, _encoded(value)] for name, value in result.attributes)]
        case Node():
            return ["node", result.slot, _encoded(result.label), *map(_encoded, result.inputs)]
        case Pattern():
            return ["pattern", *map(_encoded, result)]
        case tuple() | list():
            return ["tuple", *map(_encoded, result)]
    return result


def _decoded(result):
    """Return the terms and patterns that `_encoded` has encoded."""
    match result:
        case ["named", text]:
            return Named(text)
        case ["label", op, *pairs]:
            return Label(op, tuple((name, _decoded(value)) for name, value in pairs))
        case ["node", slot, label_, *inputs]:
            return Node(_decoded(label_), tuple(map(_decoded, inputs)), slot)
        case ["pattern", *fields]:
            return Pattern(*map(_decoded, fields))
        case ["tuple", *items]:
            return tuple(map(_decoded, items))
    return result


def _result(state: dict) -> BestSoFar:
    """Return the equalities and rules that a checkpoint contains."""
    result = BestSoFar(merges=list(_decoded(state["merges"])))
    for pairs, patterns in map(_decoded, state["kept"]):
        result.keep(list(pairs), list(patterns))
    return result


# -- candidates ------------------------------------------------------------------------------------


def _grow(graphs: Graphs, size: int, keep: bool, counts: Counter) -> list[tuple[Term, Term]]:
    """Enumerate the graphs of `size` operators, and return the candidate equalities among them.

    A candidate is a pair of a graph and an earlier graph with equal value.

    Args:
      graphs: the representatives so far.
      size: the number of operators.
      keep: True to add the graphs with new values to the representatives.
      counts: a counter to which the numbers of graphs by root operator, representatives and candidates are added.
    """
    batches = list(graphs.batches(size))
    hashes = [graphs.hashes_of(batch) for batch in batches]
    for batch, result in zip(batches, hashes, strict=True):
        counts[graphs.world.labels[batch.label].op] += len(result)
    known = len(graphs.terms)
    starts = np.cumsum([known, *(result.size for result in hashes)])
    _, first, which = np.unique(
        np.concatenate([graphs.hashes, *map(np.ravel, hashes)]), return_index=True, return_inverse=True
    )
    is_new = np.zeros(starts[-1], bool)
    is_new[first] = True

    def term(position: int) -> Term:
        if position < known:
            return graphs.terms[position]
        k = int(np.searchsorted(starts, position, "right")) - 1
        row, slot = divmod(position - int(starts[k]), hashes[k].shape[1])
        return graphs.term(batches[k], row, slot)

    candidates, new = [], []
    for batch, result, start in zip(batches, hashes, starts, strict=False):
        fresh = is_new[start : start + result.size].reshape(result.shape)
        new.append((batch, np.argwhere(fresh)))
        positions = np.argwhere(~fresh & graphs.canonical(batch)[:, None])
        for row, slot in positions:
            position = int(start) + int(row) * result.shape[1] + int(slot)
            candidates.append((graphs.term(batch, row, slot), term(int(first[which[position]]))))
    counts["representatives"], counts["candidates"] = int(is_new[known:].sum()), len(candidates)
    if keep:
        graphs.grow(new)
    return candidates


def _generality(source: Term, target: Term) -> tuple[int, int, int]:
    """Return the sorting key of a candidate: fewer operators, then smaller depth, then more variables come first."""
    return _written_size(source) + _written_size(target), _depth(source) + _depth(target), -len(variables(source))


def _depth(term: Term) -> int:
    return 1 + max(map(_depth, term.inputs)) if isinstance(term, Node) else 0


def _written_size(term: Term) -> int:
    """Return the number of operators in a term, in which an operator with several readers counts once per reader."""
    return 1 + sum(map(_written_size, term.inputs)) if isinstance(term, Node) else 0


@lru_cache(maxsize=1 << 20)
def _order(term: Term) -> tuple:
    """Return the sorting key of a term: fewer operators come first.

    The key does not depend on the order of the operands of Add and Mul.
    """
    if isinstance(term, str):
        return 0, term, (), 0
    children = tuple(_order(child) for child in term.inputs)
    if term.label.op in COMMUTATIVE:
        children = tuple(sorted(children))
    return len(operators(term)), repr(term.label), children, term.slot


# -- one candidate ---------------------------------------------------------------------------------


def _consider(graphs: Graphs, result: BestSoFar, max_ops: int, source: Node, target: Term) -> str:
    """Keep a candidate equality or reject it, and return the verdict in words.

    Args:
      graphs: the representatives of the world.
      result: the kept equalities and rules, to which the candidate may be added.
      max_ops: the largest number of operators of a side.
      source: the later graph.
      target: the earlier graph with equal value.
    """
    if _follows_at_the_root(result, source):
        return "instance of a rule"
    merge = _merge(graphs, source, target)
    if merge is not None and not reachable(*merge, result.equalities, result.merges) and _is_general(graphs, *merge):
        pattern = _pattern(graphs, *merge)
        if pattern is not None:
            result.merges += dict.fromkeys([merge, *variants(pattern, graphs.world.labels)])
            result.keep([], [pattern])
    if derivable(source, target, result.equalities):
        return "derived"
    if not _is_general(graphs, (source,), (target,)):
        return "coincidence"
    pairs = [(source, target), *_companion(graphs, source, target)]
    sides = tuple(zip(*pairs, strict=True))
    if any(_half_used(side) for side in sides):
        result.keep([(source, target)], [])
        return "uses one part of a Split"
    if any(len(operators(*side)) > max_ops for side in sides):
        result.keep(pairs, [])
        return "too large with all outputs"
    directions = [both for both in (sides, sides[::-1]) if paying(*both) is not None]
    patterns = [pattern for pattern in (_pattern(graphs, *both) for both in directions) if pattern is not None]
    if directions and not patterns:
        return "not separable"
    others = [pair for p in patterns for both in variants(p, graphs.world.labels) for pair in zip(*both, strict=True)]
    result.keep(list(dict.fromkeys([*pairs, *others])), patterns)
    return "kept" if patterns else "kept without paying"


def _is_general(graphs: Graphs, source: tuple[Term, ...], target: tuple[Term, ...]) -> bool:
    """Return True if two sides with equal values are also equal for other random integers and for real numbers."""
    whole, real = graphs.world.inputs(sample=1), graphs.world.real_inputs()
    return all(
        np.array_equal(value(one, whole), value(other, whole)) and np.allclose(value(one, real), value(other, real))
        for one, other in zip(source, target, strict=True)
    )


def _pattern(graphs: Graphs, source: tuple[Term, ...], target: tuple[Term, ...]) -> Pattern | None:
    return generalise(source, target, dict(graphs.world.variables), paying(source, target))


def _merge(graphs: Graphs, source: Node, target: Term) -> tuple[tuple[Term, ...], tuple[Term, ...]] | None:
    """Return (two separate graphs, the outputs of a merged graph that computes both), or None if no merge is useful.

    The merged graph ends in a Split. Its outputs are `source`, which must be the Split's first output, and the second
    output. The separate graphs are `target`, which equals `source`, and the representative that equals the second
    output.
    """
    if source.label.op != "Split" or source.slot or not isinstance(target, Node) or target.label.op == "Split":
        return None
    sibling = source._replace(slot=1)
    other = graphs.representative(value(sibling, graphs.world.inputs()))
    both, merged = (target, other), (source, sibling)
    if not isinstance(other, Node) or set(variables(target)) == set(variables(other)):
        return None  # Neither graph has a weight of its own to be joined.
    # Apart from Splits, two operators must become one: MatMul or Conv, or Add or Mul on the parts of a Split. Larger
    # graphs merge step by step.
    op, apart = target.label.op, operators(*both)
    splits = sum(label.op == "Split" for label, _ in apart)
    if len(apart) - splits != 2 or not (op in COSTLY or (splits > 0 and op in COMMUTATIVE)):
        return None
    if _half_used(both) or _half_used(merged) or paying(both, merged) is None:
        return None
    return both, merged


def _follows_at_the_root(result: BestSoFar, term: Node) -> bool:
    """Return True if a kept equality, applied at the root, turns the term into an earlier term of the `_order`."""
    for source, target in result.by_root[term.label, term.slot]:
        scope = instance(source, term, {})
        if scope is not None and _order(rename(target, scope)) < _order(term):
            return True
    return False


def _half_used(terms: Sequence[Term]) -> set[tuple]:
    """Return the half-used Splits, as (label, inputs) pairs: the terms use only one output of such a Split."""
    slots = defaultdict(set)

    def visit(term: Term) -> None:
        if isinstance(term, Node):
            if term.label.op == "Split":
                slots[term[:2]].add(term.slot)
            for child in term.inputs:
                visit(child)

    for term in terms:
        visit(term)
    return {split for split, used in slots.items() if len(used) == 1}


def _companion(graphs: Graphs, source: Node, target: Term) -> list[tuple[Term, Term]]:
    """Return the companion of an equality in a list; return [] if no Split is half used or there is no companion.

    The companion is the equality of the terms in which each Split output is replaced by the Split's other output. If
    the new target does not have the new source's value, a representative with this value takes its place.
    """
    if not _half_used([source]) | _half_used([target]):
        return []
    inputs = graphs.world.inputs()
    other, companion = _other_outputs(source), _other_outputs(target)
    result = value(other, inputs)
    if not isinstance(companion, Node) or not np.array_equal(result, value(companion, inputs)):
        companion = graphs.representative(result)
    if companion is None or companion == other or not _is_general(graphs, (other,), (companion,)):
        return []
    return [(other, companion)]


def _other_outputs(term: Term) -> Term:
    """Return the term with each output of a Split replaced by the other output of the same Split."""
    if isinstance(term, str):
        return term
    inputs = tuple(_other_outputs(child) for child in term.inputs)
    return Node(term.label, inputs, 1 - term.slot if term.label.op == "Split" else term.slot)
