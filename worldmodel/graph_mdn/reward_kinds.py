"""The kinds of rewards that "graph-mdn" learns, recognised from the data.

1. *Runtime*: the reward is proportional to the runtime saved by a step or by all steps so far (`RewardScales.learn`).
2. *Sum over nodes*: the reward is the decrease of another quantity that is a sum over nodes, such as the weighted
   runtime and memory accesses of equation 3 of RLFlow. The value of each node is solved from the rewards of steps.
3. *Any other*: for example a measured latency whose reward belongs to several steps together. The recurrent state
   predicts the whole reward, and the estimated runtime is one of its inputs. The median reward of a match class is the
   estimated runtime that the class saves, in percent of the initial runtime.
"""

from collections.abc import Sequence

from rlflow.collect.episodes import Episode
from worldmodel.base import UnpredictableRewardError
from worldmodel.edits.cost_training import PER_REWARD, with_rewards_as_gains
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.edits.rule_learning import TrainingSet


def learn_rewards(
    episodes: Sequence[Episode], training: TrainingSet, n_rules: int, is_recurrent: bool
) -> tuple[RewardScales, TrainingSet]:
    """Recognise the kind of the rewards, and return the conversion of gains to rewards and the training set to use.

    Args:
      episodes: the training episodes.
      training: the same episodes as a training set.
      n_rules: N, the xfer_id of NO-OP.
      is_recurrent: True if the model has a recurrent state.

    Returns:
      (conversion, training set). The gains of the training set are rewards if they are sums over nodes.

    Raises:
      UnpredictableRewardError: the rewards are of the third kind, and the model has no recurrent state.
    """
    try:
        return RewardScales.learn(episodes, n_rules), training
    except UnpredictableRewardError:
        runtimes = {training.initial_runtime(index) for index in training.by_grounding}
    if (summed := with_rewards_as_gains(training)) is not None:
        return RewardScales(dict.fromkeys(runtimes, 1 / PER_REWARD), level=False, of_runtime=False), summed
    if not is_recurrent:
        raise UnpredictableRewardError(
            "the rewards are no sum over nodes, and only the recurrent state predicts such rewards. Set "
            "world_model.graph-mdn.hidden above 0, or use world_model.name=mdn-rnn"
        )
    return RewardScales({runtime: 100.0 / runtime for runtime in runtimes}, level=False, pays=False), training
