"""An environment with one number as the action, so that one mask says exactly which actions are valid.

    import gymnasium, rlflow
    env = gymnasium.make("rlflow/GraphRewriteFlat-v0", model="tiny_resnet18", max_locations=8)
    mask = env.get_wrapper_attr("action_masks")()      # bool [N · L + 1], as sb3-contrib's MaskablePPO asks for it

An agent with the action (rule, location) of `StepEnv` needs the mask of the locations *of the chosen rule*. Libraries
such as sb3-contrib mask the two parts independently, so their agents choose locations that their rule lacks. With one
number for the pair, one mask allows exactly the valid actions. docs/DESIGN_NOTES.md explains the encoding.
"""

import gymnasium
import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.env.step import StepEnv

MAX_ACTIONS = 2**20  # the mask of every step, and the last layer of a network, have this many entries at most


class FlatActions(gymnasium.Wrapper):
    """A `StepEnv` whose action is one number, `Discrete(N · L + 1)`, for N action types with at most L choices each.

    Action `rule · L + location` is the choice (rule, location), and the last action, N · L, is NO-OP. Observations,
    rewards and `info` come unchanged from the environment inside. `unwrapped` is that environment, with its `state`.

    Args:
      env: the environment, whose attribute `encoding_spec` has N and L.

    Raises:
      RLFlowError: there are more than MAX_ACTIONS actions.
    """

    def __init__(self, env: StepEnv):
        super().__init__(env)
        spec = env.encoding_spec
        self.locations, self.no_op = spec.max_locations, spec.n_rules * spec.max_locations
        if self.no_op >= MAX_ACTIONS:
            raise RLFlowError(
                f"{spec.n_rules} rules with {spec.max_locations} locations each are more than {MAX_ACTIONS} actions. "
                "Lower max_locations (8 is a good start)"
            )
        self.action_space = gymnasium.spaces.Discrete(self.no_op + 1)

    def step(self, action):
        return self.env.step(self.pair_of(action))

    def action_masks(self) -> np.ndarray:
        """Return bool [N · L + 1]: True for exactly the valid actions of the present state."""
        valid = self.env.location_masks()
        return np.append(valid[:-1].reshape(-1), valid[-1, 0]).astype(bool)

    def pair_of(self, action: int) -> tuple[int, int]:
        """Return the choice (rule, location) that an action stands for; NO-OP is (N, 0)."""
        rule, location = divmod(int(action), self.locations)
        return rule, location

    def action_of(self, rule: int, location: int) -> int:
        """Return the action that stands for the choice (rule, location)."""
        return rule * self.locations + location
