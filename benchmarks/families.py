"""What each family of rules gains on real graphs, measured end to end and never estimated.

    python -m benchmarks.families [--family NAME] [--model NAME] [--table]

Every rule is tried on the models in which it applies to the largest part of the nodes: by itself, once at each of its
matches; until it applies no more; and then with the rules of its family that this has made applicable, but for those
that only take it back. What comes out must be equal to the original, and is measured beside it with all of ONNX
Runtime's optimisations on. The rules of a family that were faster by themselves are then applied together, and the best
graph of each family is measured once more, with fresh sessions, as the best of many tries looks better than it is.

Resumable: what was measured lies in --folder.
"""

import sys
from collections import Counter
from pathlib import Path

import onnx

from benchmarks.harness import bar, each, finish, parser
from benchmarks.locations import PAPER, count
from benchmarks.optimise import LIGHT
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import progress_bar
from rlflow.costs.measured import measure
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.validate import validate
from rlflow.rules.apply import apply
from rlflow.rules.language import RuleSet, families, load_rules
from rlflow.rules.locations import MatchTable
from rlflow.rules.match import Match
from rlflow.zoo import load

JUDGES = ("rlflow/rules/apply.py", "rlflow/costs/measured.py", "rlflow/deliver/validate")

OTHERWISE = ["bert_base_fused", "vit_base_fused"]  # for rules that match in none of the others
MODELS = [*PAPER, *LIGHT, "shufflenet_v2", "shufflenet_v2_folded", "mobilenet_v2", *OTHERWISE]
SLOW = ("bert_base", "vit_base", "light_vgg19", *OTHERWISE)  # each counts as two others
PER_RULE = 2  # models on which a rule is tried
# Family → the one whose rules bring its own together: padded channels pass a Relu, a product takes up the scale of
# attention.
HELPED_BY = {"padding": "slices", "attention": "fused"}
STARTED_BY = {"attention": ("fused-matmul-div",)}  # … and those of its rules that a try may begin with
MOST_STEPS = 300  # matches at which a rule is applied
# How far a try goes; a number is that of the rewrites that follow by rules which had no match before.
ONCE, FULLY, OPENED = "once", "fully", (16, 48, 144)
SECONDS, SESSIONS = 2.5, 6  # of a try
LAST_SECONDS, LAST_SESSIONS = 12.0, 12  # of the best graph of a family
TOLERANCE, SEEDS = 1e-4, (0,)
VERDICTS = ("faster", "no difference shown", "slower")  # from best to worst


class Way:
    """A graph that is being rewritten by the rules of one family."""

    def __init__(self, rules: RuleSet, graph: Graph):
        self.rules, self.graph, self.table, self.applied = rules, graph, MatchTable(rules, graph), Counter()
        self.seen = {skeleton(graph)}
        self.closed = {x for x, positions in enumerate(self.table.counts) if positions}  # what `opened` does not use

    def step(self, match: Match) -> None:
        before, rule = self.graph, self.rules[match.xfer_id]
        self.graph = apply(before, rule, match)
        self.table = MatchTable(self.rules, self.graph, self.table)
        self.seen.add(skeleton(self.graph))
        if rule.name not in self.applied:
            made = [m for result in self.table.locations for m in result if min(m.nodes) >= before.next_id]
            self.closed |= {m.xfer_id for m in made if n_nodes(self.after(m)) >= n_nodes(before)}  # what undoes it
        self.applied[rule.name] += 1

    def after(self, match: Match) -> Graph:
        return apply(self.graph, self.rules[match.xfer_id], match)

    def once(self, xfer_id: int) -> None:
        """The rule at each of its matches, not at those that this makes."""
        new = self.graph.next_id
        for _ in range(MOST_STEPS):
            match = next((m for m in self.table.of_rule(xfer_id) if max(m.nodes) < new), None)
            if match is None:
                return
            self.step(match)

    def fully(self, xfer_id: int) -> None:
        """The rule until it has no match."""
        for _ in range(MOST_STEPS):
            if not self.table.counts[xfer_id]:
                return
            self.step(self.table.location(xfer_id, 0))

    def opened(self, steps: int) -> None:
        """The rules that had no match at first, where they lead to graphs not seen before, the smaller first."""
        for _ in range(steps):
            rules = [x for x in range(len(self.rules)) if x not in self.closed]
            afters = [
                (n_nodes(self.after(m)), k, m) for k, m in enumerate(m for x in rules for m in self.table.of_rule(x))
            ]
            match = next(
                (m for _, _, m in sorted(afters, key=lambda a: a[:2]) if skeleton(self.after(m)) not in self.seen), None
            )
            if match is None:
                return
            self.step(match)

    def follow(self, xfer_id: int, how: str | int) -> None:
        self.once(xfer_id) if how == ONCE else self.fully(xfer_id)
        if isinstance(how, int):
            self.opened(how)


def skeleton(graph: Graph) -> int:
    """What a graph computes but for its weights, as a number: equal ones are taken for the same."""
    position: dict[int, tuple] = {tensor: ("input", k) for k, tensor in enumerate(graph.inputs)}
    nodes = []
    for node_id in graph.order:
        node = graph.nodes[node_id]
        if not node.constant:
            nodes.append((node.op, node.domain, node.attributes, tuple(position.get(tensor) for tensor in node.inputs)))
            position |= {tensor: (len(nodes), slot) for slot, tensor in enumerate(node.outputs)}
    return hash((tuple(nodes), tuple(position.get(tensor) for tensor in graph.outputs)))


# -- one family on one model -----------------------------------------------------------------------


def measured(original: onnx.ModelProto, way: Way, seconds: float, sessions: int, threads: int, seed: int) -> dict:
    """What came out of a way: rewrites, nodes, and if it is equal, its latency beside the original's."""
    candidate = to_model(way.graph)
    findings = validate(original, candidate, SEEDS, TOLERANCE, threads=threads)
    result = {
        "applied": dict(way.applied),
        "nodes": n_nodes(way.graph),
        "equal": findings.ok,
        "max_relative_error": findings.max_error,
    }
    if findings.ok:
        whole = measure(original, candidate, threads, seconds, sessions, seed, memory=False)
        result |= {
            key: whole[key]
            for key in ("ratio", "interval", "verdict", "original_ms", "candidate_ms", "sessions", "pairs")
        }
    return result


def n_nodes(graph: Graph) -> int:
    return sum(not node.constant for node in graph.nodes.values())


def rules_of(family: str) -> RuleSet:
    return load_rules([family, HELPED_BY.get(family, family)])


def try_family(family: str, model: str, names: list[str], threads: int, seed: int) -> dict:
    """All tries of some rules of a family on one model, and of those together that were faster."""
    rules, original = rules_of(family), load(model, seed)
    graph, tries = load_graph(original), []
    done, own = {graph.hash}, {rule.name for rule in rules if rule.family == family}

    def attempt(steps: list[tuple[str, str | int]]) -> None:
        way = Way(rules, graph)
        for name, how in steps:
            way.follow(rules.index(name), how)
        if way.graph.hash not in done and own & way.applied.keys():
            done.add(way.graph.hash)
            tries.append({"steps": steps, **measured(original, way, SECONDS, SESSIONS, threads, seed)})

    with progress_bar(len(names), f"{family} on {model}", "rule") as progress:
        for name in names:
            for how in (ONCE, FULLY, *OPENED):
                attempt([(name, how)])
            progress.update(1)
    paid = {}
    for result in sorted(filter(is_faster, tries), key=lambda result: result["ratio"]):
        paid.setdefault(result["steps"][0][0], result["steps"][0])
    if len(paid) > 1:
        attempt(list(paid.values()))
    return {"family": family, "model": model, "nodes": n_nodes(graph), "rules": names, "tries": tries}


def measure_again(family: str, model: str, steps: list, threads: int, seed: int) -> dict:
    """The same try once more, with other inputs."""
    original = load(model, seed)
    graph = load_graph(original)
    way = Way(rules_of(family), graph)
    for name, how in steps:
        way.follow(way.rules.index(name), how)
    result = measured(original, way, LAST_SECONDS, LAST_SESSIONS, threads, seed + 1)
    return {"family": family, "model": model, "steps": steps, "nodes_before": n_nodes(graph), **result}


def is_faster(result: dict) -> bool:
    return result.get("verdict") == "faster"


def rank(result: dict) -> tuple:
    """The better of two tries comes first: by its verdict, then by its ratio."""
    return VERDICTS.index(result["verdict"]), result["ratio"]


# -- all families ----------------------------------------------------------------------------------


def pairs_of(rules: RuleSet, survey: dict[str, dict], family: str, all_models: bool) -> dict[str, list[str]]:
    """Model → the rules of the family that are tried on it."""
    chosen: dict[str, list[str]] = {}
    for rule in rules:
        if rule.family == family or rule.name in STARTED_BY.get(family, ()):
            share = {m: result["by_rule"].get(rule.name, 0) / result["nodes"] for m, result in survey.items()}
            best = sorted((m for m in share if share[m]), key=lambda m: (m in OTHERWISE, -share[m]))
            tried = 0
            for model in best:
                if all_models or tried < PER_RULE:
                    chosen.setdefault(model, []).append(rule.name)
                    tried += 2 if model in SLOW else 1
    return chosen


def effect(result: list[dict]) -> dict:
    """What the table says of one family: the best try of all, and of each rule."""
    tries = [
        {"model": one["model"], "nodes_before": one["nodes"], **each_try} for one in result for each_try in one["tries"]
    ]
    equal = [one for one in tries if one["equal"]]
    rules: dict[str, dict] = {}
    for one in sorted(equal, key=rank):
        if len(one["steps"]) == 1:
            rules.setdefault(one["steps"][0][0], one)
    return {
        "models": {one["model"]: len(one["rules"]) for one in result},
        "tries": len(tries),
        "unequal": [one for one in tries if not one["equal"]],
        "best": min(equal, key=rank, default=None),
        "rules": dict(sorted(rules.items(), key=lambda item: rank(item[1]))),
    }


def table(figures: dict) -> str:
    """The families, then their rules."""
    lines = [
        "| family | model | rules applied | nodes | measured, of the original's latency | verdict |",
        "| --- | --- | --- | ---: | --- | --- |",
    ]
    for family, result in figures["families"].items():
        last = result["best"] and result["again"]
        lines.append(
            f"| {family} | {row(last)} |" if last else f"| {family} | – | none applies to these models | | | |"
        )
    lines += [
        "",
        "| family | rule | model | matches and what they open | nodes | measured | verdict |",
        "| --- | --- | --- | --- | ---: | --- | --- |",
    ]
    for family, result in figures["families"].items():
        lines += [f"| {family} | {name} | {row(one)} |" for name, one in result["rules"].items()]
    return "\n".join(lines)


def row(result: dict) -> str:
    applied = ", ".join(f"{name} ×{n}" for name, n in result["applied"].items())
    ratio = (
        f"{result['ratio']:.3f} ({result['interval'][0]:.3f} – {result['interval'][1]:.3f})"
        if result["equal"]
        else "not equal"
    )
    nodes = f"{result['nodes_before']} → {result['nodes']}"
    return f"{result['model']} | {applied} | {nodes} | {ratio} | {result.get('verdict', '')}"


def run(parsed) -> dict:
    rules = load_rules()
    survey = each(
        parsed.model or MODELS, parsed.folder / f"survey-{rules.hash[:8]}", lambda name: count(name, rules, parsed.seed)
    )
    result = {}
    for family in parsed.family or families():
        # other rules are measured anew; a try depends on nothing else
        folder = parsed.folder / f"{family}-{rules_of(family).hash[:8]}"
        pairs = pairs_of(rules, survey, family, bool(parsed.model))
        tried = each(
            list(pairs),
            folder,
            lambda model, names=pairs, name=family: try_family(name, model, names[model], parsed.threads, parsed.seed),
        )
        result[family] = effect(list(tried.values()))
        best = result[family]["best"]
        if best:
            again = each(
                [f"{best['model']}-again"], folder,
                lambda _, best=best,
                name=family: measure_again(name, best["model"], best["steps"], parsed.threads, parsed.seed),
            )  # fmt: skip
            (result[family]["again"],) = again.values()
    return {"threads": parsed.threads, "survey": survey, "families": result}


def bars_of(result: dict[str, dict]) -> list[dict]:
    unequal = sum(len(one["unequal"]) for one in result.values())
    tries = sum(one["tries"] for one in result.values())
    return [bar("tries that are not equal to the original", unequal, f"of {tries}", "0", not unequal)] + [
        bar(f"{family}: measured on a real graph", one["best"] and one["best"]["model"], "", "true", bool(one["best"]))
        for family, one in result.items()
    ]


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--family", action="append", choices=families(), help="one family only; repeatable")
    arguments.add_argument("--model", action="append", help="only this model, with all rules that apply; repeatable")
    arguments.add_argument(
        "--threads", type=int, default=0, help="of ONNX Runtime; 0 is its own choice, as users run it"
    )
    arguments.add_argument("--folder", type=Path, default=Path("runs/families"), help="where results are kept")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    parsed = arguments.parse_args()
    try:
        figures = run(parsed)
    except RLFlowError as error:
        arguments.error(str(error))
    if parsed.table:
        print(table(figures))
        return 0
    return finish("families", parsed, figures, bars_of(figures["families"]))


if __name__ == "__main__":
    sys.exit(main())
