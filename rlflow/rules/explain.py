"""What fires where in a model, and by how little the other rules miss it, in the names of the model."""

from typing import Any

from rlflow.graph.model import ABSENT, Graph, Node
from rlflow.rules.language import RuleSet
from rlflow.rules.locations import Refusal, explain
from rlflow.rules.match import Match


def explain_rules(graph: Graph, rules: RuleSet, names: list[str] | None = None) -> list[dict[str, Any]]:
    """For each of the named rules (None or empty: all) its locations and its nearest miss.

    Each entry has the rule's `name`, `family` and `why`, its `locations` in canonical order (per location the
    `nodes`, each with operator, name and the tensors that it gives) and the `nearest_miss`: `nodes` and `reason`, or
    None where no operators fit. Of several misses it is the one whose reason is the most frequent, then the first.
    """
    found = []
    for rule in rules:
        if not names or rule.name in names:
            matches, refusals = explain(graph, rules, rule.name)
            found.append({
                "name": rule.name, "family": rule.family, "why": rule.why,
                "locations": [_nodes(graph, match) for match in matches],
                "nearest_miss": _nearest(graph, refusals),
            })  # fmt: skip
    return found


def as_text(entries: list[dict[str, Any]]) -> str:
    """The entries as a page to read: what applies first, then what nearly does."""
    applies = [entry for entry in entries if entry["locations"]]
    misses = [entry for entry in entries if not entry["locations"] and entry["nearest_miss"]]
    lines = [f"{len(applies)} rules apply, at {sum(len(entry['locations']) for entry in applies)} places"]
    for entry in applies:
        lines += ["", f"{entry['name']} ({entry['family']}): {entry['why']}"]
        lines += [f"  {k:3}  {_line(nodes)}" for k, nodes in enumerate(entry["locations"])]
        lines += _miss(entry)
    if misses:
        lines += ["", f"{len(misses)} rules nearly apply"]
    for entry in misses:
        lines += ["", f"{entry['name']} ({entry['family']}): {entry['why']}", *_miss(entry)]
    silent = len(entries) - len(applies) - len(misses)
    return "\n".join([*lines, "", f"{silent} rules find none of their operators together"])


def _miss(entry: dict) -> list[str]:
    miss = entry["nearest_miss"]
    return [f"  not  {_line(miss['nodes'])}: {miss['reason']}"] if miss else []


def _line(nodes: list[dict]) -> str:
    return ", ".join(f"{node['op']} {node['name'] or ' '.join(node['outputs'])}".rstrip() for node in nodes)


def _nearest(graph: Graph, refusals: list[Refusal]) -> dict | None:
    if not refusals:
        return None
    reasons = [refusal.reason for refusal in refusals]
    nearest = max(refusals, key=lambda refusal: reasons.count(refusal.reason))
    return {"nodes": _nodes(graph, nearest), "reason": nearest.reason}


def _nodes(graph: Graph, match: Match | Refusal) -> list[dict]:
    return [_named(graph, graph.nodes[node_id]) for node_id in match.nodes]


def _named(graph: Graph, node: Node) -> dict:
    names = graph.interface.names
    return {"op": node.op, "name": node.name, "outputs": [names.get(t, f"t{t}") for t in node.outputs if t != ABSENT]}
