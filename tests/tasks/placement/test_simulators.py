"""Test the simulators against cases that are computed by hand, and against their own equations."""

import itertools

import numpy as np
import pytest

from rlflow.tasks.placement import simulators
from rlflow.tasks.placement.simulators import SIMULATORS
from tests.tasks.placement.models import chain, instance, random_workload

FAST, SLOW = 0, 1  # The memories of the toy device.


def latency(problem, weights, outputs) -> int:
    """Return the latency of a map, which must be valid."""
    decision = problem.memories * np.array(weights) + np.array(outputs)
    result = problem.evaluate(decision[None])
    assert not result.repaired[0]
    return int(result.objectives[0])


def test_a_step_takes_the_largest_of_computation_and_ports():
    """The weights have 30 and 20 bytes, the activations 40 and 5, the input in DRAM 10; the operators do 7 and 500
    operations."""
    problem = instance(chain([30, 20], [40, 5], [7, 500]))
    assert latency(problem, [SLOW, SLOW], [SLOW, SLOW]) == 10 * (10 + 30 + 40) + 10 * (20 + 40 + 5)
    # SRAM takes 70 fs and then 65; the input takes 100.
    assert latency(problem, [FAST, FAST], [FAST, FAST]) == 10 * 10 + 500
    assert latency(problem, [FAST, SLOW], [SLOW, FAST]) == 10 * (10 + 40) + 10 * (20 + 40)
    assert latency(problem, [SLOW, FAST], [FAST, FAST]) == 10 * (10 + 30) + 500


def test_weights_stay_and_activations_make_room():
    """SRAM has 100 bytes. Weights 30 + 20 stay; activations 40, 30, 20 are alive in pairs: 0 and 1, 1 and 2."""
    problem = instance(chain([30, 20, 0], [40, 30, 20], [1, 1, 1]))
    placed = problem.place(np.zeros((1, 3), int))
    assert placed.weights.tolist() == [[FAST, FAST, FAST]] and placed.outputs.tolist() == [[FAST, SLOW, FAST]]
    assert placed.moved.tolist() == [30]
    wide = instance(chain([30, 20, 0], [40, 30, 20], [1, 1, 1]), sram=120)
    assert not wide.place(np.zeros((1, 3), int)).moved[0]


def test_weights_that_do_not_fit_go_to_the_next_memory_and_activations_not_to_flash():
    problem = instance(chain([70, 40, 50], [50, 1, 1], [1, 1, 1]), flash=True)
    placed = problem.place(np.zeros((1, 3), int))
    # 70 of 100 bytes fit, then 40 of 60; then neither memory has 50 left.
    assert placed.weights.tolist() == [[0, 1, 2]]
    assert placed.outputs.tolist() == [[2, 0, 0]] and placed.moved.tolist() == [40 + 50 + 50]


def test_a_fragmented_memory_cannot_hold_a_buffer_of_its_total_free_size():
    """The activations of op0 … op3 have 40, 20, 40 and 60 bytes; op1 lives to the end, so 40 + 40 free bytes are no gap
    of 60."""
    workload = chain([0] * 4, [40, 20, 40, 60], [1] * 4, [(0, 1), (1, 2), (1, 3), (2, 3)])
    workload.last[2] = 2  # op2's activation ends before op3 begins.
    assert not instance(workload).place(np.zeros((1, 4), int)).moved[0]
    placed = instance(workload, "compiler").place(np.zeros((1, 4), int))
    assert placed.output_offsets[0, :3].tolist() == [0, 40, 0]
    assert placed.outputs.tolist() == [[FAST, FAST, FAST, SLOW]] and placed.moved.tolist() == [60]


def test_prefetch_hides_weights_behind_computation():
    """DRAM is idle for 1000 − 100 fs in step 0, enough for 90 bytes; 40 bytes of op1's weights fit into the staging
    buffer."""
    workload = chain([0, 60], [5, 5], [1000, 7])
    assert latency(instance(workload, "compiler"), [SLOW, SLOW], [FAST, FAST]) == 1000 + 600
    assert latency(instance(workload, "compiler", staging=40), [SLOW, SLOW], [FAST, FAST]) == 1000 + 200
    busy = chain([0, 60], [5, 5], [150, 7])  # DRAM is idle for 50 fs, enough for 5 bytes.
    assert latency(instance(busy, "compiler", staging=40), [SLOW, SLOW], [FAST, FAST]) == 150 + 550


def test_weights_leave_the_staging_buffer_after_their_step():
    """Prefetch 40 bytes of op1 in step 0 and 40 bytes of op2 in step 1; step 2 only reads and writes 5 bytes of
    SRAM."""
    workload = chain([0, 40, 40], [5, 5, 5], [1000, 1000, 1])
    assert latency(instance(workload, "compiler", staging=40), [SLOW] * 3, [FAST] * 3) == 1000 + 1000 + 10


def test_prefetch_looks_no_further_than_its_window():
    n = simulators.LOOKAHEAD + 2
    workload = chain([0] * (n - 1) + [60], [1] * n, [1000] + [1] * (n - 1))
    problem = instance(workload, "compiler", staging=50)
    # Step 0 does not look as far ahead as the weights; the steps between are idle for 1 fs each, too short for a byte.
    assert latency(problem, [SLOW] * n, [FAST] * n) == 1000 + 2 * (n - 2) + 600


def test_eviction_hides_a_write_that_the_reader_does_not_wait_for():
    """op0's write of 30 bytes to DRAM overlaps with op1, which takes 1000 fs; op2 reads the bytes."""
    workload = chain([0] * 3, [30, 5, 5], [1, 1000, 1], [(1, 2), (0, 2)])
    slow = instance(workload, "compiler")
    assert latency(slow, [SLOW] * 3, [SLOW, FAST, FAST]) == 10 * (10 + 30) + 1000 + 10 * 30
    assert latency(instance(workload, "compiler", staging=30), [SLOW] * 3, [SLOW, FAST, FAST]) == 100 + 1000 + 300


def test_a_reader_waits_until_the_write_is_complete():
    """op1 takes 5 fs, too short for a byte of DRAM. op2 therefore waits for the write of 30 bytes and then reads
    them."""
    workload = chain([0] * 3, [30, 5, 5], [1, 1, 1], [(0, 2), (1, 2)])
    assert latency(instance(workload, "compiler", staging=30), [SLOW] * 3, [SLOW, FAST, FAST]) == 100 + 5 + 600


def test_a_tensor_read_by_the_next_step_is_not_evicted():
    """The write overlaps with the computation of op0 itself: 400 fs for 10 + 30 bytes, then 300 fs for the read."""
    workload = chain([0, 0], [30, 5], [350, 1])
    assert latency(instance(workload, "compiler", staging=30), [SLOW] * 2, [SLOW, FAST]) == 400 + 300


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize("seed", range(4))
def test_rectified_maps_stay_and_respect_every_capacity(simulator, seed):
    problem = instance(random_workload(12, seed), simulator, staging=20, flash=True)
    workload = problem.workload
    decisions = np.random.default_rng(seed).integers(9, size=(60, 12))
    placed = problem.place(decisions)
    again = problem.evaluate(problem.decisions(placed))
    assert not again.repaired.any() and placed.moved.any()
    capacity = problem.problem.capacity
    for weights, outputs in zip(placed.weights, placed.outputs, strict=True):
        for step, m in itertools.product(range(12), range(2)):
            alive = (np.arange(12) <= step) & (workload.last >= step) & (outputs == m)
            assert workload.weights[weights == m].sum() + workload.outputs[alive].sum() <= capacity[m]
        assert not (workload.outputs[outputs == 1]).any()  # Flash holds weights only.


@pytest.mark.parametrize("seed", range(4))
def test_addresses_never_overlap(seed):
    problem = instance(random_workload(12, seed), "compiler", sram=150, staging=20)
    workload, placed = problem.workload, problem.place(np.random.default_rng(seed).integers(4, size=(40, 12)))
    for k in range(40):
        buffers = [
            (m[k, i], offset[k, i], size[i], first, last)
            for m, offset, size, lives in (
                (placed.weights, placed.weight_offsets, workload.weights, lambda i: (0, 11)),
                (placed.outputs, placed.output_offsets, workload.outputs, lambda i: (i, workload.last[i])),
            )
            for i in range(12) if size[i] for first, last in [lives(i)]
        ]  # fmt: skip
        for (m, low, size, first, last), (other, low2, size2, first2, last2) in itertools.combinations(buffers, 2):
            assert m != other or last < first2 or last2 < first or low + size <= low2 or low2 + size2 <= low
        assert all(low + size <= problem.problem.capacity[0] for m, low, size, _, _ in buffers if m == 0)


def test_the_compiler_simulator_without_staging_and_fragmentation_equals_additive():
    workload = random_workload(10, 1)
    decisions = np.random.default_rng(0).integers(4, size=(50, 10))
    one, other = (instance(workload, simulator, sram=10**5) for simulator in SIMULATORS)
    assert np.array_equal(one.evaluate(decisions).objectives, other.evaluate(decisions).objectives)


def test_prefetch_never_costs_time():
    workload = random_workload(12, 3)
    # All activations are in SRAM, so nothing is evicted.
    decisions = 2 * np.random.default_rng(0).integers(2, size=(50, 12))
    none, some = (instance(workload, "compiler", sram=10**5, staging=staging) for staging in (0, 64))
    one, other = (problem.evaluate(decisions).objectives for problem in (some, none))
    assert (one <= other).all() and (one < other).any()


def test_the_simulator_in_plain_python_equals_the_compiled_one():
    pytest.importorskip("numba")
    problem = instance(random_workload(12, 2), "compiler", staging=20)
    placed = problem.place(np.random.default_rng(0).integers(4, size=(20, 12)))
    for weights, outputs, objective in zip(
        placed.weights, placed.outputs, problem.evaluate(problem.decisions(placed)).objectives, strict=True
    ):
        assert simulators._compiler.py_func(problem.problem, weights, outputs) == objective
