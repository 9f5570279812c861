"""Two deterministic simulators of a placement: `additive`, and `compiler`, a black box with a compiler's decisions.

Memories are numbered from the fastest, 0, to the last, which holds everything. Operator i of n has the weights W_i in
memory w_i and the activation A_i in memory a_i. A *map* is the choice of all w_i and a_i. All times are whole
femtoseconds, so results are equal on all machines.

**Rectifier** (both). Weights come first, in run order: W_i goes to the first memory from the requested one on in which
all weights so far and W_i fit. Then activations, in run order: A_i goes to the first memory from the requested one on
with room beside the weights and the activations that are alive at step i. An activation is alive from its operator to
its last reader. Read-only memories take weights only. A rectified placement is rectified to itself.

- `additive` compares sums of bytes with the capacity.
- `compiler` gives addresses: weights from 0 on, an activation at the lowest address above the weights where it fits
  between the activations that are alive. Gaps that are too small are lost (fragmentation). The fastest memory has
  `staging` bytes less.

**Time of `additive`.** Every memory m has a port with b_m femtoseconds a byte. In step i the port carries

    P(i, m) = b_m · ([w_i = m] weight reads + Σ_{reads from A_j, a_j = m} bytes + [a_i = m] |A_i| + [m last] given_i)

and the step takes t_i = max(FLOPs of operator i / speed, max_m P(i, m)). The result is Σ t_i.

**Time of `compiler`.** A port may load weights before their step and complete writes after their step. Data on its way
from or to a memory m > 0 lies in the staging buffer. The events of each step i, in their order:

1. *Weights* in m > 0 load only what was not prefetched: P counts the rest.
2. *Inputs* in m > 0 whose write is not complete are flushed: P counts the rest of the write, then the read.
3. *Eviction*: an activation in a_i > 0 that the next step does not read, and that fits into the free part of the
   staging buffer, is written in later steps: P does not count the write. Otherwise, and in the last step, P counts it.
4. t_i = max(compute, max_m P(i, m)) as above, and port m is idle for t_i − P(i, m).
5. In its idle time, port m > 0 first completes writes of earlier steps, the oldest first. It then prefetches weights
   of the operators i + 1 … i + LOOKAHEAD, in run order, as far as the staging buffer has room.

After the last step all ports complete their writes; the slowest one counts. Weights leave the staging buffer after
their step, and activations as they are written.
"""

from typing import NamedTuple

import numpy as np

from rlflow.tasks.placement.memories import Device
from rlflow.tasks.placement.workload import Workload

try:
    from numba import njit

    compiled = njit(cache=True)
except ImportError:  # The extra `place` is not installed: the same functions run in the interpreter, 100 times slower.

    def compiled(function):
        return function


LOOKAHEAD = 4  # number of following operators whose weights `compiler` prefetches
ADDITIVE, COMPILER = "additive", "compiler"
SIMULATORS = (ADDITIVE, COMPILER)


class Problem(NamedTuple):
    """A workload on a device, as arrays that compiled functions take; see `Workload` and the module docstring.

    Attributes:
      compute: int64 [n], femtoseconds of computation of each operator.
      weights, weight_reads, outputs, last, starts, sources, reads, given: as in `Workload`.
      capacity: int64 [M], bytes.
      fs_per_byte: int64 [M], femtoseconds per byte of the port of each memory (b_m).
      weights_only: bool [M], True for a read-only memory.
      staging: bytes of the staging buffer; 0 for `additive`.
    """

    compute: np.ndarray
    weights: np.ndarray
    weight_reads: np.ndarray
    outputs: np.ndarray
    last: np.ndarray
    starts: np.ndarray
    sources: np.ndarray
    reads: np.ndarray
    given: np.ndarray
    capacity: np.ndarray
    fs_per_byte: np.ndarray
    weights_only: np.ndarray
    staging: int


def problem_of(workload: Workload, device: Device, simulator: str) -> Problem:
    """Return the problem of a workload on a device.

    Args:
      workload: the operators of the model.
      device: the memories and the speed.
      simulator: one of SIMULATORS; `compiler` reserves the staging buffer in the fastest memory.
    """
    capacity = device.capacities
    if simulator == COMPILER:
        capacity[0] -= device.staging
    return Problem(
        device.compute_fs(workload.flops), workload.weights, workload.weight_reads, workload.outputs, workload.last,
        workload.starts, workload.sources, workload.reads, workload.given, capacity, device.fs_per_byte,
        device.weights_only, device.staging if simulator == COMPILER else 0,
    )  # fmt: skip


class Placed(NamedTuple):
    """The result of placing B maps.

    Attributes:
      weights, outputs: int64 [B, n], the memory of each tensor after the rectifier.
      weight_offsets, output_offsets: int64 [B, n], addresses in these memories; 0 for a tensor of 0 bytes. They are
        what `compiler` assigns; `additive` has none (-1).
      moved: int64 [B], bytes that the rectifier moved to another memory.
    """

    weights: np.ndarray
    outputs: np.ndarray
    weight_offsets: np.ndarray
    output_offsets: np.ndarray
    moved: np.ndarray


def place(problem: Problem, weights: np.ndarray, outputs: np.ndarray, simulator: str) -> Placed:
    """Rectify B maps as the module docstring describes.

    Args:
      problem: the problem.
      weights, outputs: int64 [B, n], the requested memory of the weights and of the activation of each operator.
      simulator: one of SIMULATORS.
    """
    placed = Placed(weights.copy(), outputs.copy(), *(np.full(weights.shape, -1) for _ in range(2)), _zeros(weights))
    _place_all(problem, *placed, simulator == COMPILER)
    return placed


def latencies(problem: Problem, weights: np.ndarray, outputs: np.ndarray, simulator: str) -> np.ndarray:
    """Return the latency in femtoseconds of B rectified maps, int64 [B].

    Args:
      problem: the problem.
      weights, outputs: int64 [B, n], memories after the rectifier.
      simulator: one of SIMULATORS.
    """
    total = _zeros(weights)
    (_compiler_all if simulator == COMPILER else _additive_all)(problem, weights, outputs, total)
    return total


def _zeros(maps: np.ndarray) -> np.ndarray:
    return np.zeros(len(maps), np.int64)


@compiled
def rectified_latency(problem, weights, outputs, addresses):
    """Rectify one map in place and return its latency, for compiled searches.

    Args:
      problem: the problem.
      weights, outputs: int64 [n], the requested memories.
      addresses: True for `compiler`, False for `additive`.
    """
    _place(problem, weights, outputs, np.empty_like(weights), np.empty_like(outputs), addresses)
    return _compiler(problem, weights, outputs) if addresses else _additive(problem, weights, outputs)


@compiled
def _place_all(problem, weights, outputs, weight_offsets, output_offsets, moved, addresses):
    for k in range(len(weights)):
        moved[k] = _place(problem, weights[k], outputs[k], weight_offsets[k], output_offsets[k], addresses)


@compiled
def _additive_all(problem, weights, outputs, total):
    for k in range(len(weights)):
        total[k] = _additive(problem, weights[k], outputs[k])


@compiled
def _compiler_all(problem, weights, outputs, total):
    for k in range(len(weights)):
        total[k] = _compiler(problem, weights[k], outputs[k])


@compiled
def _place(problem, weights, outputs, weight_offsets, output_offsets, addresses):
    """Rectify one map in place, int64 [n] each, write offsets, and return the bytes that moved."""
    n, memories = len(weights), len(problem.capacity)
    held = np.zeros(memories, np.int64)  # bytes of weights in each memory
    moved = 0
    for i in range(n):
        size, m = problem.weights[i], weights[i]
        while m < memories - 1 and held[m] + size > problem.capacity[m]:
            m += 1
        if m != weights[i]:
            moved += size
            weights[i] = m
        if addresses:
            weight_offsets[i] = held[m] if size else 0
        held[m] += size
    live = np.zeros(memories, np.int64)  # bytes of activations that are alive in each memory
    alive = np.zeros((memories, n), np.int64)  # their operators; `compiler` keeps them sorted by address
    counts = np.zeros(memories, np.int64)
    for i in range(n):
        for m in range(memories):
            kept = 0
            for k in range(counts[m]):
                j = alive[m, k]
                if problem.last[j] >= i:
                    alive[m, kept] = j
                    kept += 1
                else:
                    live[m] -= problem.outputs[j]
            counts[m] = kept
        size, m, position, offset = problem.outputs[i], outputs[i], 0, np.int64(0)
        while size:  # an activation of 0 bytes stays where it was requested
            fits = not problem.weights_only[m]
            if fits and addresses:
                position, offset = _lowest(problem, output_offsets, alive[m], counts[m], held[m], size)
                fits = offset + size <= problem.capacity[m]
            elif fits:
                position, fits = counts[m], held[m] + live[m] + size <= problem.capacity[m]
            if fits or m == memories - 1:
                break
            m += 1
        if m != outputs[i]:
            moved += size
            outputs[i] = m
        if addresses:
            output_offsets[i] = offset
        if size:
            for k in range(counts[m], position, -1):
                alive[m, k] = alive[m, k - 1]
            alive[m, position] = i
            counts[m] += 1
            live[m] += size
    return moved


@compiled
def _lowest(problem, offsets, alive, count, floor, size):
    """Return (position among the sorted live activations, lowest address from `floor` on) with room for `size`."""
    address = floor
    for k in range(count):
        j = alive[k]
        if offsets[j] - address >= size:
            return k, address
        address = max(address, offsets[j] + problem.outputs[j])
    return count, address


@compiled
def _additive(problem, weights, outputs):
    n, last = len(weights), len(problem.capacity) - 1
    port, total = np.zeros(last + 1, np.int64), 0
    for i in range(n):
        port[:] = 0
        port[weights[i]] += problem.weight_reads[i]
        port[outputs[i]] += problem.outputs[i]
        port[last] += problem.given[i]
        for k in range(problem.starts[i], problem.starts[i + 1]):
            port[outputs[problem.sources[k]]] += problem.reads[k]
        longest = problem.compute[i]
        for m in range(last + 1):
            longest = max(longest, port[m] * problem.fs_per_byte[m])
        total += longest
    return total


@compiled
def _compiler(problem, weights, outputs):
    n, last = len(weights), len(problem.capacity) - 1
    prefetched, pending = np.zeros(n, np.int64), np.zeros(n, np.int64)  # bytes of weights, and of writes not complete
    oldest = np.zeros(last + 1, np.int64)  # for each memory the first operator whose write may not be complete
    port, total, staged = np.zeros(last + 1, np.int64), 0, 0
    for i in range(n):
        port[:] = 0
        port[weights[i]] += problem.weight_reads[i] - prefetched[i]
        port[last] += problem.given[i]
        for k in range(problem.starts[i], problem.starts[i + 1]):
            j = problem.sources[k]
            port[outputs[j]] += problem.reads[k] + pending[j]
            staged -= pending[j]
            pending[j] = 0
        waits = outputs[i] > 0 and i < n - 1 and staged + problem.outputs[i] <= problem.staging
        if waits:
            for k in range(problem.starts[i + 1], problem.starts[i + 2]):
                waits = waits and problem.sources[k] != i
        if waits:
            pending[i] = problem.outputs[i]
            staged += problem.outputs[i]
        else:
            port[outputs[i]] += problem.outputs[i]
        longest = problem.compute[i]
        for m in range(last + 1):
            longest = max(longest, port[m] * problem.fs_per_byte[m])
        total += longest
        staged -= prefetched[i]
        for m in range(1, last + 1):
            idle = longest // problem.fs_per_byte[m] - port[m]  # bytes that the port could still carry
            while oldest[m] < i and idle > 0:  # the activation of step i itself is complete only after the step
                j = oldest[m]
                part = min(pending[j], idle) if outputs[j] == m else 0
                pending[j] -= part
                staged -= part
                idle -= part
                if outputs[j] != m or not pending[j]:
                    oldest[m] += 1
            for j in range(i + 1, min(i + 1 + LOOKAHEAD, n)):
                if weights[j] == m:
                    part = min(problem.weight_reads[j] - prefetched[j], idle, problem.staging - staged)
                    prefetched[j] += part
                    staged += part
                    idle -= part
    longest = 0
    for m in range(1, last + 1):
        rest = 0
        for j in range(n):
            if outputs[j] == m:
                rest += pending[j]
        longest = max(longest, rest * problem.fs_per_byte[m])
    return total + longest
