"""The training of "graph-mdn": the match networks, the node network and the latent state, then the recurrent state."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Event, Lock

import tensorflow as tf

from rlflow.collect.edits import SignatureFeatures
from rlflow.collect.episodes import Episode, interactions_of
from rlflow.common.errors import RLFlowError
from rlflow.common.task import EncodingSpec
from worldmodel.edits.class_rewards import add_dreamt_classes, learn_class_rewards, with_predicted_rewards
from worldmodel.edits.cost_training import learn_costs, with_rewards_as_gains, with_solved_costs
from worldmodel.edits.logged_episodes import logged_edits, repeated_steps
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.edits.rule_learning import TrainingSet, learn_rules
from worldmodel.edits.training import best_trajectories
from worldmodel.graph_mdn import training_batches
from worldmodel.graph_mdn.episode_network import SequenceBatches, episode_loss, fit_rests, sequence_signature
from worldmodel.graph_mdn.graph_latents import LATENT_BATCH, LatentBatches, latent_loss
from worldmodel.graph_mdn.imagination import predicted_sequences
from worldmodel.graph_mdn.model import GraphMDNWorldModel
from worldmodel.graph_mdn.network_inputs import SignatureTable
from worldmodel.graph_mdn.neural_costs import CostLaws
from worldmodel.graph_mdn.reward_kinds import learn_rewards
from worldmodel.graph_mdn.training_batches import (
    SIGNATURES,
    STATES_AT_ONCE,
    Examples,
    MatchBatches,
    NodeBatches,
    fit_laws,
    fit_node_statistics,
    match_loss,
    node_loss,
    single_nodes,
    whole_graphs,
)
from worldmodel.train_and_load import Trained, prepare_tensorflow, split_episodes, training_description
from worldmodel.trainer import LOG_EVERY, ArrayCheckpoint, Log, Metrics, Trainer, shown_on
from worldmodel.weights import Descent, module_arrays, restore_arrays
from worldmodel.world_model_options import GraphMDNConfig

LEAST_TO_SPLIT = 8  # fewer training episodes are not split
AT_ONCE = 2  # networks that are trained at once, each in a thread

Descend = Callable[[], dict[str, float]]  # a training, which returns the last losses


def train(
    config: GraphMDNConfig, spec: EncodingSpec, source: Sequence[Episode] | Callable, folder: Path | str, seed: int,
    log: Log | None = None, progress=None,
) -> Trained:  # fmt: skip
    """Train and save the model; see `worldmodel.train_and_load.train` for the arguments.

    Each network has its own checkpoint in the folder, from which an interrupted training resumes.
    `Trained.results` contains these entries:

    - "interactions": the number of real steps in the episodes.
    - "match": the last losses of the last match network.
    - "node": the last losses of the node network.
    - "latent": the last losses of the network that encodes graphs.
    - "episode": the last losses of the network with the recurrent state, if `config.hidden` is above 0.
    """
    prepare_tensorflow(seed, config.threads)
    episodes, held_out = split_episodes(source, config.holdout, seed)
    training, apart = calibration_episodes(config, episodes, seed)
    learnt, part, rewards = training_sets(config, spec, episodes, training)
    usual_rewards, rewritten = learn_class_rewards(learnt, rewards)
    memory = learnt.groundings.rules, learn_costs(learnt, spec.n_rules)
    model = GraphMDNWorldModel(
        spec, config, memory[0], observed(episodes), memory[1], CostLaws.unknown(), rewards, usual_rewards,
        best_trajectories(learnt),
    )
    if apart:
        model.remember(part.groundings.rules, learn_costs(part, spec.n_rules))
    networks = _Networks(model, Path(folder), training_description(config, spec, episodes, seed), seed, log, progress)
    results = {"interactions": interactions_of(source)} | networks.of_graphs(part)
    if apart:
        logs = logged_edits(apart)
        model.groundings.rules.calibrate(learn_rules(apart, logs, repeated_steps(apart, logs)))
    if config.hidden:
        results["episode"] = networks.episodes([*training, *apart], len(apart))
    if apart:
        model.remember(*memory)
    model.follow_episodes()
    model.usual_rewards, has_own = with_predicted_rewards(model, learnt, rewritten)
    add_dreamt_classes(model, learnt, has_own)
    model.save(folder)
    return Trained(model, held_out, results)


def training_sets(
    config: GraphMDNConfig, spec: EncodingSpec, episodes: Sequence[Episode], some: Sequence[Episode]
) -> tuple[TrainingSet, TrainingSet, RewardScales]:
    """Return (training set of all episodes, training set of some of them, conversion of gains to rewards).

    Raises:
      RLFlowError: nothing was rewritten in the second set, or its rewards are of another kind than all rewards.
    """
    learnt = TrainingSet.of(episodes, spec.n_rules)
    part = TrainingSet.of(some, spec.n_rules) if len(some) < len(episodes) else learnt
    if not Examples.of(part.groundings.rules).rewritten:
        raise RLFlowError("nothing was rewritten in these episodes, so 'graph-mdn' learns nothing. Collect more")
    is_split = part is not learnt
    rewards, learnt = learn_rewards(episodes, learnt, spec.n_rules, config.hidden > 0)
    if config.supervision == "scalar" and rewards.of_runtime:
        learnt, part = with_solved_costs(learnt), with_solved_costs(part) if is_split else None
    elif is_split and not rewards.of_runtime:
        part = with_rewards_as_gains(part)
        if part is None:
            raise RLFlowError("costs of nodes explain the rewards of all episodes, but not of a part. Collect more")
    return learnt, part if is_split else learnt, rewards


def calibration_episodes(
    config: GraphMDNConfig, episodes: Sequence[Episode], seed: int
) -> tuple[list[Episode], list[Episode]]:
    """Split the training episodes into (episodes for all networks, episodes for calibration and the recurrent state).

    The errors of predictions show only on episodes from which the networks and the recalled data learned nothing. Only
    the choice of possible effects contains these episodes. After the training the model also recalls them. Fewer than
    LEAST_TO_SPLIT episodes are not split, and a model without a recurrent state needs no split.

    Args:
      config: the options of the model.
      episodes: the training episodes.
      seed: the seed of the training.
    """
    if not config.hidden or not config.calibration or len(episodes) < LEAST_TO_SPLIT:
        return list(episodes), []
    return split_episodes(episodes, config.calibration, seed + 1)


def observed(episodes: Sequence[Episode]) -> SignatureTable:
    """Return the table of the features of all signatures in the episodes.

    Raises:
      RLFlowError: an episode has no features of signatures.
    """
    result = SignatureTable()
    seen: list[SignatureFeatures] = []
    for episode in episodes:
        if episode.signatures is None:
            raise RLFlowError(
                "these episodes do not describe their operators and tensors, which the world model 'graph-mdn' needs. "
                "Collect them again"
            )
        if not any(episode.signatures is other for other in seen):  # episodes of a shard share one
            seen.append(episode.signatures)
            result.learn(episode.signatures)
    return result


class _Networks:
    """The training of the networks of a model, with a checkpoint of each network in a folder."""

    def __init__(
        self, model: GraphMDNWorldModel, folder: Path, description: dict, seed: int, log: Log | None, progress
    ):
        self.model, self.folder, self.description, self.seed = model, folder, description, seed
        self.log, self.progress, self.first = log, progress, 0
        self._showing, self._is_stopped = Lock(), Event()

    def of_graphs(self, learnt: TrainingSet) -> dict[str, dict[str, float]]:
        """Train all networks but the one with the recurrent state, at most AT_ONCE of them at once.

        No network depends on another one, so each gets the same weights as if they were trained one after the other.

        Args:
          learnt: the training set.

        Returns:
          {"match", "node", "latent": the last losses of the last network of this kind}.
        """
        network, nodes = self.model.latent_network, ("node", self._nodes(learnt))
        trainings = [nodes, *self._matches()]  # the longest one first
        network.encoder.signatures.fit(self.model.table)
        graphs = LatentBatches(learnt, self.model.table, self.seed)
        network.changes.update(tf.constant(graphs.targets))
        steps = self.model.config.latent_steps
        descent = self._descent("latent", 0, network, latent_loss(network), LATENT_BATCH, graphs, steps)
        trainings.append(("latent", descent))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            running = [(name, pool.submit(descend)) for name, descend in trainings]
            try:
                wait([training for _, training in running], return_when=FIRST_EXCEPTION)
                losses = {name: training.result() for name, training in running if training.done()}
            except BaseException:  # also after Ctrl-C, the other trainings end at their next step
                self._is_stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        network.sums.update(tf.constant(graphs.sums(network)))
        self.model.use_latents()
        return losses

    def _matches(self) -> Iterator[tuple[str, Descend]]:
        model, steps = self.model, self.model.config.match_steps
        for number, network in enumerate(model.match_networks):
            network.signatures.fit(model.table)
            batches = MatchBatches(model.examples, model.vocabulary, model.table, self.seed + number)
            loss = match_loss(network)
            yield "match", self._descent("match", number, network, loss, training_batches.MATCH_BATCH, batches, steps)

    def _nodes(self, learnt: TrainingSet) -> Descend:
        """Fit the cost laws and return the training of the node network, which learns the residuals."""
        model, network = self.model, self.model.node_network
        examples = whole_graphs(learnt, model.table) if model.costs.reach else single_nodes(learnt, model.table)
        model.costs.laws, examples = fit_laws(examples, model.table)
        fit_node_statistics(network, examples, model.table)
        batches = NodeBatches(examples, model.table, STATES_AT_ONCE if model.costs.reach else SIGNATURES, self.seed)
        steps = model.config.node_steps
        return self._descent("node", 0, network, node_loss(network), training_batches.NODE_BATCH, batches, steps)

    def episodes(self, episodes: Sequence[Episode], apart: int) -> dict[str, float]:
        """Train the network with the recurrent state on the model's open-loop predictions of episodes.

        Args:
          episodes: the episodes; the other networks learned from all but the last ones.
          apart: the number of these last episodes.
        """
        model, network = self.model, self.model.episode_network
        sequences = predicted_sequences(model, episodes)
        fit_rests(network, sequences)
        signature, steps = sequence_signature(model.latent), model.config.episode_steps
        batches = SequenceBatches(sequences, apart, self.seed)
        return self._descent("episode", 0, network, episode_loss(network), signature, batches, steps)()

    def _descent(
        self, name: str, number: int, network, loss: Callable, signature: tuple, batches: Callable, steps: int
    ) -> Descend:
        """Return a function that trains a network to the end and returns its last losses.

        The function raises CancelledError if `_is_stopped` is set during the training.
        """
        config, first = self.model.config, self.first
        self.first += steps

        def descend() -> dict[str, float]:
            descent, path = Descent(network), self.folder / f"{name}-network-{number}.npz"
            restore = partial(restore_arrays, descent, source=str(path))
            checkpoint = ArrayCheckpoint(path, self.description, partial(module_arrays, descent), restore)
            log = None if self.log is None else self._curves(f"{name}-{number}" if name == "match" else name)
            trainer = Trainer(checkpoint, seconds=config.checkpoint_seconds, log=log, log_every=LOG_EVERY)
            with self._showing:
                shown = shown_on(self.progress, int(descent.step))
            trainer.progress = None if shown is None else partial(self._show, shown)
            update = descent.update(loss, signature, batches, steps, config.learning_rate)
            update = partial(self._unless_stopped, update)
            return trainer.run(update, lambda: int(descent.step), steps, at=lambda: first + int(descent.step))

        return descend

    def _show(self, shown: Callable, step: int, metrics: Metrics) -> None:
        with self._showing:
            shown(step, metrics)

    def _unless_stopped(self, update: Callable[[], Metrics]) -> Metrics:
        if self._is_stopped.is_set():
            raise CancelledError
        return update()

    def _curves(self, name: str) -> Log:
        def log(step: int, metrics: Metrics) -> None:
            with self._showing:
                self.log(step, {f"{name}/{key}": of for key, of in metrics.items()})

        return log
