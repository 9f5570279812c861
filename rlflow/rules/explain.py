"""What fires where in a model, and by how little the other rules miss it, in the names of the model."""

from collections import Counter
from itertools import groupby
from typing import Any

from rlflow.graph.ir import ABSENT, Graph, Node
from rlflow.rules.locations import Refusal, explain
from rlflow.rules.match import Match
from rlflow.rules.rule import Rule, RuleSet

FEW = 3  # matches of a rule, and operators of a match, that are shown where many rules are


def explain_rules(graph: Graph, rules: RuleSet, names: list[str] | None = None) -> list[dict[str, Any]]:
    """For each of the named rules (None or empty: all) its locations, its nearest miss, and why the misses are such.

    Each entry has the rule's `name`, `family`, `why` and `text`, its `locations` in canonical order (per location the
    `nodes`, each with operator, name and the tensors that it gives), the `reasons` of its misses (reason → of how many
    near matches) and the `nearest_miss`: `nodes` and `reason`, or None where no operators fit. The nearest is the one
    for which most of the rule's conditions hold, asked in their order; of several the first.
    """
    result = []
    for rule in rules:
        if not names or rule.name in names:
            matches, refusals = explain(graph, rules, rule.name)
            result.append({
                "name": rule.name, "family": rule.family, "why": rule.why, "text": rule.text,
                "locations": [_nodes(graph, match) for match in matches],
                "reasons": dict(Counter(refusal.reason for refusal in refusals).most_common()),
                "nearest_miss": _nearest(graph, rule, refusals),
            })  # fmt: skip
    return result


def overview(entries: list[dict[str, Any]]) -> str:
    """The entries in short: a line for each rule that can be applied."""
    applies, misses = _parted(entries)
    lines = [_counts(entries, applies, misses)]
    for entry in applies:
        lines += _fires_head(entry, whole=False)
    return "\n".join(lines)


def as_text(entries: list[dict[str, Any]], whole: bool = False) -> str:
    """The entries as a page to read: what applies, then what nearly does; `whole` shows every match and equation."""
    applies, misses = _parted(entries)
    lines = [_counts(entries, applies, misses)]
    for title, chosen, show in (("CAN BE APPLIED", applies, _fires), ("NEARLY FIT", misses, _nearly)):
        for family, group in groupby(chosen, lambda entry: entry["family"]):
            lines += ["", f"{title}: {family}"]
            for entry in group:
                lines += ["", *show(entry, whole)]
    if not whole and entries:
        lines += ["", "All matches of a rule, its equation, and why it does not fit elsewhere: --rule NAME"]
    return "\n".join(lines)


def _parted(entries: list[dict]) -> tuple[list[dict], list[dict]]:
    """(those that can be applied, those that nearly fit)."""
    applies = [entry for entry in entries if entry["locations"]]
    return applies, [entry for entry in entries if not entry["locations"] and entry["nearest_miss"]]


def _counts(entries: list[dict], applies: list[dict], misses: list[dict]) -> str:
    silent = len(entries) - len(applies) - len(misses)
    matches = sum(len(entry["locations"]) for entry in applies)
    return (
        f"{_count(len(applies), 'rule')} of {len(entries)} can be applied, with {_count(matches, 'match')}; "
        f"{len(misses)} nearly fit; of {silent} the model does not hold the operators."
    )


def _fires(entry: dict, whole: bool) -> list[str]:
    result = entry["locations"]
    shown = result if whole or len(result) <= FEW + 1 else result[:FEW]
    lines = [
        *_fires_head(entry, whole),
        *(f"    {_line(nodes, whole)}" for nodes in shown),
    ]
    lines += [f"    and {len(result) - len(shown)} more"] if len(shown) < len(result) else []
    return lines + (_reasons(entry) if whole else [])


def _nearly(entry: dict, whole: bool) -> list[str]:
    miss = entry["nearest_miss"]
    near = [f"    near: {_line(miss['nodes'], whole)}", f"    but:  {miss['reason']}"]
    return [*_head(entry, whole), *near, *(_reasons(entry) if whole else [])]


def _fires_head(entry: dict, whole: bool) -> list[str]:
    return _head(entry, whole, f", {_count(len(entry['locations']), 'match')}")


def _head(entry: dict, whole: bool, matches: str = "") -> list[str]:
    equation = [f"      {line.strip()}" for line in entry["text"].splitlines()[1:]] if whole else []
    return [f"  {entry['name']}{matches}: {entry['why']}", *equation]


def _reasons(entry: dict) -> list[str]:
    return [f"    does not fit {_count(n, 'near match')}: {reason}" for reason, n in entry["reasons"].items()]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 'es' if noun.endswith('match') else 's'}"


def _line(nodes: list[dict], whole: bool) -> str:
    shown = nodes if whole or len(nodes) <= FEW else nodes[:1]
    rest = f" and {len(nodes) - len(shown)} operators that it reads from" if len(shown) < len(nodes) else ""
    named = [f"{node['op']} {node['name'] or '→ ' + ' '.join(node['outputs'])}".rstrip() for node in shown]
    return " · ".join(named) + rest


def _nearest(graph: Graph, rule: Rule, refusals: list[Refusal]) -> dict | None:
    if not refusals:
        return None
    asked = [condition.reason for condition in rule.conditions]
    held = [asked.index(refusal.reason) if refusal.reason in asked else len(asked) for refusal in refusals]
    nearest = refusals[held.index(max(held))]
    return {"nodes": _nodes(graph, nearest), "reason": nearest.reason}


def _nodes(graph: Graph, match: Match | Refusal) -> list[dict]:
    return [_named(graph, graph.nodes[node_id]) for node_id in match.nodes]


def _named(graph: Graph, node: Node) -> dict:
    names = graph.interface.names
    return {"op": node.op, "name": node.name, "outputs": [names.get(t, f"t{t}") for t in node.outputs if t != ABSENT]}
