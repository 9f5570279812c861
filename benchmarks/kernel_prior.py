"""Judge the prior of kernels on models of the zoo that its training did not see.

    python -m benchmarks.kernel_prior --database kernels.sqlite --threads 1
    python -m benchmarks.kernel_prior --database kernels.sqlite --without-zoo prior.npz

For each model, the prior is trained on all kernels of the database without the kernels of the model's sizes. Then it
predicts the timed kernels of the model and of its random rewrites. The command prints a table and publishes nothing.
With --without-zoo it trains one prior, without the kernels of the sizes of all these models, and writes it to a file.
The database comes from `python -m benchmarks.kernel_timings`, which times these kernels.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable

import numpy as np

from benchmarks.kernel_timings import SOURCES, ZOO, drawn, walk
from rlflow.common.messages import markdown_table
from rlflow.costs import Spread
from rlflow.costs.database import TimingDatabase
from rlflow.costs.kernel_features import baseline_ps
from rlflow.costs.prior import Posterior, Prior
from rlflow.costs.prior_training import Sample, errors_of, samples, size_of, train
from rlflow.costs.profiled import ProfiledCost
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import RuleSet, load_rules
from rlflow.zoo import load

TIMED_SHARE = 0.2  # share of a model's kernels that are timed for the columns about the posterior
HEAD = (
    "model", "kernels", "median error", "of the roofline", "rank correlation", "in 80 % intervals", "sum of the model",
    f"median error, {100 * TIMED_SHARE:.0f} % timed", "in 80 % intervals",
)  # fmt: skip


class Names(ProfiledCost):
    """A cost model that counts the signatures of the kernels that it is asked for."""

    def __init__(self, database, threads: int):
        super().__init__(database, threads)
        self.counts: Counter[str] = Counter()

    def _runtime(self, name, build) -> tuple[int, Spread]:
        self.counts[self.database.timed_as(name, self.threads) or name] += 1
        return 0, Spread()


def kernels_of(graph: Graph, database: TimingDatabase, threads: int) -> Counter[str]:
    """Return signature → number of kernels in a graph; equal kernels count under the signature that was timed.

    Args:
      graph: the graph.
      database: the database of timings.
      threads: threads of ONNX Runtime.
    """
    names = Names(database.path, threads)
    for node in graph.nodes.values():
        names.node_cost(graph, node)
        names._memo.clear()  # each kernel counts as often as it runs
    return names.counts


def timed_kernels(
    name: str, known: dict[str, Sample], database: TimingDatabase, threads: int, rules: RuleSet
) -> tuple[Counter[str], list[str]]:
    """Return the kernels of a model of the zoo (`kernels_of`), and the timed kernels of it and its random rewrites.

    A model has several sequences of random rewrites, because `kernel_timings` draws it again after all other sources.

    Args:
      name, known, database, threads, rules: see `judge`.
    """
    original = load_graph(load(name))
    counts = kernels_of(original, database, threads)
    first = SOURCES.index("zoo") + len(SOURCES) * ZOO.index(name)
    draws = range(first, max(drawn(database.path, threads), first + 1), len(SOURCES) * len(ZOO))
    graphs = (graph for number in draws for graph in walk(original, rules, number))
    names = set(counts).union(*(kernels_of(graph, database, threads) for graph in graphs))
    return counts, sorted(names & known.keys())


def without_zoo(known: dict[str, Sample], database: TimingDatabase, threads: int, rules: RuleSet) -> Prior:
    """Return a prior that is trained without the kernels of the sizes of all models of the zoo.

    Args:
      known, database, threads, rules: see `judge`.
    """
    sizes = set()
    for name in ZOO:
        sizes |= {size_of(known[one].what) for one in timed_kernels(name, known, database, threads, rules)[1]}
    return train([one for one in known.values() if size_of(one.what) not in sizes], {"machines": [database.machine]})


def judge(name: str, known: dict[str, Sample], database: TimingDatabase, threads: int, rules: RuleSet) -> dict | None:
    """Return the errors on one model of the zoo, by names of HEAD as numbers; None if none of its kernels is timed.

    Args:
      name: name of the model.
      known: signature → timed kernel.
      database: the database of timings.
      threads: threads of ONNX Runtime.
      rules: the rules of the random rewrites.
    """
    counts, names = timed_kernels(name, known, database, threads, rules)
    if not names:
        return None
    held = [known[one] for one in names]
    sizes = {size_of(one.what) for one in held}
    prior = train([one for one in known.values() if size_of(one.what) not in sizes], {})
    guesses = [prior.predict(one.what, one.speeds, one.threads) for one in held]
    truth = np.array([one.log_ps for one in held])
    runs = np.array([counts[one] for one in names])
    predicted = np.array([one.log_ps for one in guesses])
    roofline = np.log([baseline_ps(one.what, one.speeds) for one in held])
    result = {"kernels": len(held), **errors_of(truth, *_columns(guesses))}
    result["roofline"] = float(np.median(np.abs(np.expm1(roofline - truth))))
    result["sum"] = float(runs @ np.exp(predicted) / (runs @ np.exp(truth)))

    timed = np.random.default_rng(0).random(len(held)) < TIMED_SHARE
    posterior = Posterior(
        prior.correlation, _chosen([one.what for one in held], timed), _chosen(guesses, timed), truth[timed],
        [one.noise for one in _chosen(held, timed)],
    )  # fmt: skip
    rest = _chosen(list(zip(held, guesses, strict=True)), ~timed)
    corrected = [posterior.corrected(one.what, guess) for one, guess in rest]
    return result | {"posterior": errors_of(truth[~timed], *_columns(corrected))}


def _columns(guesses: Iterable) -> tuple[np.ndarray, np.ndarray]:
    log_ps, deviations = zip(*guesses, strict=True)
    return np.array(log_ps), np.array(deviations)


def _chosen(values: list, mask: np.ndarray) -> list:
    return [value for value, is_chosen in zip(values, mask, strict=True) if is_chosen]


def cells(name: str, errors: dict) -> list[str]:
    """Return the row of a model in the table."""
    posterior = errors["posterior"]
    return [
        name, str(errors["kernels"]), f"{100 * errors['median_relative_error']:.1f} %",
        f"{100 * errors['roofline']:.1f} %", f"{errors['rank_correlation']:.3f}", f"{100 * errors['within_80']:.0f} %",
        f"{errors['sum']:.3f}", f"{100 * posterior['median_relative_error']:.1f} %",
        f"{100 * posterior['within_80']:.0f} %",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True, metavar="FILE", help="SQLite file with timings")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of ONNX Runtime (default: 1)")
    parser.add_argument("--model", action="append", choices=ZOO, help="one model only; repeatable")
    parser.add_argument("--without-zoo", metavar="FILE", help="write a prior without the zoo's sizes; judge nothing")
    parsed = parser.parse_args()
    database, rules = TimingDatabase(parsed.database), load_rules()
    known, rows = samples(database, parsed.threads), []
    if parsed.without_zoo:
        prior = without_zoo(known, database, parsed.threads, rules)
        prior.save(parsed.without_zoo)
        print(f"{prior.facts['kernels']} of {len(known)} kernels; on sizes left out: {prior.facts['left_out']}")
        return 0
    for name in parsed.model or ZOO:
        errors = judge(name, known, database, parsed.threads, rules)
        if errors is not None:
            rows.append(cells(name, errors))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(markdown_table(HEAD, rows, numbers=range(1, len(HEAD))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
