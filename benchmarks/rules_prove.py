"""Proofs of all rules, made anew (`run.py rules prove`): which are for all shapes, and what the others cover."""

import sys

from benchmarks.harness import bar, finish, markdown, parser
from benchmarks.judged import UNSTATED_RULES
from rlflow.proving.prove import prove
from rlflow.rules.language import families, load_rules

JUDGES = ("rlflow/proving", *UNSTATED_RULES)


def table(figures: dict) -> str:
    rules = figures["rules"]
    whole = [rule for rule in rules if rule["proof"] == "all-shapes"]
    bounded = [rule for rule in rules if rule["proof"] == "bounded"]
    slowest = max(rules, key=lambda rule: rule["seconds"])
    total = sum(rule["seconds"] for rule in rules)
    return (
        f"{len(whole)} of {len(rules)} rules ({len(whole) / len(rules):.1%}) are proved for all shapes, {len(bounded)} "
        f"for bounded ones. Together they took {total:.0f} seconds of one core; the longest is `{slowest['name']}` "
        f"with {slowest['seconds']:.0f} s. The bounded ones:\n\n"
        + markdown(["rule", "what was covered"], [[f"`{rule['name']}`", rule["bound"]] for rule in bounded], words=2)
    )


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--workers", type=int, default=0, metavar="N", help="processes; 0 for one a core")
    parsed = arguments.parse_args()
    rules = [proof.record() for proof in prove(load_rules(families()), workers=parsed.workers)]
    return finish("rules_prove", parsed, {"rules": rules}, bars_of(rules))


def bars_of(rules: list[dict]) -> list[dict]:
    unproved = sum(rule["proof"] not in ("all-shapes", "bounded") for rule in rules)
    return [bar("rules that are not proved", unproved, f"of {len(rules)}", "0", unproved == 0)]


if __name__ == "__main__":
    sys.exit(main())
