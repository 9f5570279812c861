"""The best sampled episode of a training, which a policy imitates.

A rewrite that gains nothing and makes a later gain possible is seldom sampled. One such episode among thousands hardly
moves the policy, because PPO forgets each batch after its update. Self-imitation (Oh et al. 2018, arXiv:1806.05635)
keeps the best episode and raises the probability of its choices, so the next episodes are sampled around this episode.
All episodes begin at the same graph, in the dream and on the real graph, so the best return is a goal for all of them.

The episode is cut after the step with its highest cumulative reward, because the cheapest graph that an agent visits is
delivered. In the state after this step the policy learns to choose NO-OP.
"""

import numpy as np

from rlflow.common.errors import RLFlowError

PREFIX = "best_episode/"  # of the names of the arrays in a checkpoint
Steps = dict[str, np.ndarray]  # name of a tensor → its values of all steps, [T, …]


class BestEpisode:
    """The episode with the highest cumulative reward among all that were sampled so far.

    Args:
      names: the names of the tensors to keep of each step.
      stopped: for each of these tensors that depends on the choice, its value for the choice NO-OP in one environment;
        {} if the task has no NO-OP.

    Attributes:
      returned: the sum of its rewards up to the cut; 0 if no episode has gained anything yet.
      steps: the tensors of its steps up to the cut, and of NO-OP after them unless the episode ended at the cut or the
        task has no NO-OP; {} if no episode has gained anything yet.
    """

    def __init__(self, names: tuple[str, ...], stopped: Steps):
        self.names, self.stopped = names, stopped
        self.returned, self.steps = 0.0, {}

    def start(self, envs: int) -> None:
        """Forget the unfinished episodes; `envs` new episodes begin."""
        self._played: list[Steps] = []
        self._first = np.zeros(envs, np.int64)  # the number of the first step of each present episode
        self._cut = np.zeros(envs, np.int64)  # the number of steps before the highest cumulative reward
        self._sum, self._highest = np.zeros(envs), np.zeros(envs)

    def add(self, step: Steps, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Add one step of all environments, and keep an episode that ends with it if it is the best one.

        Args:
          step: the tensors of the step, [envs, …] each.
          rewards: float [envs].
          ended: bool [envs], True where the episode ended with this step.
        """
        self._played.append({name: step[name] for name in self.names})
        self._sum += rewards
        higher = self._sum > self._highest
        self._highest = np.where(higher, self._sum, self._highest)
        self._cut = np.where(higher, len(self._played) - self._first, self._cut)
        best = int(np.argmax(np.where(ended, self._highest, -np.inf)))
        if ended[best] and self._highest[best] > self.returned:
            self.returned, self.steps = float(self._highest[best]), self._until_cut(best)
        self._first[ended] = len(self._played)
        for array in (self._cut, self._sum, self._highest):
            array[ended] = 0

    def keep(self, steps: Steps, returned: float) -> None:
        """Keep given steps if they are better than the best episode so far.

        Args:
          steps: the tensors of each step, [T, …] each, with NO-OP last if the task has it.
          returned: the sum of the rewards.
        """
        if returned > self.returned:
            self.returned, self.steps = returned, steps

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the episode as arrays for a checkpoint, by name."""
        steps = {f"{PREFIX}{name}": values for name, values in self.steps.items()}
        return {f"{PREFIX}return": np.float64(self.returned), **steps}

    def restore(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Set the episode from the arrays of a checkpoint, and return the other arrays.

        Raises:
          RLFlowError: the names of the arrays are wrong, or their numbers of steps differ.
        """
        own = {name.removeprefix(PREFIX): values for name, values in arrays.items() if name.startswith(PREFIX)}
        returned = float(own.pop("return", 0.0))
        lengths = {values.shape[:1] for values in own.values()}
        if len(lengths) > 1 or set(own) != set(self.names if returned > 0 else ()):
            raise RLFlowError("the best episode of the checkpoint is damaged. Train the controller again")
        self.returned, self.steps = returned, own
        return {name: values for name, values in arrays.items() if not name.startswith(PREFIX)}

    def _until_cut(self, env: int) -> Steps:
        """Return the steps of the current episode of one environment up to the cut.

        If the episode goes on after the cut and the task has NO-OP, a last step is added. This step has the observation
        of the state after the cut, and NO-OP as its choice.
        """
        first, cut = int(self._first[env]), int(self._cut[env])
        played = self._played[first : first + cut + bool(self.stopped)]
        steps = {name: np.stack([step[name][env] for step in played]) for name in self.names}
        if len(played) > cut:
            for name, value in self.stopped.items():
                steps[name][cut] = value
        return steps
