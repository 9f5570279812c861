"""Test exploration that returns to states of the best episode. If the environment can restore a state, the copied
steps cost no interaction, and the data of these steps count once in what is learnt."""

from collections import Counter
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from controllers import recording
from controllers.recording import (
    CHAIN,
    KINDS,
    Player,
    Recorder,
    Way,
    _rewrites,
    best_part,
    encoded_along,
    play_iteration,
)
from rlflow.collect.episodes import read_shard, write_shard
from rlflow.collect.exploration import play_novel
from rlflow.collect.rollouts import play_random, record
from rlflow.common.errors import RLFlowError
from rlflow.common.task import valid_actions
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import relative
from rlflow.env.state import RewriteState
from rlflow.optimisation.candidates import states_along
from tests.controllers.test_recording import Backwards, same
from tests.suite import at_night, slow
from tests.toys.systems import SIGNS_AND_PRODUCTS, fitted, signs_and_products, task_of
from tests.toys.tiny import tiny_task
from tests.worldmodel.edits.test_neighbourhood import with_cost
from worldmodel.edits.logged_episodes import ground_episode, logged_edits

STEPS, PLAN = 20, 12


class Faithful:
    """A controller that plays the first steps of a fixed plan. A sampled episode leaves the plan at some step for
    good."""

    def __init__(self, task, steps: int = PLAN, leaves: float = 0.1):
        episode = play_novel(task, relative, (), steps, np.random.default_rng(165))  # gains most at its end
        self.plan = [  # `Backwards` numbers locations from the last to the first.
            (x, episode.counts[t, x] - 1 - k) for t, (x, k) in enumerate(episode.actions.tolist())
        ]
        self.no_op, self.leaves, self.left = task.no_op, leaves, False

    def act(self, observation, greedy, rng):
        step, counts = int(observation["step"][0]), observation["counts"][0]
        self.left = step > 0 and self.left
        if step >= len(self.plan):
            return np.array([(self.no_op, 0)])
        self.left |= not greedy and rng.random() < self.leaves
        if not self.left:
            return np.array([self.plan[step]])
        xfer_id = rng.choice(np.flatnonzero(counts))
        return np.array([(xfer_id, rng.integers(counts[xfer_id]))])


class First:
    """A controller that chooses the first match of the first rule that it sees, and remembers {step: this rule}."""

    def __init__(self):
        self.chosen = {}

    def act(self, observation, greedy, rng):
        rule = int(np.flatnonzero(observation["counts"][0])[0])
        self.chosen[int(observation["step"][0])] = rule
        return np.array([(rule, 0)])


class Walking(gymnasium.Wrapper):
    """An environment that cannot restore a state."""

    def __init__(self, env: GraphRewriteEnv):
        super().__init__(env)
        self.task, self.reward, self.max_steps = env.task, env.reward, env.max_steps


@pytest.fixture(scope="module")
def task():
    return tiny_task("tiny_squeezenet1_1")


@pytest.fixture
def carried_out(monkeypatch):
    """Return a list to which each match is added that is rewritten on a real graph."""
    result, follow = [], RewriteState.follow

    def counted(self, match):
        result.append(match)
        return follow(self, match)

    monkeypatch.setattr(RewriteState, "follow", counted)
    return result


def player(task, restores=True) -> Player:
    env = GraphRewriteEnv(task, relative, STEPS)
    return Player(Faithful(task), env if restores else Walking(env), Backwards(task))


def replayed(task, episode):
    states = [task.initial]
    for xfer_id, location in episode.actions.tolist():
        states.append(states[-1] if xfer_id == task.no_op else states[-1].apply(xfer_id, location))
    return record(task, relative, states, episode.actions.tolist(), episode.index)


@pytest.mark.parametrize("restores", [True, *slow(False)])
def test_counted_interactions_equal_the_rewrites_carried_out_and_the_stops(
    task, tmp_path, carried_out, restores, monkeypatch
):
    actor = player(task, restores)

    def not_counted(*arguments):
        before = len(carried_out)
        states = encoded_along(*arguments)
        del carried_out[before:]  # the best path, which was played before
        return states

    monkeypatch.setattr(recording, "encoded_along", not_counted)
    carried_out.clear()  # Forget the rewrites that drew the plan.
    episodes = play_iteration(actor, tmp_path, 400, 24, (3, 2))
    stops = sum(int((episode.actions[:, 0] == task.no_op).sum()) for episode in episodes)
    assert sum(episode.interactions for episode in episodes) == len(carried_out) + stops <= 400
    copied = [episode.copied for episode in episodes]
    if restores:
        of_kind = {kind: [n for k, n in enumerate(copied) if k and KINDS[k % 4] == kind] for kind in KINDS}
        assert copied[0] == 0 and max(of_kind["sample"]) > 3 and len(episodes) == 24
        assert max(of_kind["excursion"]) > 6 and max(of_kind["detour"]) > 6
    else:
        assert not any(copied) and len(episodes) < 24


def test_states_of_the_best_path_are_encoded_step_by_step(task):
    moves = _rewrites(play_novel(task, relative, (), STEPS, np.random.default_rng(165)))
    assert len(moves) > 5
    for state in encoded_along(task, moves)[1:]:
        before, _ = state._entries_before
        assert before.nodes and len(before.nodes.keys() ^ state.graph.nodes.keys()) < 10


def test_an_episode_with_copied_steps_equals_its_full_replay(task, tmp_path):
    episodes = play_iteration(player(task), tmp_path, 400, at_night(24, 12), (3, 2))
    for episode in episodes:
        same(episode, replayed(task, episode))
        earlier = [one.actions[: episode.copied].tolist() for one in episodes[: episode.index]]
        assert not episode.copied or episode.actions[: episode.copied].tolist() in earlier
    partial = [e for e in episodes[1:] if 0 < e.copied < min(len(e), PLAN)]
    leaves = [e for e in partial if np.array_equal(e.actions[e.copied], episodes[0].actions[e.copied])]
    # After its copied steps an episode explores and seldom repeats the action of the greedy episode.
    assert len(leaves) < len(episodes) / 4


def test_the_second_episode_is_the_greedy_one_of_the_untrained_controller(task):
    env, untrained = GraphRewriteEnv(task, relative, STEPS), Faithful(task, steps=5)
    actor = Player(First(), env, Backwards(task), untrained)
    episodes = [actor.turn(0, 9, [])]
    episodes.append(actor.turn(1, 10, episodes))
    same(episodes[1], Player(untrained, env, Backwards(task)).turn(0, 9, []))
    assert not np.array_equal(episodes[0].actions, episodes[1].actions)


def test_detours_are_chains_of_seldom_used_rules_and_follow_the_policy_after_a_gain(task):
    episodes, actor, chosen = [], Player(First(), GraphRewriteEnv(task, relative, STEPS), Backwards(task)), []
    for k in range(18):
        actor.controller.chosen = {}
        episodes.append(actor.turn(k, 100 + k, episodes))
        chosen.append(actor.controller.chosen)
    endings = Counter()
    for k in [k for k in range(1, 18) if KINDS[k % 4] == "detour"]:
        paths = {n: _rewrites(one) for n, one in enumerate(episodes[:k])}
        best = max(paths, key=lambda n: best_part(episodes[n])[1])
        episode, way = episodes[k], episodes[k].copied
        assert [tuple(action) for action in episode.actions[:way].tolist()] == paths[best][:way]
        moves = [move for move in episode.actions.tolist() if move[0] != task.no_op]
        states = states_along(task, moves)
        follows = [step for step in chosen[k] if step > way]
        chain = moves[way : min(follows, default=len(moves))]
        used = Counter(np.concatenate([one.actions[one.copied :][:CHAIN, 0] for one in episodes[:k]]).tolist())
        for step, (rule, index) in enumerate(chain, way):
            state, onward = states[step], paths[best][way : way + 1]
            valid = map(tuple, valid_actions(state.counts, stop=False).tolist())
            there = {rule for rule, location in valid if (rule, location) not in onward}
            if step > way:
                assert not state.touched.isdisjoint(state.match(rule, index).nodes)
                there = {match.xfer_id for match in state.matches if not state.touched.isdisjoint(match.nodes)}
            looks = [one.objective == state.objective for one in states[way:step]]
            if not any(looks):  # else, a rule that was chosen there before is not chosen again
                assert used[rule] == min(used[one] for one in there)
            used[rule] += 1
        assert len(chain) <= CHAIN
        gained = states[way + len(chain)].objective < states[way].objective
        assert bool(follows) == gained or way + len(chain) == STEPS
        followed = dict(enumerate(episode.actions[way + len(chain) :, 0].tolist(), way + len(chain)))
        assert not follows or followed == {step: chosen[k][step] for step in follows}
        endings[len(chain), bool(follows)] += 1
    assert {is_followed for _, is_followed in endings} == {True, False} and max(n for n, _ in endings) == CHAIN


def test_a_detour_draws_its_first_rule_independently_of_the_place_where_it_leaves_the_path(task):
    actor, rules = player(task), {}
    first = actor.turn(0, 9, [])
    for k in range(1, 80, 2):
        episode = actor.turn(k, k, [first])
        if len(episode) > episode.copied < PLAN:
            rules.setdefault(episode.copied, []).append(int(episode.actions[episode.copied, 0]))
    # Equal draws of place and rule would give neighbouring rules at one place.
    assert max(len(set(of_place)) for of_place in rules.values()) > 3


@pytest.mark.parametrize("restores", [True, False])
def test_a_limited_episode_is_the_beginning_of_the_whole_one(task, restores):
    actor = player(task, restores)
    first, shortened = actor.turn(0, 9, []), 0
    for k in range(1, at_night(12, 5)):
        whole, cut = actor.turn(k, 100 + k, [first]), actor.turn(k, 100 + k, [first], PLAN + 1)
        assert cut.interactions == min(whole.interactions, PLAN + 1)
        assert np.array_equal(cut.actions, whole.actions[: len(cut)])
        shortened += len(cut) < len(whole)
    assert shortened


def test_an_environment_that_cannot_restore_states_gives_the_same_episodes(task):
    for k in range(1, at_night(12, 5)):
        episodes = []
        for restores in (True, False):
            actor = player(task, restores)
            first = actor.turn(0, 9, [])
            episodes.append(actor.turn(k, 100 + k, [first]))
        same(*episodes)
        assert episodes[1].copied == 0


def test_an_exploring_episode_adds_about_as_many_steps_as_it_copied(task, monkeypatch):
    monkeypatch.setattr(recording, "EXCURSION", 3)
    actor = player(task)
    first, explored = actor.turn(0, 9, []), set()
    for k in (2, 6, 10, 14, 18, 22):
        way, episode = int(np.random.default_rng(k).integers(PLAN + 1)), actor.turn(k, k, [first])
        explored.add(episode.interactions)
        assert episode.copied == way and episode.interactions == min(max(3, way), STEPS - way)
    assert len(explored) > 2


def test_a_restarted_player_gives_the_same_episodes_with_the_same_copied_steps(task, carried_out):
    actor = player(task)
    first = actor.turn(0, 9, [])
    for k in (1, 2, 4):
        again = player(task)
        carried_out.clear()
        same(again.turn(k, k, [first]), actor.turn(k, k, [first]))
        assert again.turn(k, k, [first]).copied == actor.turn(k, k, [first]).copied


def test_an_episode_that_left_the_known_path_copies_no_steps_of_the_path(task, carried_out):
    """The same action in another state is another step."""
    env = GraphRewriteEnv(task, relative, STEPS)
    recorder = Recorder(env)
    way, states = [], [task.initial]
    for _ in range(3):  # The last location of the first rule that has two.
        xfer_id = int(np.flatnonzero(states[-1].counts > 1)[0])
        way.append((xfer_id, 1))
        states.append(states[-1].apply(*way[-1]))
    recorder.known = Way(way, states)
    recorder.reset()
    left = task.initial.apply(way[0][0], 0)
    assert left.is_valid(*way[1]) and left.hash != states[1].hash
    carried_out.clear()
    recorder.step((way[0][0], 0))
    recorder.step(way[1])
    assert recorder.copied == 0 and len(carried_out) == 2
    assert env.state.hash == left.apply(*way[1]).hash != states[2].hash


def test_recalling_a_step_gives_the_same_result_without_a_rewrite(task, carried_out):
    one, other, rng = GraphRewriteEnv(task, relative, 5), GraphRewriteEnv(task, relative, 5), np.random.default_rng(0)
    one.reset()
    other.reset()
    for step in range(5):
        action = rng.permutation(one.state.valid_actions()[:-1])[0]
        taken = one.step(action)
        carried_out.clear()
        recalled = other.recall(action, one.state)
        assert not carried_out and taken[1:4] == recalled[1:4] and taken[4] == recalled[4] and taken[3] == (step == 4)
        for name, values in taken[0].items():
            assert np.array_equal(values, recalled[0][name]), name


def test_a_shard_keeps_the_number_of_copied_steps_and_refuses_impossible_numbers(task, tmp_path):
    episodes = [play_random(task, relative, 6, np.random.default_rng(k), k) for k in range(3)]
    episodes[1].copied, path = len(episodes[1]), tmp_path / "shard.npz"
    write_shard(path, episodes)
    assert [episode.copied for episode in read_shard(path)] == [0, len(episodes[1]), 0]
    with np.load(path) as archive:
        np.savez(tmp_path / "older.npz", **{name: archive[name] for name in archive if name != "copied"})
    assert [episode.copied for episode in read_shard(tmp_path / "older.npz")] == [0, 0, 0]
    for nonsense in (-1, len(episodes[1]) + 1):
        episodes[1].copied = nonsense
        write_shard(path, episodes)
        with pytest.raises(RLFlowError, match="copied"):
            read_shard(path)


# -- what is learnt --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(task, tmp_path_factory):
    episodes = play_iteration(player(task), tmp_path_factory.mktemp("played"), 400, 12, (3, 2))
    return [play_random(task, relative, 15, np.random.default_rng(k), k) for k in range(4)], episodes


def of_new_steps(episodes) -> Counter:
    return Counter(x for episode in episodes for x in episode.actions[episode.copied :, 0].tolist())


def test_a_copied_step_counts_once_in_a_world_model(task, played):
    random, own = played
    model, total = fitted([*random, *own], task), of_new_steps([*random, *own])
    times = model.groundings.rules.times()
    assert sum(episode.copied for episode in own) > 30
    assert [times[x] for x in range(task.no_op)] == [total[x] for x in range(task.no_op)]
    assert len(model.costs.gains.samples) == sum(total.values()) - total[task.no_op]
    rewards = [[] for _ in model.match_classes]
    for episode, edits in zip([*random, *own], logged_edits([*random, *own]), strict=True):
        index = model.groundings.of(edits[0][0])
        steps = list(zip(ground_episode(index, edits).matches.tolist(), episode.rewards.tolist(), strict=True))
        for match, reward in steps[episode.copied :]:
            if match >= 0:
                rewards[index.match_class.values[match]].append(reward)
    rewritten = [number for number, of_class in enumerate(rewards) if of_class]
    medians = [np.median(rewards[number]) for number in rewritten]
    assert len(rewritten) > 4 and model.usual_rewards[rewritten] == pytest.approx(medians, abs=1e-5)


class Far(AnalyticCost):
    """A cost model with reach 2: an operator costs more for each sum two edges behind it."""

    reach, passes = 2, None

    def node_cost(self, graph, node):
        def readers(of):
            return [graph.nodes[n] for n in graph.consumers.get(of.outputs[0], ())]

        cost = super().node_cost(graph, node)
        sums = sum(far.op == "Add" for near in readers(node) for far in readers(near))
        return cost._replace(runtime_ps=(1 + sums) * cost.runtime_ps)


def averages(model) -> tuple[np.ndarray, ...]:
    """Return the runtimes of nodes, the runtimes by neighbourhood, z of nodes and the median class rewards."""
    of_nodes = [list(of.values()) for at_size in model.costs.nodes.values() for of in at_size.known.values()]
    around = np.concatenate([means.mean for means in model.costs.neighbourhoods])
    return np.concatenate(of_nodes), around, model.latents.rows, model.usual_rewards


def test_copied_steps_change_no_average():
    task = with_cost(task_of(signs_and_products(), SIGNS_AND_PRODUCTS), Far())
    episodes = [play_random(task, relative, 8, np.random.default_rng(k), k) for k in range(6)]
    trunk = episodes[2]
    once = averages(fitted(episodes, task))
    copied, walked = (averages(fitted([*episodes, *[replace(trunk, copied=n)] * 5], task)) for n in (len(trunk), 0))
    for of_once, of_copied, of_walked in zip(once, copied, walked, strict=True):
        assert np.allclose(of_copied, of_once, rtol=1e-9, atol=1e-12) and not np.allclose(of_walked, of_once)


def test_steps_copied_from_a_held_out_episode_are_learnt_once(task, played):
    random, own = played
    model, times = fitted([*random, *own[1:]], task), Counter(of_new_steps([*random, *own[1:]]))
    longest = max(own[1:], key=lambda episode: episode.copied)
    times.update(longest.actions[: longest.copied, 0].tolist())
    learnt = model.groundings.rules.times()
    assert [learnt[x] for x in range(task.no_op)] == [times[x] for x in range(task.no_op)]


def test_equal_episodes_without_copied_steps_all_count(task):
    same_start = [play_random(task, relative, 6, np.random.default_rng(3), k) for k in range(2)]
    total, times = of_new_steps(same_start), fitted(same_start, task).groundings.rules.times()
    assert sum(total.values()) == 2 * len(same_start[0])
    assert [times[x] for x in range(task.no_op)] == [total[x] for x in range(task.no_op)]
