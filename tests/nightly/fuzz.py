"""Check that random valid rewrites of random graphs give valid graphs with equal outputs.

    python -m tests.nightly.fuzz [--symbolic] [--seconds S] [--first SEED]

Each graph is drawn from its own seed (`benchmarks.random_models`) and rewritten up to twenty times. `Original.fault` of
`tests.nightly.fuzzing` makes the comparisons. With --symbolic some input sizes are symbols, and outputs are compared at
three assignments of sizes. A failure names the seed and the rules and shows the shrunk graph. Graphs that ONNX Runtime
itself does not run are left out; the check fails if they are more than one in a hundred.
"""

import sys
from collections import Counter
from functools import partial
from itertools import count

from rlflow.rules.language import families, load_rules
from tests.nightly import parser, sampled
from tests.nightly.fuzzing import fuzz

CHUNK = 20  # number of graphs of one sample
SEEDS_A_DAY = 100_000  # distance between the first seeds of two days
ENOUGH = 3  # number of failures after which a sample ends, because shrinking a failure takes long


def fuzz_seeds(symbolic: bool, first: int) -> dict:
    """Fuzz the graphs of CHUNK successive seeds, or fewer after ENOUGH failures.

    Args:
        symbolic: True for graphs with symbols.
        first: the first seed.

    Returns:
        "graphs": number of graphs. "not run": number of graphs that ONNX Runtime does not run before any rewrite.
        "fired": Counter of rule names of the rewrites. "failures": the failures as text.
    """
    rules, fired, failures, graphs, not_run = load_rules(families()), Counter(), [], 0, 0
    for seed in range(first, first + CHUNK):
        result = fuzz(seed, rules, symbolic=symbolic)
        fired.update(result.rules)
        graphs += 1
        not_run += not result.compared and result.failure is None
        if result.failure is not None:
            failures.append(str(result.failure))
            if len(failures) == ENOUGH:
                break
    return {"graphs": graphs, "not run": not_run, "fired": fired, "failures": failures}


def main() -> int:
    arguments = parser(__doc__, seconds=300)
    arguments.add_argument("--symbolic", action="store_true", help="graphs whose sizes are symbols")
    arguments.add_argument("--first", type=int, help="the first seed, in place of one that follows the day")
    parsed = arguments.parse_args()
    first = parsed.first if parsed.first is not None else parsed.seed * SEEDS_A_DAY
    graphs, not_run, fired, failures = 0, 0, Counter(), []
    for part in sampled(partial(fuzz_seeds, parsed.symbolic), count(first, CHUNK), parsed.seconds):
        graphs += part["graphs"]
        not_run += part["not run"]
        fired.update(part["fired"])
        failures += part["failures"]
    print(*failures, sep="\n", file=sys.stderr)
    print(
        f"{graphs:,} graphs (seeds from {first}; ONNX Runtime does not run {not_run} of them), {fired.total():,} "
        f"rewrites by {len(fired)} of {len(load_rules(families()))} rules, {len(failures)} failures"
    )
    return int(bool(failures) or not graphs or not_run > graphs / 100)


if __name__ == "__main__":
    sys.exit(main())
