"""How fast random episodes are collected: by one worker, by two, and by a Ray cluster of two nodes on this machine.

Every way plays the same episodes of the same model; rates hold the start of the workers, but not that of the cluster.
The ways take turns, and ratios are of rates of the same round. Bar: all ways leave the same bytes.
"""

import os
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import bar, finish, parser
from rlflow.collect.rollouts import collect
from rlflow.common.files import file_hash
from rlflow.env.graph_rewrite import EnvSpec

JUDGES = ("rlflow/collect",)

WAYS = {"local, 1 worker": ("local", 1), "local, 2 workers": ("local", 2), "ray, 2 nodes": ("ray", 2)}


@contextmanager
def cluster():
    """Two nodes of one CPU each, which RAY_ADDRESS leads to."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    try:
        made.add_node(**node)
        os.environ["RAY_ADDRESS"] = made.address
        yield
    finally:
        made.shutdown()


def play(way: str, spec: EnvSpec, episodes: int, seed: int) -> tuple[float, list[str]]:
    """Episodes per second, and the hashes of the shards."""
    executor, workers = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        collect(spec, folder, episodes, workers, seed, executor=executor)
        seconds = time.monotonic() - started
        return episodes / seconds, [file_hash(shard) for shard in sorted(Path(folder).glob("shard-*.npz"))]


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--model", default="light_densenet121", help="a zoo name or the path of an ONNX file")
    arguments.add_argument("--episodes", type=int, default=128)
    arguments.add_argument("--repeats", type=int, default=3)
    parsed = arguments.parse_args()
    spec = EnvSpec(parsed.model, cost="analytic", max_steps=60)
    rates, shards = {way: [] for way in WAYS}, set()
    with cluster():
        for _ in range(parsed.repeats):
            for way in WAYS:
                rate, hashes = play(way, spec, parsed.episodes, parsed.seed)
                rates[way].append(rate)
                shards.add(tuple(hashes))
    single = rates["local, 1 worker"]
    figures = {
        "model": parsed.model, "episodes": parsed.episodes, "episodes_per_second": rates,
        "median_ratio_to_1_worker": {
            way: statistics.median(rate / one for rate, one in zip(of_way, single, strict=True))
            for way, of_way in rates.items()
        },
    }  # fmt: skip
    return finish(
        "collection", parsed, figures,
        [bar("all ways leave the same bytes", len(shards) == 1, "", "true", len(shards) == 1)],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
