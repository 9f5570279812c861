"""Test the world model "graph-mdn" on small systems: the inputs, predictions and memory of its networks."""

from collections import defaultdict
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from rlflow.collect.edits import SignatureFeatures, merged_signatures, unpack
from rlflow.common.errors import RLFlowError
from rlflow.env.features import AXES, CONTENT, LENGTH, SIZES
from rlflow.rules.language import load_rules
from tests.suite import at_night, eager
from tests.toys.systems import SIGNS_AND_PRODUCTS, played, random_episodes, said, signs_and_products, task_of
from tests.toys.tiny import tiny_task
from tests.worldmodel.edits.test_neighbourhood import Fused, with_cost
from worldmodel.boards import tag_of
from worldmodel.dream import DreamVectorEnv
from worldmodel.edits.class_rewards import learn_class_rewards, with_predicted_rewards
from worldmodel.edits.cost_model import RewriteGains
from worldmodel.edits.learned_rules import LearnedRules
from worldmodel.edits.logged_episodes import by_grounding, ground_episode, logged_edits
from worldmodel.edits.neighbourhood import around
from worldmodel.edits.rule_learning import TrainingSet, new_moves
from worldmodel.edits.simulator import UNKNOWN_EFFECT
from worldmodel.graph_mdn.effects import COPIES, Offer, choices_of, sums
from worldmodel.graph_mdn.network import Comparison, MatchNetwork, NodeNetwork, Table
from worldmodel.graph_mdn.network_inputs import EDGE_COLUMNS, NUMBERS, PAIR, MatchGraph, match_batch
from worldmodel.graph_mdn.neural_costs import NodeRows, joined_nodes
from worldmodel.graph_mdn.neural_rules import SURE_EFFECT, Judge, LikelyEffect, NeuralRules, least_sure, segment_softmax
from worldmodel.graph_mdn.simulator import OFFSET, NeuralSimulator, _combined
from worldmodel.graph_mdn.training import observed, train
from worldmodel.graph_mdn.training_batches import REWRITTEN, Examples, MatchBatches, vocabulary_of, whole_graphs
from worldmodel.train_and_load import load
from worldmodel.world_model_options import GraphMDNConfig

N_RULES = len(load_rules())
CONFIG = GraphMDNConfig(
    width=32, latent=8, match_steps=40, node_steps=400, latent_steps=20, holdout=0.0, recall=False, hidden=0,
)
SMALL = GraphMDNConfig(
    width=8, latent=4, match_steps=2, node_steps=2, latent_steps=2, hidden=4, episode_steps=2, holdout=0.0,
    checkpoint_seconds=1e-9,
)


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """Return (model, folder) of a training that is long enough to predict the toy exactly; tests do not write to the
    folder."""
    task, folder = task_of(signs_and_products(), SIGNS_AND_PRODUCTS), tmp_path_factory.mktemp("trained")
    return train(CONFIG, task.encoding_spec, random_episodes(task, 60, 8), folder, 0).model, folder


@pytest.fixture
def trained(request):
    """Return (model, folder) of `taught` at night, and of the short training `undisturbed` by day."""
    if at_night(True, False):
        return request.getfixturevalue("taught")
    small = request.getfixturevalue("undisturbed")
    return small[3].model, small[2]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return (episodes, their specification, folder of a small training, the training, the names of its curves)."""
    task, folder, names = task_of(signs_and_products(), SIGNS_AND_PRODUCTS), tmp_path_factory.mktemp("small"), set()
    episodes = random_episodes(task, *at_night((12, 6), (6, 4)))
    with eager():
        trained = train(SMALL, task.encoding_spec, episodes, folder, 3, lambda step, row: names.update(row))
    return episodes, task.encoding_spec, folder, trained, names


@pytest.fixture(scope="module")
def learnt():
    """Return (training set, signature table) of random episodes of a tiny BERT."""
    task = tiny_task("tiny_bert_base")
    episodes = random_episodes(task, 8, 12)
    return TrainingSet.of(episodes, len(task.rules)), observed(episodes)


@pytest.mark.nightly
def test_a_trained_model_predicts_held_out_episodes(taught):
    """All counts of held-out episodes are exact from every step to the end; rewards are off by at most 1 % of the
    largest."""
    model, _ = taught
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    predicted = said(model, random_episodes(task, 20, 8, seed=1))
    assert len(predicted.rewards) > 200 and predicted.exact == 1
    assert predicted.reward_error <= 0.01 * np.abs(predicted.real_rewards).max()


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """Return (task, model) with neighbourhood costs, which only the model's memory knows because its networks are
    tiny."""
    task = with_cost(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), Fused())
    config, folder = replace(SMALL, hidden=0, calibration=0.0), tmp_path_factory.mktemp("fused")
    with eager():
        return task, train(config, task.encoding_spec, random_episodes(task, 60, 6), folder, 0).model


def test_certain_steps_are_predicted_with_nearly_their_real_rewards(fused):
    task, model = fused
    assert model.costs.reach
    predicted = said(model, random_episodes(task, 10, 6, seed=1), 1)
    sure, scale = predicted.uncertainty == 0, np.abs(predicted.real_rewards).max()
    off = np.abs(predicted.rewards - predicted.real_rewards)
    assert sure.mean() > 0.6 and off[sure].mean() < 0.02 * scale


def test_gains_add_up_to_the_cost_difference_of_two_graphs_within_its_uncertainty(fused, monkeypatch):
    """Rewards follow the difference of two graphs. With independent estimates a dream could gain by rewriting back and
    forth."""
    task, model = fused
    monkeypatch.setattr(NeuralSimulator, "_bounded", lambda self, rows, matches, gain, sure: gain)
    for table in model.costs.memory.match_gains:
        monkeypatch.setattr(table, "mean", table.mean + 1e6)  # Every rewrite now has a large estimated gain.
        monkeypatch.setattr(table, "spread", np.full_like(table.spread, 1.0))
    (log,) = logged_edits(random_episodes(task, 1, 1))
    index = next(iter(by_grounding(model.groundings, [log])))
    episode, random = ground_episode(index, log), np.random.default_rng(0)
    simulator = model.simulator(index, [episode.nodes[0]], [episode.costs(0)])
    gained, offsets, row = 0.0, [], np.zeros(1, np.int64)
    for _ in range(at_night(300, 60)):
        simulator.states.grow()
        gained += simulator.step(row, random.choice(np.flatnonzero(simulator.states.open[0] == 0), 1)).gain[0]
        states, offset = simulator.states, simulator.states.totals[0, -1]
        assert gained == pytest.approx(episode.costs(0).sum() - states.paid.sum() - offset, abs=1)
        assert abs(offset) <= OFFSET * np.sqrt(states.variances.sum()) + 1e-6
        offsets.append(offset)
    assert min(offsets) < 0


def test_the_surer_of_two_estimates_of_a_gain_weighs_more():
    none, first, second = np.full(1, np.inf), np.array([2.0]), np.array([5.0])
    one = np.ones(1)
    for deviation, other, mean, left in ((1.0, none, 2.0, 1.0), (0.0, one, 2.0, 0.0), (1.0, one, 3.5, 0.5**0.5)):
        assert _combined(first, np.array([deviation]), second, other) == (pytest.approx([mean]), pytest.approx([left]))
    mean, left = _combined(first, np.array([2.0]), second, np.array([1.0]))
    assert mean == pytest.approx([2.0 + 0.8 * 3.0]) and left == pytest.approx([(4 / 5) ** 0.5])


@pytest.mark.nightly
def test_the_reward_of_a_never_rewritten_class_is_predicted_near_its_gains(trained):
    """Treat every class as never rewritten. The predicted reward then lies near the gains of the class in the data."""
    model, _ = trained
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    training = TrainingSet.of(random_episodes(task, 60, 8), task.encoding_spec.n_rules)
    gained = defaultdict(list)
    for index, episodes in training.groups():
        per_ps = model.rewards.of(training.initial_runtime(index)).per_ps
        for episode in episodes:
            moves = new_moves(episode)
            classes = index.match_class.values[episode.matches[moves]]
            for of_class, gain in zip(classes.tolist(), per_ps * episode.gains[moves], strict=True):
                gained[of_class].append(gain)
    blank = copy(model)
    blank.usual_rewards = np.zeros_like(model.usual_rewards)
    nothing = np.zeros(len(model.match_classes), bool)
    (said, _), near = with_predicted_rewards(blank, training, nothing), 0.02 * np.abs(model.usual_rewards).max()
    assert len(gained) > 4
    for of_class, gains in gained.items():
        assert min(gains) - near <= said[of_class] <= max(gains) + near
        assert model.usual_rewards[of_class] == np.float32(np.median(gains))


@pytest.mark.nightly
def test_networks_predict_no_reward_of_a_class_that_was_rewritten(trained):
    """The networks predict rewards only of classes that were never rewritten, so a known median of 0 stays 0."""
    model, _ = trained
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    training = TrainingSet.of(random_episodes(task, 60, 8), task.encoding_spec.n_rules)
    usual, rewritten = learn_class_rewards(training, model.rewards)
    same = copy(model)
    same.usual_rewards = np.zeros_like(usual)
    said, _ = with_predicted_rewards(same, training, rewritten)
    assert (usual[rewritten] != 0).any() and (said[rewritten] == 0).all()


@pytest.mark.nightly
def test_gains_of_all_steps_together_are_the_difference_of_two_graphs(taught):
    model, _ = taught
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    env = DreamVectorEnv(model, task.initial, 4, max_steps=6, temperature=0.0, uncertainty_limit=None)
    env.reset(seed=0)
    states = env._dreams.imagined._simulator.states
    first, gained = states.paid.sum(axis=1), np.zeros(4)
    for _ in range(5):
        counts = env._dreams.imagined.counts
        actions = np.array([[int(np.flatnonzero(row)[0]), 0] for row in counts])
        gained += env._dreams.imagined.advance(actions, np.ones(4, bool), 0.0, (0, 0)).rewards
    left = first - states.paid.sum(axis=1)
    scale = model.rewards.of(task.initial.objective).per_ps
    np.testing.assert_allclose(gained, scale * left, rtol=1e-9, atol=1e-9)
    assert np.abs(gained).max() > 0


class Never:
    """A stand-in for the table of sure effects that marks every effect as unsure."""

    values = np.zeros(10**4, bool)

    def append(self, value):
        pass


def limited_gains(model, monkeypatch, elements: float) -> list[np.ndarray]:
    """Return [gains of sure effects, gains of other effects] in ps, where every rule gained −3 to 2 on tensors of
    `elements`."""
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    limits = np.array([[rule, 0, elements, gain] for rule in range(len(task.rules)) for gain in (-3.0, 2.0)])
    result = []
    for sure in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr(model.costs.memory, "gains", RewriteGains(limits))
            imagined, gains = model.imagine(task.initial, 1), []
            states = imagined._simulator.states
            if not sure:
                patched.setattr(imagined._simulator.index, "seen", Never())
            paid = [states.paid.sum()]
            for _ in range(4):
                action = np.array([[int(np.flatnonzero(imagined.counts[0])[0]), 0]])
                rewards = imagined.advance(action, np.ones(1, bool), 0.0, (0, 0)).rewards
                paid.append(states.paid.sum())
                gains.append(float(rewards[0]) / model.rewards.of(task.initial.objective).per_ps)
        np.testing.assert_allclose(gains, -np.diff(paid), rtol=1e-6, atol=1e-6)
        result.append(np.round(gains, 5))
    return result


@pytest.mark.nightly
def test_gains_are_limited_by_the_logged_gains_of_the_rule_and_less_so_for_sure_effects(trained, monkeypatch):
    """The gains are limited; the sum of all gains is still the difference of two graphs."""
    sure, unsure = limited_gains(trained[0], monkeypatch, 1e6)
    assert (-6 <= sure).all() and (sure <= 5).all() and sure.min() < -3
    assert (-3 <= unsure).all() and (unsure <= 2).all() and np.isin(unsure, (-3, 2)).any()


@pytest.mark.nightly
def test_the_limits_of_sure_gains_grow_with_the_replaced_tensors(trained, monkeypatch):
    """The toy's tensors have 32 elements. If a rule replaced tensors of 16 elements, its limits are twice as wide."""
    (sure, unsure), (twice, still) = (limited_gains(trained[0], monkeypatch, elements) for elements in (32.0, 16.0))
    cut = np.isin(sure, (-5.0, 5.0))
    assert cut.any() and (twice[cut] == 2 * sure[cut]).all() and (still == unsure).all()


@eager()
def test_a_loaded_model_predicts_the_same_and_a_damaged_one_is_refused(trained, tmp_path):
    model, folder = trained
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    episodes = random_episodes(task, *at_night((5, 8), (2, 3)), seed=2)
    back = load(folder, model.spec)
    for one, other in zip(said(model, episodes), said(back, episodes), strict=True):
        # The batch differs from the batch of the first model, so sums round differently.
        np.testing.assert_allclose(one, other, rtol=1e-5)
    back.save(tmp_path)
    assert (tmp_path / "learnt.json").read_bytes() == (folder / "learnt.json").read_bytes()
    for name in ("learnt.json", "weights.npz"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(RLFlowError):
            load(tmp_path, model.spec)
        (tmp_path / name).write_bytes(whole)


def test_a_dream_that_comes_back_to_a_graph_has_gained_nothing_since(trained, monkeypatch):
    """Every predicted gain is raised by 7 ps, so that a rewrite and its inverse would gain 14 ps each time."""
    model, task, step = trained[0], task_of(signs_and_products(), SIGNS_AND_PRODUCTS), NeuralSimulator.step

    def raised(self, rows, matches):
        predicted = step(self, rows, matches)
        return predicted._replace(gain=predicted.gain + 7)

    monkeypatch.setattr(NeuralSimulator, "step", raised)
    imagined, random = model.imagine(task.initial, 8), np.random.default_rng(1)
    gained, returns = [{} for _ in range(8)], 0
    for t in range(40):
        rules = [random.choice(np.flatnonzero(counts)) for counts in imagined.counts]
        actions = np.array([(rule, random.integers(imagined.counts[row, rule])) for row, rule in enumerate(rules)])
        said = imagined.advance(actions, np.ones(8, bool), 0.0, (0, t))
        rows, nodes = imagined._simulator.states.cells()
        for row in np.flatnonzero(said.uncertainty < UNKNOWN_EFFECT).tolist():
            graph = tuple(sorted(nodes[rows == row].tolist()))
            returns += graph in gained[row]
            assert imagined._gained[row] == gained[row].setdefault(graph, imagined._gained[row])
    assert returns > 20 and max(map(len, gained)) > 3


@eager()
def test_a_dream_predicts_only_the_effects_that_it_needs(trained, monkeypatch):
    """A dream rewrites one match; the networks predict this effect and no other one."""
    model, task, asked = trained[0], task_of(signs_and_products(), SIGNS_AND_PRODUCTS), []
    rules = model.groundings.rules
    monkeypatch.setattr(model.groundings, "known", {})
    monkeypatch.setattr(rules, "recalls", False)
    monkeypatch.setattr(rules.judge, "expect", lambda several: asked.extend(several))
    monkeypatch.setattr(rules.judge, "effect", lambda match: LikelyEffect(None, 0.0))
    imagined = model.imagine(task.initial, 2)
    assert imagined.counts[0].sum() > 1 and not asked
    rule = int(np.flatnonzero(imagined.counts[0])[0])
    imagined.advance(np.array([[rule, 0], [rule, 0]]), np.array([True, False]), 0.0, (0, 0))
    assert [pattern.xfer_id for pattern, _ in asked] == [rule]


@pytest.mark.nightly
@eager()
def test_a_killed_and_resumed_training_equals_an_uninterrupted_one(undisturbed, tmp_path, monkeypatch):
    """Kill the training once in each of its five networks and resume it from the checkpoint."""
    episodes, spec, folder, training, _ = undisturbed
    whole = training.results
    assert whole["match"] and whole["node"] and whole["episode"]

    def killed_at(last):
        def log(step, metrics):
            if step >= last:
                raise KeyboardInterrupt

        return log

    monkeypatch.setattr("worldmodel.graph_mdn.training.LOG_EVERY", 1)
    for last in (1, 3, 5, 7, 9):
        with pytest.raises(KeyboardInterrupt):
            train(SMALL, spec, episodes, tmp_path / "killed", 3, killed_at(last))
    assert train(SMALL, spec, episodes, tmp_path / "killed", 3).results == whole
    for name in ("learnt.json", "weights.npz"):
        assert (folder / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    with pytest.raises(RLFlowError, match="another set of episodes"):
        train(SMALL, spec, episodes[:-1], tmp_path / "killed", 3)


@eager()
def test_networks_that_are_trained_at_once_or_in_turn_have_the_same_weights(undisturbed, tmp_path, monkeypatch):
    episodes, spec, folder, training, _ = undisturbed
    monkeypatch.setattr("worldmodel.graph_mdn.training.AT_ONCE", 1)
    assert train(SMALL, spec, episodes, tmp_path, 3).results == training.results
    for name in ("learnt.json", "weights.npz"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_trained_model_also_recalls_the_episodes_that_calibrated_it(tmp_path, monkeypatch):
    task, sets = tiny_task("tiny_bert_base"), []
    episodes, calibrate = random_episodes(task, 8, 3), NeuralRules.calibrate

    def rewritten(rules):
        return {(one.pattern, signature) for one in rules.patterns for signature, seen in one.effects.items() if seen}

    def judged(self, others):
        sets.append((rewritten(self), rewritten(others)))
        judged_rules.append(self.judged)
        calibrate(self, others)
        self.least_sure = 0.75

    monkeypatch.setattr(NeuralRules, "calibrate", judged)
    judged_rules = []  # the numbers of the known patterns stand for the refuted rules, since hardly any rule is refuted
    monkeypatch.setattr(LearnedRules, "refutable", lambda self: frozenset(range(len(self.patterns))))
    with eager():
        model = train(replace(SMALL, calibration=0.3), task.encoding_spec, episodes, tmp_path, 0).model
    (known, apart), every = *sets, rewritten(TrainingSet.of(episodes, N_RULES).groundings.rules)
    assert apart - known and known - apart
    for one in (model, load(tmp_path, task.encoding_spec)):
        assert rewritten(one.groundings.rules) == known | apart == every
        assert one.groundings.rules.least_sure == 0.75
        assert one.groundings.rules.judged == judged_rules[0] < one.groundings.rules.refutable()


def test_episodes_in_which_nothing_was_rewritten_are_refused(tmp_path):
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    with pytest.raises(RLFlowError, match="nothing was rewritten in these episodes"):
        train(CONFIG, task.encoding_spec, [played(task, []), played(task, [])], tmp_path, 0)


def test_every_logged_curve_has_a_place_on_the_board(undisturbed):
    names = undisturbed[-1]
    assert {name.partition("/")[0] for name in names} == {"match-0", "match-1", "node", "latent", "episode"}
    for name in names:
        assert tag_of("train-wm", name).endswith(name)


# -- what the networks see -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny_bert_base", "tiny_resnet50", "tiny_squeezenet1_1"])
def test_different_signatures_have_different_features(name):
    task = tiny_task(name)
    episodes = random_episodes(task, 4, 12)
    seen = merged_signatures([episode.signatures for episode in episodes])
    for signatures, features in ((seen.operators, seen.operator_features), (seen.tensors, seen.tensor_features)):
        assert len(signatures) > 10 and len(np.unique(features, axis=0)) == len(signatures)


def test_every_operator_and_tensor_named_in_edits_has_features():
    episode = random_episodes(tiny_task("tiny_resnet50"), 1, 12)[0]
    edits, _ = unpack(episode.edits)
    assert {node.operator for edit in edits for node in edit.nodes} == set(episode.signatures.operators.tolist())
    assert {t.signature for edit in edits for t in edit.tensors} == set(episode.signatures.tensors.tolist())
    state = tiny_task("tiny_resnet50").initial
    assert len(SignatureFeatures.of([state], edits[:1]).operators) > 3


def met(rules):
    """Return all matches that were ever present, as (pattern, signature)."""
    return [(learned.pattern, signature) for learned in rules.patterns for signature in learned.effects]


def numbers_of(tensor):
    """Return the sizes and then the content of a tensor as integers; None for an unused entry."""
    sizes = [round(np.expm1(size)) or None for size in tensor[SIZES]]
    content = [round(np.sign(part) * np.expm1(abs(part) - 1)) or None if part else None for part in tensor[CONTENT]]
    return sizes + content


def test_edges_between_tensors_of_a_match_mark_their_equal_numbers(learnt):
    training, table = learnt
    asked = met(training.groundings.rules)[:120]
    batch = match_batch([MatchGraph.of(match, table) for match in asked])
    assert batch.edges.shape == (len(batch.senders), EDGE_COLUMNS)
    assert np.array_equal(batch.owners[batch.senders], batch.owners[batch.receivers])
    assert np.array_equal(np.repeat(np.arange(len(asked)), batch.n_edges), batch.owners[batch.senders])
    # Contents of other data types are no sizes.
    integers = (table.tensors[:, 4] == 0) | (table.tensors[:, LENGTH] == 0)
    pairs = np.flatnonzero(batch.edges[:, PAIR])
    pairs = pairs[integers[batch.tensors[batch.senders[pairs]]] & integers[batch.tensors[batch.receivers[pairs]]]]
    numbers, equal, literal = list(map(numbers_of, table.tensors)), 0, 0
    for k in pairs.tolist():
        one, other = (numbers[batch.tensors[end[k]]] for end in (batch.senders, batch.receivers))
        for i in range(NUMBERS):
            for j in range(NUMBERS):
                same = one[i] is not None and one[i] == other[j]
                assert batch.edges[k, EDGE_COLUMNS - NUMBERS**2 + NUMBERS * i + j] == same
                equal += same
                literal += same and (i < AXES) != (j < AXES)
    assert equal > 100 and literal > 10


def test_the_logged_effect_is_always_among_the_choices(learnt):
    training, table = learnt
    rules = training.groundings.rules
    examples = Examples.of(rules)
    vocabulary = vocabulary_of(rules, examples)
    batch = MatchBatches(examples, vocabulary, table, 0)(0)
    drawn = batch.drawn[: np.max(batch.choices.structure_owners) + 1]
    relevant = batch.structures[batch.choices.slot_structures]
    stood = np.bincount(batch.choices.filling_owners, batch.fillings, len(relevant))
    assert relevant.all() and np.array_equal(stood, relevant)
    assert np.array_equal(np.bincount(batch.choices.structure_owners, batch.structures), drawn)
    assert drawn.sum() == REWRITTEN and set(np.bincount(batch.choices.filling_owners, batch.fillings > 0)) == {1.0}
    for asked in examples.rewritten:
        named = Offer.of(vocabulary, table, asked).named
        assert all(len(set(values)) == len(values) for _, values in named)


def test_an_operator_that_no_training_episode_has_is_offered_as_a_copy(learnt):
    rules = learnt[0].groundings.rules
    examples, copied = Examples.of(rules), 0
    vocabulary = vocabulary_of(rules, examples)
    for pattern, signature in examples.rewritten:
        unseen = [-1 - k for k in range(len(pattern.nodes))]
        asked = pattern, (*unseen, *signature[len(unseen) :])
        for structure in vocabulary.candidates(pattern):
            for k, (op_type, *_) in enumerate(vocabulary.structures[structure].added):
                copies = [one for one, node in zip(unseen, pattern.nodes, strict=True) if node[0] == op_type]
                assert vocabulary.fillings(asked, structure, False, k)[: len(copies)] == copies
                copied += len(copies)
    assert copied > 0


@eager()
def test_a_verdict_does_not_depend_on_other_matches_in_the_batch(trained):
    model, _ = trained
    several = model.examples.rewritten
    together, singly = (Judge(model.match_networks, model.vocabulary, model.table) for _ in range(2))
    together.meet(several)
    together.expect(several)
    for asked in several:
        assert together.effect(asked).effect == singly.effect(asked).effect
        assert together.applies(asked) == pytest.approx(singly.applies(asked), abs=1e-5)


@eager()
def test_a_verdict_on_which_networks_disagree_is_not_sure(learnt):
    """Judge with untrained networks. Their common verdict has the lower of the two certainties; if one network prefers
    another structure or operator, the certainty is at most 0.5."""
    training, table = learnt
    examples = Examples.of(training.groundings.rules)
    vocabulary, networks = vocabulary_of(training.groundings.rules, examples), []
    for seed in range(2):
        tf.random.set_seed(seed)
        networks.append(MatchNetwork(N_RULES, len(vocabulary.structures), len(vocabulary.slots), 16, 1))
    both, *each = (Judge(some, vocabulary, table) for some in (networks, networks[:1], networks[1:]))
    agreed, differed = 0, 0
    for judge in (both, *each):
        judge.meet(examples.rewritten[:20])  # one pass of the judge's networks for all conditions,
        judge.expect(examples.rewritten[:20])  # and one for all effects
    for asked in examples.rewritten[:20]:
        applies, *of_each = (judge.applies(asked) for judge in (both, *each))
        assert applies == pytest.approx(sum(of_each) / 2, abs=1e-6)
        said, one, other = (judge.effect(asked) for judge in (both, *each))
        if one.effect == other.effect:
            assert said.effect == one.effect and said.sure == pytest.approx(min(one.sure, other.sure), rel=1e-4)
            agreed += 1
        elif any(said.effect[:3] != judged.effect[:3] for judged in (one, other)):
            assert said.sure <= 0.5
            differed += 1
    assert agreed and differed


def test_only_rules_that_were_ever_refuted_are_judged(trained):
    """The network saw no refuted match of the other rules, so its verdict about these rules means nothing."""
    model, _ = trained
    rules = model.groundings.rules
    known = {(number, signature) for number, learned in enumerate(rules.patterns) for signature in learned.effects}
    refuted = {learned.pattern.xfer_id for learned in rules.patterns if learned.refuted}
    judged = {(number, signature) for number, signature in known if rules.patterns[number].pattern.xfer_id in refuted}
    assert {(rules.numbers[pattern], signature) for pattern, signature in model.examples.applied} == judged
    assert known - judged

    class Refuses:
        def applies(self, asked):
            return 0.0

        def effect(self, asked):
            return LikelyEffect(None, 0.0)

    doubtful = NeuralRules.of(rules, Refuses(), recalls=False)
    assert {asked for asked in known if not doubtful.applies(*asked)} == judged
    recalling = NeuralRules.of(rules, Refuses())
    assert all(recalling.applies(*asked) for asked in known)
    for number, signature in known:
        seen = rules.patterns[number].effects[signature]
        effect, sure = recalling.effect(number, signature)
        assert sure == bool(seen) and (effect is None or effect in seen)


def test_exchanged_operands_change_the_verdict_of_a_match(learnt):
    """A match with exchanged operands gets another verdict, although it consists of the same nodes and tensors."""
    training, table = learnt
    tf.random.set_seed(0)
    network, swapped, asked = MatchNetwork(N_RULES, 1, 1, 32, 1), [], met(training.groundings.rules)[:60]
    for pattern, signature in asked:
        first = len(pattern.nodes)
        swapped.append((pattern, (*signature[:first], signature[first + 1], signature[first], *signature[first + 2 :])))
    nothing = choices_of([])
    said_of = []
    for matches in (asked, swapped):
        batch = match_batch([MatchGraph.of(match, table) for match in matches])
        parts = tf.nest.map_structure(tf.constant, (batch, nothing, Table.of(table)))
        said_of.append(network(*parts).applies.numpy())
    differ = [one != other for one, other in zip(asked, swapped, strict=True)]
    assert sum(differ) > 10 and np.array_equal(np.abs(said_of[0] - said_of[1]) > 0, differ)


def test_candidate_tensors_are_marked_as_equal_to_or_sums_of_match_sizes():
    """Compare candidate tensors with a match: rows 1 to 3 have the sizes 3, 4 and 7, row 4 has 5; the match has rows 1
    and 2."""
    sizes = np.array([[0.0] * 6, *[[n] + [0.0] * 5 for n in (3, 4, 7, 5)]], np.float32)
    seen = sums(sizes[1:], sizes[[1, 2]])
    assert np.array_equal(seen[:, 0], [0, 0, 1, 0]) and not seen[:, 1:6].any()
    seen = sums(sizes[1:], sizes[[3, 2]])  # 7 and 4
    assert np.array_equal(seen[:, 6], [1, 0, 0, 0]) and not seen[:, :6].any()
    assert not sums(sizes, sizes[[1, 0]]).any()  # An unused entry is no summand.

    beside = np.zeros((4, COPIES), np.int32)
    beside[:, :2] = 3, 2
    tf.random.set_seed(0)
    logs, rows, where = tf.constant(np.log1p(sizes)), tf.constant([1, 2, 3, 4]), np.array([True, True, True, False])
    said_of = Comparison(16)(tf.constant(where), rows, logs, logs, tf.constant(beside)).numpy()
    assert not said_of[3].any() and len(np.unique(said_of[:3], axis=0)) == 3


def test_the_threshold_of_known_effects_is_the_probability_above_which_they_are_right():
    sure, right = np.linspace(1.0, 0.5, 41), np.arange(41) < 30
    mixed = np.random.default_rng(0).permutation(41)
    assert least_sure(sure[mixed], right[mixed]) == sure[30]  # 30 of 31 are right, and 30 of 32 would be too few
    assert least_sure(sure[:5], right[:5]) == SURE_EFFECT == least_sure(sure, ~right)
    equal, others = np.ones(12), np.linspace(0.8, 0.7, 28)  # of equal probabilities, all or none qualify
    assert least_sure(equal, np.arange(12) < 10) == SURE_EFFECT
    assert least_sure(np.append(equal, others), np.arange(40) != 11) == 0.7


def test_softmax_by_owner():
    logits, owners = np.array([1.0, 3.0, 2.0, 500.0]), np.array([0, 0, 2, 2])
    result = segment_softmax(logits, owners)
    np.testing.assert_allclose(result, [1 / (1 + np.e**2), 1 / (1 + np.e**-2), 0.0, 1.0], atol=1e-12)


def test_the_cost_of_a_node_depends_on_its_neighbourhood_alone(learnt):
    """The costs computed from the ball around a node equal those computed from the whole graph, and batched graphs do
    not mix."""
    training, table = learnt
    network, distance = NodeNetwork(8, 3, 2), 3
    graphs = whole_graphs(training, table)[:3]
    inputs = Table(*map(tf.constant, Table.of(table)))

    def costs(batch):
        return network(tf.nest.map_structure(tf.constant, batch), inputs).mean.numpy()

    whole = [costs(graph.nodes) for graph in graphs]
    np.testing.assert_allclose(costs(joined_nodes([graph.nodes for graph in graphs])), np.concatenate(whole), atol=1e-4)
    index, (episode, *_) = next(training.groups())
    from worldmodel.edits.dream_states import DreamStates

    there, rows = episode.nodes[0], NodeRows(index, table)
    states, zero = DreamStates(index, [there], N_RULES), np.zeros(len(there), np.int64)
    all_nodes = around(states, zero, there, 1)
    of_all = dict(zip(all_nodes[0].tolist(), costs(rows.batch(*all_nodes)), strict=True))
    for node in there[:: max(1, len(there) // 8)]:
        ball = around(states, np.zeros(1, np.int64), np.array([node]), distance)
        assert len(ball[0]) <= len(there)
        np.testing.assert_allclose(costs(rows.batch(*ball))[0], of_all[int(node)], atol=1e-4)


def test_the_mixture_is_the_only_noise_of_a_dream(trained):
    """Without its noise a reward is the one at temperature 0, whatever the temperature."""
    model, task = trained[0], task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    dreams = [model.imagine(task.initial, 64) for _ in range(2)]
    actions = np.tile([[int(np.flatnonzero(dreams[0].counts[0])[0]), 0]], (64, 1))
    noisy, calm = (
        dream.advance(actions, np.ones(64, bool), temperature, (0, 0))
        for dream, temperature in zip(dreams, (1.0, 0.0), strict=True)
    )
    np.testing.assert_allclose(noisy.expected, calm.rewards)
    assert len(set(np.round(calm.rewards, 9))) == 1
    np.testing.assert_array_equal(dreams[0]._gained, dreams[1]._gained)  # no noise of its own
