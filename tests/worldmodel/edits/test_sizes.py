"""Test a model that learnt at one typical size and predicts at another: effects are equal, costs are extrapolated."""

import numpy as np
import pytest

from rlflow.collect.edits import edit_between, first_edit
from tests.suite import at_night
from tests.toys.sizes import encoder_task
from tests.toys.systems import fitted, random_episodes, real_env, said
from tests.worldmodel.edits.test_imagination import choose
from tests.worldmodel.edits.test_neighbourhood import Fused
from worldmodel.dream import DreamVectorEnv
from worldmodel.edits.cost_model import GrownCosts, NodeCosts, node_costs_at
from worldmodel.edits.simulator import NEW_NEIGHBOURHOOD
from worldmodel.latent_env import LatentEnv
from worldmodel.train_and_load import load

CLOSE = 0.2  # Largest error of a reward at another size, relative to the largest reward.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model that learnt at sequence length 8, was saved, and is opened for sequence length 64."""
    small, folder = encoder_task(8), tmp_path_factory.mktemp("sizes")
    fitted(random_episodes(small, 12, 15), small).save(folder)
    return load(folder, encoder_task(64).encoding_spec)


def without_sizes(edit):
    """Return an edit without everything that depends on a size."""
    tensors = [tensor._replace(size=0) for tensor in edit.tensors]
    nodes = [node._replace(runtime_ps=0) for node in edit.nodes]
    return edit._replace(tensors=tensors, nodes=nodes, sizes=0)


def test_edits_at_different_sizes_differ_only_in_runtimes_and_element_counts():
    rng, tasks = np.random.default_rng(1), (encoder_task(8), encoder_task(64), encoder_task(16, 128))
    states = [task.initial for task in tasks]
    firsts = [first_edit(state) for state in states]
    assert len({first.sizes for first in firsts}) == 3 and 0 not in {first.sizes for first in firsts}
    assert without_sizes(firsts[0]) == without_sizes(firsts[1]) == without_sizes(firsts[2])
    assert firsts[0].tensors != firsts[1].tensors
    for _ in range(10):
        valid = states[0].valid_actions()[:-1]
        action = valid[rng.integers(len(valid))]
        after = [state.apply(*action) for state in states]
        edits = [edit_between(state, state.match(*action), then) for state, then in zip(states, after, strict=True)]
        assert without_sizes(edits[0]) == without_sizes(edits[1]) == without_sizes(edits[2])
        states = after


def test_the_signature_of_a_tensor_is_odd_exactly_if_its_shape_has_a_symbol():
    types = encoder_task(8).graph.types
    for tensor in first_edit(encoder_task(8).initial).tensors:
        # A tensor that stands for an output of the graph has no type.
        shape = types[tensor.id].shape if tensor.id in types else ()
        assert tensor.signature % 2 == any(not isinstance(size, int) for size in shape)
    assert not any(tensor.signature % 2 for tensor in first_edit(encoder_task(sequence=8).initial).tensors)


def test_a_model_predicts_edits_exactly_and_rewards_closely_at_another_size(model):
    """Check that all counts are exact at both sizes, and that rewards at the other size are close and marked as
    uncertain."""
    small, large = (said(model, random_episodes(encoder_task(size), at_night(12, 6), 15)) for size in (8, 64))
    assert small.exact == large.exact == 1 and len(large.rewards) > at_night(500, 250)
    assert small.uncertainty.max() == 0 and large.uncertainty.max() == NEW_NEIGHBOURHOOD
    scale = np.abs(large.real_rewards).max()
    wrong = np.abs(large.rewards - large.real_rewards) > 1e-6 * scale
    assert wrong.any() and (large.uncertainty[wrong] > 0).all()
    assert large.reward_error < CLOSE * scale
    assert np.corrcoef(large.rewards, large.real_rewards)[0, 1] > 0.98


def test_neighbourhood_costs_from_another_size_are_uncertain():
    """The cost of a node in its neighbourhood gives no certain prediction for another size if kernels span several
    operators."""
    small, large = (encoder_task(size, cost=Fused) for size in (8, 64))
    model = fitted(random_episodes(small, 12, 15), small)
    assert model.costs.neighbourhoods
    there = said(model, random_episodes(large, at_night(12, 4), 15))
    wrong = np.abs(there.rewards - there.real_rewards) > 1e-6 * np.abs(there.real_rewards).max()
    assert there.exact == 1 and wrong.any() and (there.uncertainty[wrong] > 0).all()


def test_one_dream_serves_the_model_at_every_size(model):
    """The same actions in a dream at each size show the same observations as the real environment."""
    small, large = encoder_task(8), encoder_task(64)
    dreams = [
        DreamVectorEnv(model, task.initial, 1, 20, temperature=0.0, uncertainty_limit=0.25) for task in (small, large)
    ]
    real, rng = LatentEnv(real_env(large, 20), model), np.random.default_rng(5)
    shown, seen = real.reset(seed=0)[0], [dream.reset(seed=0)[0] for dream in dreams]
    rewards = []
    for _ in range(12):
        for key in ("z", "counts", "class_counts"):
            assert np.allclose(seen[0][key], seen[1][key]) and np.allclose(seen[1][key][0], shown[key], atol=1e-4), key
        action = choose(rng, shown["counts"])
        shown, reward, *_ = real.step(action)
        stepped = [dream.step(action[None]) for dream in dreams]
        seen = [step[0] for step in stepped]
        assert not any(step[2][0] or step[3][0] for step in stepped)
        rewards.append((stepped[0][1][0], stepped[1][1][0], reward))
    at_small, at_large, there = np.array(rewards).T
    assert np.abs(at_large - there).max() < CLOSE * np.abs(there).max() < np.abs(at_small - there).max()


def test_an_unseen_node_scales_its_cost_as_other_nodes_of_its_operator_do():
    """Operator 7 takes 3 ps an element and operator 8 takes 5 ps; a constant has the same size at every typical
    size."""
    x, y, weight, made, other = 1, 3, 2, 5, 4
    per_element, n = {7: 3.0, 8: 5.0}, {8: {x: 8, y: 16, made: 24}, 64: {x: 64, y: 128, made: 192}}

    def runtime(operator, tensors, size):
        return 100.0 + per_element[operator] * sum(n[size].get(t, 10) for t in tensors)

    logged = [(op, (*pair, 2), runtime(op, pair, 8)) for op in (7, 8) for pair in ((x, y), (x, weight), (made, weight))]
    there = NodeCosts.learn(logged, n[8] | {weight: 10, other: 10})
    here = NodeCosts.learn([(op, (x, y, 2), runtime(op, (x, y), 64)) for op in (7, 8)], {x: 64, y: 128})
    grown = GrownCosts(here, there)
    for operator in (7, 8):
        assert grown(operator, (x, y, 2)) == runtime(operator, (x, y), 64) and grown.knows(operator, (x, y, 2))
        for pair in ((x, weight), (made, weight)):
            assert grown(operator, (*pair, 2)) == pytest.approx(runtime(operator, pair, 64))
            assert not grown.knows(operator, (*pair, 2))


def test_node_costs_at_the_training_size_are_the_learnt_ones(model):
    first = first_edit(encoder_task(8).initial)
    assert node_costs_at(first, model.costs.nodes) is model.costs.nodes[first.sizes]
