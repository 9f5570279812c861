"""Explain where rules apply to a model, and why other rules whose operators occur do not, with the model's node names.
"""

from collections import Counter
from itertools import groupby
from typing import Any

from rlflow.graph.ir import ABSENT, Graph, Node
from rlflow.rules.locations import Refusal, explain
from rlflow.rules.match import Match
from rlflow.rules.rule import Rule, RuleSet

MAX_SHOWN = 3  # matches per rule and operators per match in a list of many rules


def explain_rules(graph: Graph, rules: RuleSet, names: list[str] | None = None) -> list[dict[str, Any]]:
    """Return for each rule its matches, and the near misses: occurrences of its operators at which it does not apply.

    Args:
      graph: the graph to explain.
      rules: the rule set.
      names: the rules to explain; None or empty for all.

    Returns:
      One dictionary per rule with these keys:
      name, family, why, text: as in `Rule`.
      locations: for each match, in canonical order, the matched nodes (operator, name, names of outputs).
      reasons: reason → number of near misses with this reason.
      nearest_miss: `nodes` and `reason` of the near miss whose first failed condition comes last, or None.
    """
    result = []
    for rule in rules:
        if not names or rule.name in names:
            matches, refusals = explain(graph, rules, rule.name)
            result.append({
                "name": rule.name, "family": rule.family, "why": rule.why, "text": rule.text,
                "locations": [_node_records(graph, match) for match in matches],
                "reasons": dict(Counter(refusal.reason for refusal in refusals).most_common()),
                "nearest_miss": _nearest_miss(graph, rule, refusals),
            })  # fmt: skip
    return result


def overview(entries: list[dict[str, Any]]) -> str:
    """Return text with the total numbers and one line for each rule that can be applied."""
    applies, misses = _split_entries(entries)
    lines = [_counts(entries, applies, misses)]
    for entry in applies:
        lines += _match_head(entry, whole=False)
    return "\n".join(lines)


def as_text(entries: list[dict[str, Any]], whole: bool = False) -> str:
    """Return a page of text about the rules that can be applied, followed by the rules that have only near misses.

    Args:
      entries: the result of `explain_rules`.
      whole: True to show all matches, the equations and the reasons of all near misses.
    """
    applies, misses = _split_entries(entries)
    lines = [_counts(entries, applies, misses)]
    for title, chosen, show in (("CAN BE APPLIED", applies, _match_lines), ("NEARLY FIT", misses, _miss_lines)):
        for family, group in groupby(chosen, lambda entry: entry["family"]):
            lines += ["", f"{title}: {family}"]
            for entry in group:
                lines += ["", *show(entry, whole)]
    if not whole and entries:
        lines += ["", "All matches of a rule, its equation, and why it does not fit elsewhere: --rule NAME"]
    return "\n".join(lines)


def _split_entries(entries: list[dict]) -> tuple[list[dict], list[dict]]:
    """Return (entries of rules that can be applied, entries of rules that have only near misses)."""
    applies = [entry for entry in entries if entry["locations"]]
    return applies, [entry for entry in entries if not entry["locations"] and entry["nearest_miss"]]


def _counts(entries: list[dict], applies: list[dict], misses: list[dict]) -> str:
    silent = len(entries) - len(applies) - len(misses)
    matches = sum(len(entry["locations"]) for entry in applies)
    return (
        f"{_count(len(applies), 'rule')} of {len(entries)} can be applied, with {_count(matches, 'match')}; "
        f"{len(misses)} nearly fit; for {silent} the model lacks the operators."
    )


def _match_lines(entry: dict, whole: bool) -> list[str]:
    result = entry["locations"]
    shown = result if whole or len(result) <= MAX_SHOWN + 1 else result[:MAX_SHOWN]
    lines = [
        *_match_head(entry, whole),
        *(f"    {_nodes_text(nodes, whole)}" for nodes in shown),
    ]
    lines += [f"    and {len(result) - len(shown)} more"] if len(shown) < len(result) else []
    return lines + (_reasons(entry) if whole else [])


def _miss_lines(entry: dict, whole: bool) -> list[str]:
    miss = entry["nearest_miss"]
    near = [f"    near: {_nodes_text(miss['nodes'], whole)}", f"    but:  {miss['reason']}"]
    return [*_head(entry, whole), *near, *(_reasons(entry) if whole else [])]


def _match_head(entry: dict, whole: bool) -> list[str]:
    return _head(entry, whole, f", {_count(len(entry['locations']), 'match')}")


def _head(entry: dict, whole: bool, matches: str = "") -> list[str]:
    equation = [f"      {line.strip()}" for line in entry["text"].splitlines()[1:]] if whole else []
    return [f"  {entry['name']}{matches}: {entry['why']}", *equation]


def _reasons(entry: dict) -> list[str]:
    return [f"    does not fit {_count(n, 'near match')}: {reason}" for reason, n in entry["reasons"].items()]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 'es' if noun.endswith('match') else 's'}"


def _nodes_text(nodes: list[dict], whole: bool) -> str:
    shown = nodes if whole or len(nodes) <= MAX_SHOWN else nodes[:1]
    rest = f" and {len(nodes) - len(shown)} operators before it" if len(shown) < len(nodes) else ""
    named = [f"{node['op']} {node['name'] or '→ ' + ' '.join(node['outputs'])}".rstrip() for node in shown]
    return " · ".join(named) + rest


def _nearest_miss(graph: Graph, rule: Rule, refusals: list[Refusal]) -> dict | None:
    if not refusals:
        return None
    asked = [condition.reason for condition in rule.conditions]
    held = [asked.index(refusal.reason) if refusal.reason in asked else len(asked) for refusal in refusals]
    nearest = refusals[held.index(max(held))]
    return {"nodes": _node_records(graph, nearest), "reason": nearest.reason}


def _node_records(graph: Graph, match: Match | Refusal) -> list[dict]:
    return [_node_record(graph, graph.nodes[node_id]) for node_id in match.nodes]


def _node_record(graph: Graph, node: Node) -> dict:
    names = graph.interface.names
    return {"op": node.op, "name": node.name, "outputs": [names.get(t, f"t{t}") for t in node.outputs if t != ABSENT]}
