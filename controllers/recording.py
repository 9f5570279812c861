"""A controller's episodes on the real environment, as world models take them."""

from collections.abc import Iterator
from itertools import count

import gymnasium

from controllers.evaluation import rollout
from rlflow.env import GraphRewriteEnv
from rlflow.episodes import Episode
from rlflow.rollouts import record
from worldmodel.base import WorldModel
from worldmodel.latent_env import LatentEnv


class Recorder(gymnasium.Wrapper):
    """Worn below LatentEnv, where locations have the environment's own numbers. Keeps the valid steps of the episode.

    Attributes: actions, and states: the RewriteStates that they lead from and to.
    """

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        found = self.env.reset(seed=seed, options=options)
        self.actions, self.states = [], [self.env.unwrapped.state]
        return found

    def step(self, action):
        found = self.env.step(action)
        if found[-1]["valid"]:
            self.actions.append((int(action[0]), int(action[1])))
            self.states.append(self.env.unwrapped.state)
        return found


def recorded(controller, env: GraphRewriteEnv, model: WorldModel, seed: int) -> Iterator[Episode]:
    """Episodes without end: the greedy one first, then sampled ones. Episode k depends on (seed, k) alone."""
    recorder = Recorder(env)
    latent = LatentEnv(recorder, model)
    for k in count():
        rollout(controller, latent, greedy=k == 0, seed=seed + k)
        yield record(env.task, env.reward, recorder.states, recorder.actions, k)
