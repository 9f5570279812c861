"""Random valid rewrites on random graphs keep them valid and equal.

    python -m tests.nightly.fuzz [--symbolic] [--seconds S] [--first SEED]

Each graph is drawn from its own seed (`benchmarks.random_models`) and rewritten up to twenty times; see
`tests.nightly.fuzzing` for what is compared. With --symbolic the sizes are symbols, and results are compared at three
sizes. A failure names the seed and the rules and shows the shrunk graph.
"""

import sys
from collections import Counter
from functools import partial
from itertools import count

from rlflow.rules.language import families, load_rules
from tests.nightly import parser, sampled
from tests.nightly.fuzzing import fuzz

CHUNK = 20  # graphs
SEEDS_A_DAY = 100_000
ENOUGH = 3  # failures, after which a chunk ends: shrinking takes long


def fuzz_seeds(symbolic: bool, first: int) -> dict:
    """Return what the graphs of CHUNK seeds gave: graphs, rules that fired and failures."""
    rules, fired, failures, graphs = load_rules(families()), Counter(), [], 0
    for seed in range(first, first + CHUNK):
        result = fuzz(seed, rules, symbolic=symbolic)
        fired.update(result.rules)
        graphs += 1
        if result.failure is not None:
            failures.append(str(result.failure))
            if len(failures) == ENOUGH:
                break
    return {"graphs": graphs, "fired": fired, "failures": failures}


def main() -> int:
    arguments = parser(__doc__, seconds=300)
    arguments.add_argument("--symbolic", action="store_true", help="graphs whose sizes are symbols")
    arguments.add_argument("--first", type=int, help="the first seed, in place of one that follows the day")
    parsed = arguments.parse_args()
    first = parsed.first if parsed.first is not None else parsed.seed * SEEDS_A_DAY
    graphs, fired, failures = 0, Counter(), []
    for part in sampled(partial(fuzz_seeds, parsed.symbolic), count(first, CHUNK), parsed.seconds):
        graphs += part["graphs"]
        fired.update(part["fired"])
        failures += part["failures"]
    print(*failures, sep="\n", file=sys.stderr)
    print(
        f"{graphs:,} graphs (seeds from {first}), {fired.total():,} rewrites by {len(fired)} of "
        f"{len(load_rules(families()))} rules, {len(failures)} failures"
    )
    return int(bool(failures) or not graphs)


if __name__ == "__main__":
    sys.exit(main())
