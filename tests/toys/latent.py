"""Small environments with the latent spaces, on which a learner must learn within seconds."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from worldmodel.spaces import MatchClassCounts

H = 3


def latent_spaces(z, n, locations, h=H, match_classes=None, usual_rewards=None, stop=True):
    """Return the observation space and the action space for n rules and NO-OP.

    By default each rule has one match class, of median class reward 0.
    """
    match_classes = np.array(np.arange(n) if match_classes is None else match_classes, np.int32)
    usual_rewards = np.array(np.zeros(len(match_classes)) if usual_rewards is None else usual_rewards, np.float32)
    fewest, most = (np.append(np.full(n, count, np.int32), np.int32(stop)) for count in (0, locations))
    observation = gym.spaces.Dict(
        {
            "z": gym.spaces.Box(-np.inf, np.inf, (z,), np.float32),
            "h": gym.spaces.Box(-np.inf, np.inf, (h,), np.float32),
            "counts": gym.spaces.Box(fewest, most, dtype=np.int32),
            "class_counts": MatchClassCounts(match_classes, usual_rewards, locations),
            "step": gym.spaces.Box(0, 1000, (), np.int32),
        }
    )
    return observation, gym.spaces.MultiDiscrete([n + 1, locations])


class Toy(gym.Env):
    """A base class: NO-OP ends an episode, and an invalid action is an error, since no controller may choose one."""

    Z, N, L, STEPS, H, STOP = 1, 1, 1, 1, H, True

    def __init__(self):
        self.observation_space, self.action_space = latent_spaces(self.Z, self.N, self.L, self.H, stop=self.STOP)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.cost = 0, 10.0
        self.begin()
        return self.observe(), {"cost": self.cost}

    def step(self, action):
        xfer_id, location = (int(x) for x in action)
        assert 0 <= location < self.shown()[xfer_id], (xfer_id, location)
        reward, terminated = (0.0, True) if xfer_id == self.N else self.play(xfer_id, location)
        self.t, self.cost = self.t + 1, self.cost - reward
        return self.observe(), reward, terminated, self.t >= self.STEPS, {"cost": self.cost}

    def observe(self):
        return {
            "z": self.latent().astype(np.float32), "h": np.zeros(self.H, np.float32), "counts": self.shown(),
            "class_counts": self.class_counts(), "step": np.array(self.t, np.int32),
        }  # fmt: skip

    def class_counts(self):
        """Return the counts of match classes; each rule has one class."""
        return self.shown()[:-1]

    def shown(self):
        """Return the counts of all rules and of NO-OP, int32 [N + 1]."""
        return np.append(self.counts(), self.STOP).astype(np.int32)


class Identity(Toy):
    """An environment whose z names a rule (one-hot) and a location (as a fraction and one-hot); this action earns 1."""

    Z, N, L, STEPS = 11, 4, 6, 8

    def begin(self):
        self.xfer_id = int(self.np_random.integers(self.N))
        self._counts = self.np_random.integers(0, self.L + 1, self.N)  # A count of 0 makes the rule invalid.
        self._counts[self.xfer_id] = self.np_random.integers(2, self.L + 1)
        self.location = int(self.np_random.integers(self._counts[self.xfer_id]))

    def counts(self):
        return self._counts

    def latent(self):
        fraction = self.location / (self._counts[self.xfer_id] - 1)
        return np.concatenate([[fraction], np.eye(self.N)[self.xfer_id], np.eye(self.L)[self.location]])

    def play(self, xfer_id, location):
        reward = 0.5 * (xfer_id == self.xfer_id) + 0.5 * (xfer_id == self.xfer_id and location == self.location)
        self.begin()
        return reward, False


class Memoryless(Identity):
    """The identity task as seen by a world model without memory: h is empty."""

    H = 0


class Stopless(Identity):
    """The identity task without NO-OP."""

    STOP = False


class Sacrifice(Toy):
    """An environment in which only a first step that loses 1 leads to a second step that wins 3; a first win of 0.2
    ends it."""

    Z, N, L, STEPS = 2, 3, 4, 5

    def begin(self):
        self.state = 0

    def counts(self):
        return np.array([2, 3, 0] if self.state == 0 else [0, 0, 4])

    def latent(self):
        return np.eye(2)[self.state]

    def play(self, xfer_id, location):
        if xfer_id == 0:
            return 0.2, True
        if xfer_id == 1:
            self.state = 1
            return -1.0, False
        return 3.0, True


def vector(task, autoreset_mode=AutoresetMode.SAME_STEP):
    """Return the `make_env` of an environment: a function from the number of copies to a vector environment."""
    return lambda n: SyncVectorEnv([task] * n, autoreset_mode=autoreset_mode)


def make(controller, config, task, seed=0):
    return controller(config, *latent_spaces(task.Z, task.N, task.L, task.H, stop=task.STOP), seed)
