"""Functions that fail in the ways in which workers of `collect` can fail.

Tests replace `rlflow.collect.rollouts._play_shard` by one of these functions. They are in a module, so that every
process can import them.
"""

import os
import signal
import time
from pathlib import Path

from rlflow.collect import rollouts

play_shard = rollouts._play_shard


def is_first_try(path: str) -> bool:
    marker = Path(f"{path}.tried")
    marker.parent.mkdir(parents=True, exist_ok=True)
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def dies_first(spec, seed, indices, by_rule, path):
    """Kill this process at the first try of every shard: before an even shard is written, after an odd one."""
    odd = indices[0] // rollouts.SHARD_EPISODES % 2
    if is_first_try(path):
        if odd:
            play_shard(spec, seed, indices, by_rule, path)
        os.kill(os.getpid(), signal.SIGKILL)
    return play_shard(spec, seed, indices, by_rule, path)


def dies_of_shard_1(spec, seed, indices, by_rule, path):
    if indices[0] == rollouts.SHARD_EPISODES:
        with open(Path(path).parent.parent / "tries", "a", encoding="utf-8") as tries:
            tries.write("x")
        os._exit(1)
    return play_shard(spec, seed, indices, by_rule, path)


def takes_its_node_down(spec, seed, indices, by_rule, path):
    """Kill the Ray node that the file `doomed` names, once, when it plays a shard.

    Every shard takes at least 0.2 s, so that all nodes get some.
    """
    doomed = Path(path).parent.parent / "doomed"
    if node() == doomed.read_text() and is_first_try(doomed):
        os.kill(os.getppid(), signal.SIGKILL)  # the Ray process of the node
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    return play_shard(spec, seed, indices, by_rule, path)


def writes_elsewhere(spec, seed, indices, by_rule, path):
    """Write the shard to another path, like a node without the shared file system."""
    return play_shard(spec, seed, indices, by_rule, f"{path}.elsewhere")


def fails(spec, seed, indices, by_rule, path):
    raise ZeroDivisionError(f"in {Path(path).name}")


def node() -> str:
    import ray

    return ray.get_runtime_context().get_node_id()


def slow_node(seconds: float) -> str:
    time.sleep(seconds)
    return node()
