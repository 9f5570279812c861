"""The class of the world model "edits", which predicts the nodes that a rewrite removes and adds, and its files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from rlflow.collect.edits import FORMAT as EDITS_FORMAT
from rlflow.collect.edits import Edit, unpack
from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, read_json, write_arrays, write_json
from rlflow.common.task import EncodingSpec
from rlflow.env.state import RewriteState
from worldmodel.base import Replay
from worldmodel.edits import learned_rules
from worldmodel.edits.cost_model import REACH, CostModel, NodeCosts
from worldmodel.edits.grounding_index import GroundingIndex, Groundings
from worldmodel.edits.imagination import EditsImagination, EditsObserver, Replayer
from worldmodel.edits.learned_rules import DreamtMatch, LearnedRules
from worldmodel.edits.node_values import Latents
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.edits.rule_learning import evenly_drawn
from worldmodel.edits.searchable_dream import SearchableDream, SearchableState
from worldmodel.edits.simulator import Simulator
from worldmodel.spaces import Z_BOUND
from worldmodel.train_and_load import checked_array, read_description, write_description
from worldmodel.world_model_options import EditsConfig

# Half-widths of the central 50 % and 90 % regions of a Gaussian, in standard deviations.
MIDDLE = {"coverage_50": 0.6745, "coverage_90": 1.6449}
CALIBRATION_STEPS = 512  # largest number of steps that `calibration` predicts
FORMAT = 10  # version of the format of the saved files
# Tolerance added to the central regions in `calibration`, relative to the mean absolute reward. Without this tolerance,
# rounding errors would put the reward of an exact prediction with standard deviation 0 outside its region.
EXACT = 1e-6


class EditsWorldModel:
    """A world model that consists of learned rewrite rules and learned runtimes of nodes.

    `worldmodel.base.WorldModel` describes the further attributes.

    Attributes:
      groundings: the learned rules and, for each initial graph met so far, its grounding.
      costs: the runtimes of nodes and the gains of rewrites.
      latents: the latent vectors of operator signatures; None in a subclass that encodes graphs in another way.
      rewards: the conversion of saved runtime to rewards.
      best_trajectories: {runtime of a training graph in ps: packed edits}. The edits lead from the initial state of
        this graph to its cheapest state in the training data (see `rlflow.collect.edits.unpack`).
    """

    hidden = 0  # size of the recurrent state, which is not needed because an imagined state is a complete graph
    arrays_file = "tables.npz"  # the file of the saved arrays
    digest = None

    def __init__(
        self, spec: EncodingSpec, config: EditsConfig, rules: LearnedRules, costs: CostModel, latents: Latents | None,
        rewards: RewardScales, usual_rewards: np.ndarray, best_trajectories: dict[int, np.ndarray],
    ):  # fmt: skip
        self.spec, self.config, self.latent = spec, config, config.latent
        self.groundings = Groundings(rules, spec.n_rules)
        self.costs, self.latents, self.rewards = costs, latents, rewards
        self.match_classes, self.usual_rewards = self.groundings.match_classes.xfer_ids, usual_rewards
        self.best_trajectories = best_trajectories

    def observer(self) -> EditsObserver:
        return EditsObserver(self)

    def imagine(self, start: RewriteState, n: int) -> EditsImagination:
        return EditsImagination(self, start, n)

    def searchable(self, start: RewriteState, uncertainty_limit: float) -> SearchableState:
        """Return the imagined state that equals a real state and that `rlflow.search` can explore.

        Args:
          start: the real state.
          uncertainty_limit: a step with a higher uncertainty is not among the matches, or returns the state unchanged.
        """
        return SearchableDream(self, start, uncertainty_limit).start

    def observe(self, state: RewriteState, edit: Edit) -> None:
        """Receive a real state and the edit that led to this state; do nothing.

        A subclass overrides this method to read properties of the state that the edit does not contain.

        Args:
          state: the real state.
          edit: the edit from the previous state of the episode, or `first_edit(state)` at its start.
        """

    def add_classes(self, rewards: Mapping[DreamtMatch, float]) -> None:
        """Add match classes that first appear in imagined rollouts, and discard all groundings made so far.

        Args:
          rewards: {(pattern number, signature) of a new match class: its predicted reward}.
        """
        usual = dict(zip(self.groundings.match_classes.table, self.usual_rewards.tolist(), strict=True))
        rules = self.groundings.rules
        rules.dreamt.update(dict.fromkeys(rewards))
        usual |= {(rules.patterns[number].pattern.xfer_id, number, of): gain for (number, of), gain in rewards.items()}
        self.groundings = Groundings(rules, self.spec.n_rules)
        self.match_classes = self.groundings.match_classes.xfer_ids
        self.usual_rewards = np.array([usual[of_class] for of_class in self.groundings.match_classes.table], np.float32)

    @property
    def sees_costs(self) -> bool:
        """True if the model's costs of nodes are the runtimes that real states show, and not costs solved from rewards.

        A dream starts from the costs of the real state only if this is True.
        """
        return self.config.supervision == "nodes" and self.rewards.of_runtime

    def simulator(
        self, index: GroundingIndex, nodes: Sequence[np.ndarray], costs: Sequence[np.ndarray] = ()
    ) -> Simulator:
        """Return a simulator of a batch of states of one grounding.

        Args:
          index: the grounding.
          nodes: for each state, int64 [k], the grounding's numbers of its nodes.
          costs: for each state, float64 [k], the real runtimes of its nodes (ps); () to predict them.
        """
        return Simulator(self, index, nodes, costs if self.sees_costs else ())

    def replay(self, episodes: Sequence[Episode], rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replay:
        """Predict stretches of recorded episodes open loop; see `worldmodel.base.WorldModel.replay`.

        If the match of a recorded action is absent from the predicted state, the state stays the same. The reward is
        then predicted from the median gain of the rule, and the uncertainty is 1.
        """
        replayer = self.replayer(np.asarray(rows), np.asarray(starts), horizon)
        replayer.replay(episodes)
        return replayer.result

    def replayer(self, rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replayer:
        """Return a replay of stretches of episodes; see `Replayer` for the arguments."""
        return Replayer(self, rows, starts, horizon)

    def calibration(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Measure how often the rewards of single steps from real states lie in the predicted central regions.

        Args:
          episodes: recorded episodes; at most CALIBRATION_STEPS of their steps are predicted, at equal distances.

        Returns:
          {"coverage_50": share of rewards in the central 50 % of the predicted Gaussian, "coverage_90": share in 90 %}.
        """
        lengths = [len(episode) for episode in episodes]
        rows, starts = np.repeat(np.arange(len(episodes)), lengths), np.concatenate([np.arange(n) for n in lengths])
        chosen = evenly_drawn(np.arange(len(rows)), CALIBRATION_STEPS)
        replayer = self.replayer(rows[chosen], starts[chosen], 1)
        replayer.replay(episodes)
        rewards = np.concatenate([episode.rewards for episode in episodes])[chosen]
        error, spread = np.abs(replayer.result.rewards[:, 0] - rewards), replayer.spread[:, 0]
        slack = EXACT * np.abs(rewards).mean()
        return {name: float((error <= width * spread + slack).mean()) for name, width in MIDDLE.items()}

    def bounded(self, sums: np.ndarray) -> np.ndarray:
        """Return latent states z, float32, from sums of the latent vectors of nodes, clipped to ±Z_BOUND."""
        return np.clip(sums, -Z_BOUND, Z_BOUND).astype(np.float32)

    # -- files -------------------------------------------------------------------------------------

    @property
    def files(self) -> tuple[str, ...]:
        return "learnt.json", self.arrays_file

    def save(self, folder: Path | str) -> None:
        """Write model.json, learnt.json and tables.npz. Equal models give equal bytes."""
        write_description(folder, self.config, self.spec)
        nodes = [[sizes, of_nodes.to_json()] for sizes, of_nodes in self.costs.nodes.items()]
        write_json(Path(folder) / "learnt.json", self.learnt() | {"costs": nodes, "files": FORMAT})
        write_arrays(Path(folder) / self.arrays_file, self.costs.arrays() | self.latents.arrays() | self.arrays())

    def learnt(self) -> dict:
        """Return the learned rules as JSON values; `restored_parts` reads them."""
        return {"format": EDITS_FORMAT, "rules": learned_rules.rules_to_json(self.groundings.rules)}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return {name: array} of everything that is saved as arrays, without the arrays of `costs` and `latents`."""
        scales = np.array(sorted(self.rewards.scales.items()), np.float64)
        kind = np.array([self.rewards.level, self.rewards.pays, self.rewards.of_runtime], np.int64)
        own = {"scales": scales, "kind": kind, "usual_rewards": self.usual_rewards}
        best = {f"best/{runtime}": edits for runtime, edits in sorted(self.best_trajectories.items())}
        return own | best

    @classmethod
    def load(cls, folder: Path | str, spec: EncodingSpec | None = None) -> Self:
        """Load a model that `save` wrote.

        Args:
          folder: the folder of the model.
          spec: the expected encoding; None accepts any encoding.

        Raises:
          RLFlowError: a file is missing or damaged, has another format, or the model's encoding differs from `spec`.
        """
        config, saved = read_description(folder, spec)
        path = Path(folder)
        try:
            model = cls._restored(config, saved, read_arrays(path / cls.arrays_file), read_json(path / "learnt.json"))
            rewards = {"usual_rewards": model.usual_rewards}
            if not np.isfinite(checked_array(rewards, "usual_rewards", np.float32, len(model.match_classes))).all():
                raise ValueError("'usual_rewards' is not finite")
            return model
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            raise RLFlowError(
                f"{folder} holds no whole world model of kind '{config.name}': {error}. Train it again"
            ) from error

    @classmethod
    def _restored(cls, config: EditsConfig, spec: EncodingSpec, arrays: dict[str, np.ndarray], learnt: dict) -> Self:
        rules, *others = restored_parts(spec, arrays, learnt, FORMAT)
        latents = Latents.of(arrays)
        if latents.offset.shape != (config.latent,) or not len(latents.keys):
            raise ValueError("its latents do not fit its options")
        nodes = {int(sizes): NodeCosts.from_json(of_nodes) for sizes, of_nodes in learnt["costs"]}
        return cls(spec, config, rules, CostModel.of(nodes, arrays, REACH), latents, *others)


def restored_parts(
    spec: EncodingSpec, arrays: dict[str, np.ndarray], learnt: dict, files: int
) -> tuple[LearnedRules, RewardScales, np.ndarray, dict[int, np.ndarray]]:
    """Restore what `EditsWorldModel.arrays` and `EditsWorldModel.learnt` return.

    Args:
      spec: the encoding of the model.
      arrays: {name: array}, the saved arrays.
      learnt: the saved JSON values, with the format of the files.
      files: the expected format of the files.

    Returns:
      The arguments (rules, rewards, usual_rewards, best_trajectories) of `EditsWorldModel`; `usual_rewards` is not
      checked.

    Raises:
      ValueError, KeyError, TypeError: the values have another format or do not fit together.
    """
    if learnt["format"] != EDITS_FORMAT:
        raise ValueError(f"its episodes have edits of format {learnt['format']}, not {EDITS_FORMAT}")
    if learnt.get("files") != files:
        raise ValueError(f"its files are of format {learnt.get('files', 1)}, not {files}")
    rules = learned_rules.rules_from_json(learnt["rules"])
    rewards = _rewards(arrays)
    if not {learned.pattern.xfer_id for learned in rules.patterns} <= set(range(spec.n_rules)):
        raise ValueError("its rules do not fit its encoding")
    best = {runtime: checked_array(arrays, f"best/{runtime}", np.int64, None) for runtime in rewards.scales}
    for edits in best.values():
        unpack(edits)  # raises an error if the edits are damaged
    return rules, rewards, arrays["usual_rewards"], best


def _rewards(arrays: dict[str, np.ndarray]) -> RewardScales:
    table = checked_array(arrays, "scales", np.float64, None, 2)
    if not len(table) or not np.isfinite(table).all() or table[:, 0].min() <= 0:  # a scale may be 0: nothing gained
        raise ValueError("'scales' has a runtime that is not positive, or a number that is not finite")
    scales = {int(runtime): float(scale) for runtime, scale in table}
    return RewardScales(scales, *checked_array(arrays, "kind", np.int64, 3).astype(bool).tolist())
