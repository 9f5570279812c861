"""The real environment as a controller sees it: through the encoder and the recurrent state."""

import gymnasium
import numpy as np

from rlflow.graph.features import GraphArrays
from worldmodel import spaces
from worldmodel.world_model import WorldModel


class LatentEnv(gymnasium.Wrapper):
    """Wears the dream's spaces over a real environment (docs/ARCHITECTURE.md).

    z is the encoding of the real graph; h comes from the same cell that dreams, run on each real state and action.
    An invalid action changes nothing, h included.
    """

    def __init__(self, env: gymnasium.Env, model: WorldModel):
        super().__init__(env)
        self.model = model
        self.observation_space = spaces.observation_space(model.spec, model.config.latent, model.config.hidden)
        self.action_space = spaces.action_space(model.spec)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._state = self.model.initial_state(1)
        self._see(observation)
        return self._observe(), info

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        actions = np.asarray(action)[None]
        valid = bool(self._masks["location_masks"][tuple(actions[0])])
        observation, reward, terminated, truncated, info = self.env.step(action)
        if valid:
            self._state = self.model.step(self._z, self._counts, actions, self._state).state
            self._see(observation)
        return self._observe(), float(reward), terminated, truncated, info

    def action_masks(self) -> np.ndarray:
        """bool [N + 1 + L], as sb3-contrib wants it."""
        observation = self._observe()
        return spaces.flat_action_masks(observation["xfer_mask"], observation["location_masks"])

    def _see(self, observation: dict) -> None:
        self._z = self.model.encode([graph_from_observation(observation)])
        self._masks = {key: observation[key].copy() for key in ("xfer_mask", "location_masks")}
        self._counts = observation["location_masks"][None, :-1].sum(axis=-1, dtype=np.int32)

    def _observe(self) -> dict[str, np.ndarray]:
        masks = {key: mask.copy() for key, mask in self._masks.items()}
        return {"z": self._z[0].copy(), "h": self._state.h[0].copy(), **masks}


def graph_from_observation(observation: dict) -> GraphArrays:
    """Takes the padding off a real observation."""
    n_node, n_edge = int(observation["n_node"][0]), int(observation["n_edge"][0])
    return GraphArrays(
        ops=observation["ops"][:n_node], nodes=observation["nodes"][:n_node], edges=observation["edges"][:n_edge],
        senders=observation["senders"][:n_edge], receivers=observation["receivers"][:n_edge],
        globals=observation["globals"],
    )
