"""What learned priorities are worth on the paper's graphs, for benchmarks.ordering.

    python -m benchmarks.learned_orders runs/learnt/controller/topoformer    this one is to come with RLFlow

Every learned order is compared with what two plain searches find in as many seconds: the beam, the best of all widths,
doubled from 1 on, each of which ends within them (the first one however long it takes); and random depth-first orders,
the best of all that are drawn. Seconds are of the processor, those of the network included.
"""

import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from controllers.base import Learner
from controllers.config import TopoformerConfig
from rlflow.common.files import file_hash
from rlflow.memory.order_search import NAT, below, lower_bound, lowered, probable, walk
from rlflow.memory.problem import Problem, depth_first, random_depth_first
from rlflow.tasks.ordering import Orders, layered

NODES = (100, 500, 1000, 2000)
SAMPLES, WIDTH, WIDE = 16, 16, 100  # WIDE: of the last method
# Of `inside`: how much wider the next beam is; by what share less is asked for at first, and times how much after a
# success; what a nat of probability is worth.
WIDER, LESS, MORE, NATS = 4, 5e-4, 4, (NAT, NAT / 2, 2 * NAT)
DRAWN = 10  # random depth-first orders at once
DECODED = ("greedy", "sample", "beam")
METHODS = (*DECODED, "inside", "inside, wide")  # the last two: see `lowered`
CONTROL = "inside, wide, nothing learned"
FULL = "seven"
NETWORKS = {"none": "MLP", "all": "transformer", "forward": "along edges", "both-ways": "both ways", FULL: "full"}
ABLATED = (500, 1000)  # nodes


def instance_of(n: int, seed: int) -> Orders:
    problem = layered(n, seed)
    return Orders(problem, depth_first(problem))


def learnt(folder: Path, config: TopoformerConfig, seed: int = 0) -> Path:
    """The folder, in which a controller is trained as said; a training that was killed goes on."""
    from controllers.topoformer.controller import Topoformer

    small = instance_of(10, 0)
    Topoformer(config, small, seed).train(small, seed, folder)
    return folder


@cache
def opened(folder: Path) -> Learner:
    """The controller of a folder. It has run once: what is compiled is not to be timed."""
    from controllers.topoformer.controller import Topoformer

    small = instance_of(10, 0)
    controller = Topoformer.trained(folder, small)
    controller.priorities(small)
    return controller


def ablation(folder: Path, attends: str, epochs: int, training: int, n: int, seed: int) -> dict[str, dict]:
    """As `learned_peaks`, of a network that attends otherwise, trained in the folder for so many epochs with the seed
    `training`."""
    config = TopoformerConfig(attends=attends, epochs=epochs)
    trained = learnt(folder / f"{attends}-{epochs}-{training}", config, training)
    return learned_peaks(opened(trained), instance_of(n, seed), seed, DECODED)


def decoded(folder: Path, attends: str, epochs: int, training: int, n: int, seed: int) -> dict[str, dict]:
    """The same, each with the peak of the plain beam in as many seconds."""
    peaks = ablation(folder, attends, epochs, training, n, seed)
    return with_beams(instance_of(n, seed).problem, peaks)


def digest(folder: Path) -> str:
    """Of a trained controller, for names of files."""
    return file_hash(folder / "controller.npz")[:8]


def learned_peaks(controller: Learner, instance: Orders, seed: int, methods: tuple[str, ...]) -> dict[str, dict]:
    """Of these methods their peaks and seconds."""
    from controllers.topoformer.decoder import greedy, sampled
    from controllers.topoformer.observation import observe

    problem, started = instance.problem, time.process_time()
    priorities, seen = controller.priorities(instance), observe([instance.arrays()])
    network, rng = time.process_time() - started, np.random.default_rng(seed)
    ways = (
        lambda: greedy(seen, priorities[None]),
        lambda: sampled(seen, priorities[None], SAMPLES, rng)[0],
        lambda: probable(problem, priorities, WIDTH),
        lambda: lowered(problem, priorities, WIDTH, probable(problem, priorities, WIDTH)),
        lambda: lowered(problem, priorities, WIDE, probable(problem, priorities, WIDE)),
    )
    result = {}
    for name, way in zip(METHODS, ways, strict=True):
        if name in methods:
            peak, seconds = timed(lambda: problem.peaks(way()).min())
            result[name] = {"peak": int(peak), "seconds": network + seconds}
    return result


def timed(work: Callable) -> tuple:
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def plain_beams(problem: Problem, seconds: float) -> list[dict]:
    """Plain beams of doubled widths, narrow ones first, up to one that takes longer than that, or cuts nothing."""
    beams, width, exact = [], 1, False
    while not exact and (not beams or beams[-1]["seconds"] <= seconds):
        (_, peak, exact, _), took = timed(lambda: walk(problem, width))
        beams.append({"width": width, "peak": peak, "seconds": took})
        width *= 2
    return beams


def within(beams: list[dict], seconds: float) -> dict:
    """The best of those beams that take no longer."""
    return min([beam for beam in beams if beam["seconds"] <= seconds] or beams[:1], key=lambda beam: beam["peak"])


def beside_beams(controller: Learner, n: int, seed: int) -> dict[str, dict]:
    """Of every method, and of the last without learned priorities, its peak, its seconds, and the peak of the plain
    beam in as many seconds."""
    instance = instance_of(n, seed)
    problem, result = instance.problem, learned_peaks(controller, instance, seed, METHODS)
    order, took = timed(lambda: lowered(problem, np.zeros(problem.n), WIDE, walk(problem, WIDE).order))
    result[CONTROL] = {"peak": problem.peak(order), "seconds": took}
    return with_beams(problem, result)


def with_beams(problem: Problem, methods: dict[str, dict]) -> dict[str, dict]:
    """Methods' peaks and seconds, with the peak of the plain beam in as many seconds."""
    beams = plain_beams(problem, max(one["seconds"] for one in methods.values()))
    return {name: one | {"beam": within(beams, one["seconds"])["peak"]} for name, one in methods.items()}


def depth_first_beside(n: int, seed: int, seconds: dict[str, float]) -> dict[str, int]:
    """Of every method the least peak of the random depth-first orders that are drawn in its seconds, at least DRAWN."""
    problem, started, trace = layered(n, seed), time.process_time(), []
    while not trace or trace[-1][0] <= max(seconds.values()):
        peak = int(problem.peaks(random_depth_first(problem, DRAWN, len(trace))).min())
        trace.append((time.process_time() - started, peak))
    result = {}
    for method, most in seconds.items():
        result[method] = min([peak for took, peak in trace if took <= most] or [trace[0][1]])
    return result


def inside(controller: Learner, n: int, seed: int, seconds: float) -> dict:
    """What learned priorities inside the beam lower the peak to in so many seconds: walks that ask for less and less,
    and wider ones where none of this width comes to it, whatever a nat of probability is taken to be worth."""
    instance, started, clock = instance_of(n, seed), time.process_time(), time.monotonic()
    problem, priorities, width = instance.problem, controller.priorities(instance), WIDTH
    order, took = timed(lambda: probable(problem, priorities, width))
    peak, least, share, failed = problem.peak(order), lower_bound(problem), LESS, 0
    while peak > least and (left := seconds - (time.process_time() - started)) > 0:
        if failed == len(NATS):
            affordable = int(left / took * width / len(NATS))
            width = WIDER * width if affordable > 2 * WIDER * width else max(affordable, width + 1)
            failed = 0
        asked, ask = max(int(peak * (1 - share)), least), (problem, priorities, width)
        result, took = timed(lambda: below(*ask, asked, NATS[failed], clock + seconds))
        if result is not None:
            peak, share, failed = problem.peak(result), MORE * share, 0
        elif share > LESS:
            share = LESS
        else:
            failed += 1
    return {"peak": peak, "seconds": time.process_time() - started, "width": width}


def main() -> None:
    from controllers.topoformer.controller import Topoformer

    Topoformer.trained(Path(sys.argv[1]), instance_of(10, 0)).ship()


if __name__ == "__main__":
    main()
