"""Helpers: a workload and a device that are small enough to compute by hand."""

from pathlib import Path

import numpy as np

from rlflow.tasks.placement.memories import Device, Memory
from rlflow.tasks.placement.task import Placements
from rlflow.tasks.placement.workload import FEATURES, Workload

TINY_DEVICE = Path(__file__).with_name("tiny.yaml")


def device(sram: int = 100, staging: int = 0, flash: bool = False) -> Device:
    """Return a device with SRAM at 1 fs a byte, DRAM at 10 and, if asked for, a flash of 60 bytes at 5; 10¹⁵ operations
    a second."""
    memories = [Memory("SRAM", sram, 1, False), Memory("DRAM", 10**6, 10, False)]
    if flash:
        memories.insert(1, Memory("flash", 60, 5, True))
    return Device("toy", 1e15, 1, staging, tuple(memories))


def chain(weights, outputs, flops, reads=None, given=10) -> Workload:
    """Return operators 0, 1, … of these sizes; `reads` are (source, reader) pairs, by default from each operator to the
    next."""
    n = len(weights)
    pairs = sorted(reads or [(k, k + 1) for k in range(n - 1)], key=lambda pair: (pair[1], pair[0]))
    last = np.arange(n)
    for source, reader in pairs:
        last[source] = max(last[source], reader)
    outputs = np.array(outputs, np.int64)
    starts = np.searchsorted([reader for _, reader in pairs], np.arange(n + 1))
    sources = np.array([source for source, _ in pairs], np.int64)
    first = np.zeros(n, np.int64)
    first[0] = given
    return Workload(
        tuple(f"op{k}" for k in range(n)), np.ones(n, np.int32), np.zeros((n, len(FEATURES)), np.float32),
        np.array(flops, np.int64), np.array(weights, np.int64), np.array(weights, np.int64), outputs, last,
        starts.astype(np.int64), sources, outputs[sources], first,
    )  # fmt: skip


def instance(workload: Workload, simulator: str = "additive", **options) -> Placements:
    return Placements(workload, device(**options), simulator)


def random_workload(n: int, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    reads = [(int(rng.integers(k)), k) for k in range(1, n)]
    reads = sorted({*reads, *((int(rng.integers(k)), k) for k in range(1, n, 2))})
    sizes = rng.integers(0, 60, (2, n))
    sizes[0, ::3] = 0
    return chain(*sizes.tolist(), rng.integers(1, 300, n).tolist(), reads)
