"""The observation: whether masks are a function of it, of whole graphs and of the neighbourhoods of nodes.

Walks over zoo models and random ones, with numbers and with symbols as sizes. Each is played beside a disguise of the
same graph (other weights, other ids, literals that nobody shares): pairs of different graphs that are seen equal must
have equal masks. From the last state of each walk graphs are made that differ in one thing that a condition may ask:
where that changes a mask, it must change the observation. And nodes of all of these, from different graphs, that are
alike within some edges must have the same matches of every rule: what a network that passes messages can learn.
Resumable: finished parts are kept.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import onnx

from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE, UNSTATED_RULES
from benchmarks.look_alikes import changes, disguised, equal, matches_by_row, refined, seen, state_of
from benchmarks.random_models.open_model import random_open_model
from benchmarks.random_models.random_model import random_model
from rlflow.env.state import RewriteState
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import RuleSet, families, load_rules
from rlflow.zoo import ZOO, load

JUDGES = (*ENGINE, *UNSTATED_RULES, "benchmarks/look_alikes.py", "rlflow/env/observation")

LARGE = ("resnet50", "bert_base", "shufflenet_v2")
TINY = tuple(name for name in ZOO if name.startswith("tiny_"))
CHUNK, CHUNKS = 5, 24  # random models of each sort that are compared with each other, and how many such chunks
STEPS = {"zoo": 150, "random": 60}  # of a walk
CHANGES = 40  # of the last state of a walk, drawn at random
DISTANCES = (0, 1, 2, 3, 4, 6)  # edges
EVERY = 4  # states of a walk, of one the nodes are compared
PAIRS = 10_000


class Tally:
    """What was compared so far.

    graphs: pairs of different graphs; those seen equal, and those of these with other masks.
    changes: what was changed → graphs; those with other masks, and those of these that are seen equal.
    nodes: distance → pairs of nodes of different graphs that are alike; those with other matches.
    rules: names of rules whose matches differed at the greatest distance.
    """

    def __init__(self, rules: RuleSet, rng: np.random.Generator):
        self.all_rules, self.rng = rules, rng
        self.graphs, self.rules = Counter(), Counter()
        self.changes: dict[str, Counter] = {}
        self.nodes = {distance: Counter() for distance in DISTANCES}
        # Distance → number of a neighbourhood → (number of a graph, its matches) of one node that has it.
        self._known: dict[int, dict[int, tuple[int, Counter]]] = {distance: {} for distance in DISTANCES}
        self._n_graphs, self._none = 0, Counter()

    def add_pair(self, one: RewriteState, other: RewriteState) -> None:
        alike = equal(one.arrays(), other.arrays())
        self.graphs["pairs"] += 1
        self.graphs["seen equal"] += alike and one.graph.hash != other.graph.hash
        self.graphs["masks differ"] += alike and not np.array_equal(one.counts, other.counts)

    def add_change(self, what: str, before: RewriteState, after: RewriteState) -> None:
        kind, differ = self.changes.setdefault(what, Counter()), not np.array_equal(before.counts, after.counts)
        kind["graphs"] += 1
        kind["masks differ"] += differ
        kind["not seen"] += differ and equal(before.arrays(), after.arrays())

    def add_nodes(self, state: RewriteState) -> None:
        self._n_graphs += 1
        arrays, matches, none = state.arrays(), matches_by_row(state), self._none
        for distance, known in self._known.items():
            for row, neighbourhood in enumerate(refined(arrays, distance)):
                own = self._n_graphs, matches.get(row, none)
                graph, others = known.setdefault(neighbourhood, own)
                if graph != self._n_graphs:
                    self.nodes[distance]["pairs"] += 1
                    self.nodes[distance]["matches differ"] += others != own[1]
                    if others != own[1] and distance == DISTANCES[-1]:
                        self.rules.update(self.all_rules[k].name for k in (others - own[1]) + (own[1] - others))
                    if self.rng.random() < 0.5:  # so that it is compared with many
                        known[neighbourhood] = own

    def figures(self) -> dict:
        return {
            "graphs": dict(self.graphs),
            "changes": {what: dict(kind) for what, kind in sorted(self.changes.items())},
            "nodes": {str(distance): dict(count) for distance, count in self.nodes.items()},
            "rules": dict(self.rules),
        }


Problem = tuple[onnx.ModelProto, dict[str, int], int]  # a model, symbol → size, steps


def zoo(*names: str) -> Iterator[Problem]:
    for name in names:
        yield load(name), {}, STEPS["zoo"]


def random_models(seeds: Iterable[int]) -> Iterator[Problem]:
    """With numbers, and with symbols as sizes."""
    for seed in seeds:
        yield random_model(seed), {}, STEPS["random"]
        model, sizes = random_open_model(seed)
        yield model, sizes[0], STEPS["random"]


def part(problems: Iterable[Problem], seed: int) -> dict:
    """The figures of some problems."""
    tally = Tally(load_rules(families()), np.random.default_rng(seed))
    for problem in problems:
        compare(*problem, CHANGES, tally)
    return tally.figures()


def total(parts: Iterable[dict]) -> dict:
    """The sums of figures, name by name."""
    result: dict = {}
    for figures in parts:
        for name, value in figures.items():
            result[name] = (
                total([result.get(name, {}), value]) if isinstance(value, dict) else result.get(name, 0) + value
            )
    return result


def compare(model, sizes: dict[str, int], steps: int, n_changes: int, tally: Tally) -> None:
    """Walks over one model, beside its disguise."""
    rng, rules, graph = tally.rng, tally.all_rules, load_graph(model)
    one, other = state_of(graph, rules, sizes), state_of(disguised(graph, rng), rules, sizes)
    for step in range(steps):
        tally.add_pair(one, other)
        if step % EVERY == 0:
            tally.add_nodes(one)
        if not one.counts.any() or not np.array_equal(one.counts, other.counts):
            break
        xfer_id = int(rng.choice(np.flatnonzero(one.counts)))
        location = int(rng.integers(one.counts[xfer_id]))
        one, other = one.apply(xfer_id, location), other.apply(xfer_id, location)
    last = state_of(one.graph, rules, sizes)
    all_changes = list(changes(one.graph, rng))
    for k in rng.permutation(len(all_changes))[:n_changes]:
        after = seen(all_changes[k], rules, sizes)
        if after is not None:
            tally.add_change(all_changes[k].what, last, after)
            tally.add_nodes(after)


def table(figures: dict) -> str:
    """Nodes alike within some edges, and what was changed."""
    rows = [
        [distance, count["pairs"], count["matches differ"], f"{100 * count['matches differ'] / count['pairs']:.3f} %"]
        for distance, count in figures["nodes"].items()
    ]
    nodes = markdown(["alike within, edges", "pairs of nodes", "other matches", "share"], rows, words=0)
    kinds = [[w, k["graphs"], k["masks differ"], k["not seen"]] for w, k in figures["changes"].items()]
    return f"{nodes}\n\n{markdown(['what was changed', 'graphs', 'other masks', 'of these, not seen'], kinds)}"


def main() -> int:
    arguments = parser(__doc__, "runs/observation")
    arguments.add_argument("--chunks", type=int, default=CHUNKS, help=f"of {CHUNK} random models of each sort")
    arguments = arguments.parse_args()
    seed, first = arguments.seed, arguments.seed * arguments.chunks
    parts = {"tiny": lambda: zoo(*TINY)} | {name: lambda name=name: zoo(name) for name in LARGE}
    for k in range(first, first + arguments.chunks):
        parts[f"random {k}"] = lambda k=k: random_models(range(k * CHUNK, (k + 1) * CHUNK))
    by_part = each(list(parts), arguments.folder, lambda name: part(parts[name](), seed))
    figures = total(by_part.values())
    graphs, nodes = figures["graphs"], figures["nodes"][str(DISTANCES[-1])]
    kinds, equal_pairs = figures["changes"].values(), graphs["seen equal"]
    bars = [
        bar("pairs of different graphs that are seen equal", equal_pairs, "", f"≥ {PAIRS}", equal_pairs >= PAIRS),
        bar("of these, pairs with other masks", graphs["masks differ"], "", "0", graphs["masks differ"] == 0),
    ]
    changed, unseen = (sum(kind[name] for kind in kinds) for name in ("graphs", "not seen"))
    reach, alike = DISTANCES[-1], nodes["pairs"]
    bars += [
        bar("graphs with one thing changed", changed, "", f"≥ {PAIRS}", changed >= PAIRS),
        bar("of these, with other masks and seen equal", unseen, "", "0", unseen == 0),
        bar(f"pairs of nodes alike within {reach} edges", alike, "", f"≥ {PAIRS}", alike >= PAIRS),
        bar("of these, pairs with other matches", nodes["matches differ"], "", "0", nodes["matches differ"] == 0),
    ]
    return finish("observation", arguments, figures, bars)


if __name__ == "__main__":
    sys.exit(main())
