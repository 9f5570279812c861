from itertools import islice

import numpy as np
import pytest

from controllers.evaluation import best_of
from controllers.random import RandomConfig, RandomController
from controllers.recording import demonstrate, recorded
from rlflow.collect.rollouts import play_random
from rlflow.env.graph_rewrite import GraphRewriteEnv
from rlflow.env.rewards import relative
from rlflow.optimisation.candidates import follow
from tests.toys.systems import fitted
from tests.toys.tiny import tiny_task
from worldmodel import spaces
from worldmodel.latent_env import LatentEnv

STEPS = 6


class Backwards:
    """A world model that knows nothing and numbers the locations of a rule from the last to the first."""

    latent, hidden = 1, 1

    def __init__(self, task):
        self.spec = task.encoding_spec
        self.match_classes = np.arange(self.spec.n_rules, dtype=np.int32)
        self.usual_rewards = np.zeros(self.spec.n_rules, np.float32)

    def observer(self):
        return BackwardsObserver()


class BackwardsObserver:
    z = h = np.zeros(1, np.float32)

    def begin(self, state):
        self.counts = self.class_counts = state.counts

    def real_action(self, action):
        return int(action[0]), int(self.counts[action[0]] - 1 - action[1])

    model_action = real_action

    def follow(self, action, state):
        self.counts = self.class_counts = state.counts


class Script:
    """A controller that plays given actions, and then NO-OP."""

    def __init__(self, actions, no_op):
        self.actions, self.no_op = list(actions), no_op

    def act(self, observation, greedy, rng):
        return np.array([self.actions.pop(0) if self.actions else (self.no_op, 0)])


@pytest.fixture(scope="module")
def task():
    return tiny_task()


def environment(task) -> GraphRewriteEnv:
    return GraphRewriteEnv(task, relative, STEPS)


def same(one, other) -> None:
    for name in ("actions", "rewards", "terminated", "truncated", "costs", "counts", "edits"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    for left, right in zip(one.graphs, other.graphs, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_recorded_episode_equals_the_random_play_episode_of_the_same_actions(task):
    """The controller counts locations backwards, and the recorded episode counts them as the environment does."""
    episode = play_random(task, relative, STEPS, np.random.default_rng(1))
    counts = episode.counts[:-1]
    script = [(x, k if x == task.no_op else counts[t, x] - 1 - k) for t, (x, k) in enumerate(episode.actions)]
    result = next(recorded(Script(script, task.no_op), environment(task), Backwards(task), seed=0))
    assert np.any(episode.actions[:, 1] != np.array(script)[:, 1])
    same(result, episode)


def test_no_op_ends_an_episode(task):
    stopped = next(recorded(Script([], task.no_op), environment(task), Backwards(task), 0))
    assert len(stopped) == 1 and stopped.terminated.all() and not stopped.truncated.any()


def test_a_recorded_episode_leaves_out_invalid_actions(task):
    """The environment punishes the invalid action and keeps its state; the recorded episode leaves the action out."""
    first = np.flatnonzero(task.initial.counts)[0]
    script = [(np.flatnonzero(task.initial.counts == 0)[0], 0), (first, task.initial.counts[first] - 1)]
    result = next(recorded(Script(script, task.no_op), environment(task), Backwards(task), 0))
    assert result.actions.tolist() == [[first, 0], [task.no_op, 0]]
    assert result.rewards.min() > -100


def test_a_seed_repeats_its_episodes_and_each_episode_differs(task):
    model = Backwards(task)
    observation = spaces.observation_space(model)

    def some():
        controller = RandomController(RandomConfig(), observation, spaces.action_space(model.spec))
        return list(islice(recorded(controller, environment(task), model, seed=3), 3))

    once, twice = some(), some()
    for one, other in zip(once, twice, strict=True):
        same(one, other)
    assert [episode.index for episode in once] == [0, 1, 2]
    assert len({episode.actions.tobytes() for episode in once}) == 3


def test_the_best_sample_reaches_its_cost_when_replayed_on_the_real_graph(task):
    """Replay the actions of the best sample on the real graph, as the delivery of a result does."""
    model = Backwards(task)
    controller = RandomController(RandomConfig(), spaces.observation_space(model), spaces.action_space(model.spec))
    best = best_of([controller], LatentEnv(environment(task), model), samples=20, seed=3)
    assert best.prefix > 1
    assert follow(task, best.actions).runtime_ms == best.cost < task.initial.runtime_ms


class Watched:
    """A controller that keeps what it is to imitate."""

    def imitate_first(self, observations, actions, returned):
        self.given = observations, actions, returned


def test_a_demonstration_is_the_best_part_of_the_best_episode_as_the_controller_would_have_seen_it(task):
    """Play the demonstrated actions in the latent environment and compare the observations."""
    episodes = [play_random(task, relative, STEPS, np.random.default_rng(k), k) for k in range(20)]
    model, controller = fitted(episodes, task), Watched()
    demonstrate(controller, episodes, environment(task), model)
    observations, actions, returned = controller.given
    returns = [float(np.cumsum(episode.rewards).max()) for episode in episodes]
    best = episodes[int(np.argmax(returns))]
    assert returned == pytest.approx(max(returns), abs=1e-5) and 2 < len(actions) <= STEPS + 1
    env = LatentEnv(environment(task), model)
    seen, _ = env.reset()
    for step, action in enumerate(actions):
        for name, values in observations.items():
            np.testing.assert_array_equal(values[step], seen[name])
        seen, *_, info = env.step(action)
        expected = [task.no_op, 0] if step == len(actions) - 1 else best.actions[step].tolist()
        assert list(info["action"]) == expected
    assert env.unwrapped.state.objective / 1e9 == pytest.approx(best.costs.min())


def test_nothing_is_demonstrated_if_no_episode_gained(task):
    losing = [play_random(task, relative, 1, np.random.default_rng(k), k) for k in range(40)]
    losing = [episode for episode in losing if episode.rewards.sum() <= 0]
    controller = Watched()
    demonstrate(controller, losing, environment(task), Backwards(task))
    assert losing and not hasattr(controller, "given")
