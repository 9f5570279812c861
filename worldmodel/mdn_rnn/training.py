"""Training of the MDN-RNN, offline or online.

Every random choice is a function of (seed, step), so an interrupted and resumed run gives the same weights, bit for
bit, as an uninterrupted one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import sonnet as snt
import tensorflow as tf

from rlflow.collect.episodes import Episode, interactions_of
from rlflow.common.files import read_arrays, write_arrays
from rlflow.common.task import EncodingSpec, GraphArrays
from worldmodel.mdn_rnn.batching import (
    GraphBatch,
    Steps,
    batch_graphs,
    batches_of_nodes,
    compiled,
    graph_signature,
    sequence_signature,
)
from worldmodel.mdn_rnn.dynamics import MDNRNN
from worldmodel.mdn_rnn.encoder import GraphEncoder
from worldmodel.mdn_rnn.model import MDNRNNWorldModel
from worldmodel.train_and_load import (
    MiniBatches,
    Source,
    Trained,
    prepare_tensorflow,
    split_episodes,
    training_description,
)
from worldmodel.trainer import LOG_EVERY, ArrayCheckpoint, EarlyStop, Log, Trainer, check_finite, shown_on
from worldmodel.weights import apply_clipped, module_arrays, restore_arrays, with_slots
from worldmodel.world_model_options import MDNRNNConfig

CHECKPOINT, BEST = "checkpoint.npz", "best.npz"
SAMPLE = 512  # largest number of graphs for the input statistics, and for the held-out loss of the encoder
ONLINE_RATE = 0.05  # weight of a mini-batch in the moving averages of the normalisers
# Numbers of the streams of random numbers (0 is `worldmodel.train_and_load.HOLDOUT`); member i uses EPISODES + i.
GRAPHS, EPISODES = 1, 2


def train(
    config: MDNRNNConfig, spec: EncodingSpec, source: Source, folder: Path | str, seed: int, log: Log | None = None,
    progress=None,
) -> Trained:
    """Train the model; see `worldmodel.train_and_load.train`.

    The folder receives model.json, weights.npz, checkpoint.npz and, with early stopping, best.npz. The entries of the
    results are:

      interactions: number of real steps in the episodes, those held out included.
      encoder_steps: number of gradient steps of the encoder.
      steps: number of gradient steps of the MDN-RNN; early stopping can make it smaller than the configured number.
      resumed_from: number of steps in the checkpoint from which this call resumed.
      losses: the last value of every metric, also of the metrics of the encoder's phase.
      holdout: losses on the held-out episodes, or None without such episodes.
    """
    prepare_tensorflow(seed, config.threads)
    updates = Updates(MDNRNNWorldModel(spec, config))
    run = _Run(updates, Path(folder), training_description(config, spec, source, seed), log, progress)
    train_all = _train_offline if config.mode == "offline" else _train_online
    held_out = train_all(updates, run, source, seed)
    if config.patience:
        best = Path(folder) / BEST
        restore_arrays(updates.model, read_arrays(best), str(best))
    updates.model.save(folder)
    steps = run.step - config.encoder_updates
    return Trained(updates.model, held_out, {
        "interactions": int(updates.interactions),
        "encoder_steps": config.encoder_updates if config.mode == "offline" else steps * (config.encoder == "trained"),
        "steps": steps,
        "resumed_from": run.resumed_from,
        "losses": run.trainer.metrics,
        "holdout": updates.evaluate(held_out) if held_out else None,
    })


def learning_rate(config: MDNRNNConfig, step: int, steps: int) -> float:
    """Return the learning rate of a step in a phase of the training.

    The rate decays from `learning_rate` to `final_learning_rate` as a polynomial of the degree `decay_power` (2 in the
    paper).

    Args:
      config: the options.
      step: the number of the step in its phase, from 0.
      steps: the number of steps of the phase.
    """
    left = (1 - step / steps) ** config.decay_power
    return config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * left


class Updates(snt.Module):
    """A world model, its optimisers and the step number, which are the whole state of a checkpoint.

    The function `update_encoder` makes one gradient step of the encoder. `update_members` is a list of functions, which
    make one gradient step of one member each. All these functions are compiled once.
    """

    def __init__(self, model: MDNRNNWorldModel):
        super().__init__(name="trainer")
        self.model = model
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.interactions = tf.Variable(0, dtype=tf.int64, trainable=False, name="interactions")
        self.encoder_optimiser = _adam(model.encoder.trainable_variables)
        self.optimisers = [_adam(member.trainable_variables) for member in model.members]
        spec, rate = model.spec, tf.TensorSpec([])
        graphs, counts = graph_signature(spec), tf.TensorSpec([None, spec.n_rules], tf.int32)
        steps = sequence_signature(spec, model.config.latent)
        self.update_encoder = compiled(self._update_encoder, graphs, counts, rate)
        self.update_members = [
            compiled(partial(self._update_dynamics, *pair), steps, steps, rate)
            for pair in zip(model.members, self.optimisers, strict=True)
        ]
        self._encoder_loss = compiled(model.encoder.loss, graphs, counts)
        self._dynamics_losses = [compiled(partial(_loss_from_start, member), steps) for member in model.members]

    def held_out_loss(self, steps: Steps) -> float:
        """Return the loss on held-out sequences, as the mean over the members of the ensemble."""
        return float(np.mean([loss(steps)[0] for loss in self._dynamics_losses]))

    def evaluate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the losses of the encoder (on at most SAMPLE graphs) and of the first member on whole episodes.

        The names of the losses are, for example, "encoder/costs" and "dynamics/reward".
        """
        graphs, counts = _states(episodes)
        chosen = _sample(len(graphs))
        encoder = self._encoder_loss(batch_graphs([graphs[i] for i in chosen]), counts[chosen])
        dynamics = self._dynamics_losses[0](self.model.pack(episodes))
        losses = {"encoder": encoder, "dynamics": dynamics}
        return {
            f"{phase}/{name}": float(value)
            for phase, (total, parts) in losses.items() for name, value in ({"loss": total} | parts).items()
        }

    def _update_encoder(self, batch: GraphBatch, counts: tf.Tensor, rate: tf.Tensor) -> dict[str, tf.Tensor]:
        encoder = self.model.encoder
        return self._descend(
            lambda: encoder.loss(batch, counts, True), encoder.trainable_variables, self.encoder_optimiser, rate
        )

    def _update_dynamics(
        self, member: MDNRNN, optimiser: snt.Optimizer, before: Steps, window: Steps, rate: tf.Tensor
    ) -> dict:
        """Make one gradient step of a member on a window of steps, and return the metrics to log."""
        state = member.warm(before)  # No gradient flows through the steps before the window.
        return self._descend(lambda: member.loss(window, state), member.trainable_variables, optimiser, rate)

    def _descend(self, loss: Callable, variables: Sequence, optimiser: snt.Optimizer, rate: tf.Tensor) -> dict:
        with tf.GradientTape() as tape:
            total, parts = loss()
        optimiser.learning_rate.assign(rate)
        gradients = tape.gradient(total, variables)
        norm = apply_clipped(gradients, variables, optimiser, self.model.config.gradient_clip)
        return {"loss": total, **parts, "gradient_norm": norm, "learning_rate": rate}


def _loss_from_start(member: MDNRNN, steps: Steps) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    return member.loss(steps, member.initial_state(tf.shape(steps.length)[0]))


def _adam(variables: Sequence[tf.Variable]) -> snt.optimizers.Adam:
    return with_slots(snt.optimizers.Adam(tf.Variable(0.0, trainable=False, name="learning_rate")), variables)


class _Run:
    """The loop of a training, which can consist of several phases with one step number and one checkpoint."""

    def __init__(self, updates: Updates, folder: Path, description: dict, log: Log | None, progress):
        config, path, best = updates.model.config, folder / CHECKPOINT, folder / BEST
        self.updates, self.bar = updates, progress
        checkpoint = ArrayCheckpoint(
            path, description, partial(module_arrays, updates), partial(restore_arrays, updates, source=str(path))
        )
        stop = EarlyStop(
            config.evaluate_every, config.patience, lambda: write_arrays(best, module_arrays(updates.model))
        )
        log = None if log is None else partial(_log_by_name, log)
        self.trainer = Trainer(
            checkpoint, seconds=config.checkpoint_seconds, log=log, log_every=LOG_EVERY, early_stop=stop
        )
        self.resumed_from = self.step
        self.trainer.progress = shown_on(progress, self.step)

    @property
    def step(self) -> int:
        return int(self.updates.step)

    def run(
        self, phase: str, update: Callable[[int], dict[str, dict]], total: int, first: int = 0,
        held_out: Steps | None = None,
    ) -> None:  # fmt: skip
        """Run one phase of the training up to the step `total`.

        Args:
          phase: the name of the phase, shown by the progress bar.
          update: makes a step, given its number within the phase; returns metrics by part, {"encoder": {…}, …}.
          total: the step number at which the phase is complete.
          first: the step number at which the phase begins.
          held_out: the sequences of the held-out loss; None for a phase without early stopping.
        """
        if self.bar is not None:
            self.bar.set_description(phase)

        def counted() -> dict[str, float]:
            parts = update(self.step - first)
            metrics = {f"{part}/{name}": float(value) for part, of in parts.items() for name, value in of.items()}
            check_finite(metrics, self.step)
            self.updates.step.assign_add(1)
            return metrics

        measure = None if held_out is None else partial(self.updates.held_out_loss, held_out)
        self.trainer.run(counted, lambda: self.step, total, held_out=measure, first=first)


def _log_by_name(log: Log, step: int, metrics: dict[str, float]) -> None:
    log(step, {"loss" if name == "dynamics/loss" else name: value for name, value in metrics.items()})


def _train_offline(updates: Updates, run: _Run, episodes: Sequence[Episode], seed: int) -> list[Episode]:
    """Train the encoder on stored episodes, then the dynamics on its latent states, and return the held-out episodes.

    A resumed training computes the same latent states and statistics again.
    """
    model, config = updates.model, updates.model.config
    training, held_out = split_episodes(episodes, config.holdout, seed)
    updates.interactions.assign(interactions_of(episodes))
    graphs, counts = _states(training)

    if run.step == 0:
        chosen = _sample(len(graphs))
        model.encoder.fit_inputs(batch_graphs([graphs[i] for i in chosen]), counts[chosen])
        if config.encoder == "untrained":
            _pool(model.encoder, [graphs[i] for i in chosen])

    def update_encoder(step: int) -> dict[str, dict]:
        chosen = _random(seed, GRAPHS, step).integers(len(graphs), size=config.batch_graphs)
        rate = learning_rate(config, step, config.encoder_steps)
        return {"encoder": updates.update_encoder(batch_graphs([graphs[i] for i in chosen]), counts[chosen], rate)}

    run.run("encoder", update_encoder, config.encoder_updates)
    model.standardise_latents(graphs)
    steps = model.pack(training)
    for member in model.members:
        member.fit(steps)
    unseen = model.pack(held_out) if config.patience else None

    def update_members(step: int) -> dict[str, dict]:
        return _update_members(updates, steps, learning_rate(config, step, config.steps), seed, step)

    run.run("dynamics", update_members, config.total_steps, config.encoder_updates, unseen)
    return held_out


def _train_online(updates: Updates, run: _Run, source: MiniBatches, seed: int) -> list[Episode]:
    """Train on a stream of mini-batches of episodes (the paper's mode) and return the held-out episodes.

    For each mini-batch, the encoder (unless untrained) and every member make one gradient step. The statistics of the
    normalisers follow the stream as moving averages. The mini-batch after the last step is held out.
    """
    model, config = updates.model, updates.model.config
    stream = source(config.batch_episodes, run.step)

    def update(step: int) -> dict[str, dict]:
        episodes = next(stream)
        updates.interactions.assign_add(sum(map(len, episodes)))
        rate, parts = learning_rate(config, step, config.steps), {}
        graphs, counts = _states(episodes)
        chosen = _random(seed, GRAPHS, step).integers(len(graphs), size=config.batch_graphs)
        batch = batch_graphs([graphs[i] for i in chosen])
        model.encoder.fit_inputs(batch, counts[chosen], ONLINE_RATE)
        if config.encoder == "trained":
            parts["encoder"] = updates.update_encoder(batch, counts[chosen], rate)
        else:
            _pool(model.encoder, [graphs[i] for i in chosen])
        model.standardise_latents(graphs, ONLINE_RATE)
        steps = model.pack(episodes)
        for member in model.members:
            member.fit(steps, ONLINE_RATE)
        return parts | _update_members(updates, steps, rate, seed, step)

    run.run("online", update, config.steps)
    held_out = list(next(stream)) if config.holdout else []
    updates.interactions.assign_add(sum(map(len, held_out)))
    return held_out


def _update_members(updates: Updates, steps: Steps, rate: float, seed: int, step: int) -> dict[str, dict]:
    """Make one gradient step of every member on random windows of its own.

    Returns:
      The metrics of each member: {"dynamics": {…}, "dynamics-2": {…}, …}.
    """
    result = {}
    for number, update in enumerate(updates.update_members):
        windows = _random_windows(steps, updates.model.config, _random(seed, EPISODES + number, step))
        result[f"dynamics-{number + 1}" if number else "dynamics"] = update(*windows, rate)
    return result


def _pool(encoder: GraphEncoder, graphs: Sequence[GraphArrays]) -> None:
    """Update the moving averages of pooled features of an untrained encoder, as training does for a trained one."""
    for batch in batches_of_nodes(graphs):
        encoder.latent(GraphBatch(*map(tf.constant, batch)), training=True)


def _random_windows(steps: Steps, config: MDNRNNConfig, random: np.random.Generator) -> tuple[Steps, Steps]:
    """Draw episodes and a random window of at most `config.max_sequence` steps in each.

    Returns:
      (the steps before the windows, the steps of the windows).
    """
    rows = random.choice(len(steps.length), min(config.batch_episodes, len(steps.length)), replace=False)
    start = random.integers(0, np.maximum(steps.length[rows] - config.max_sequence, 0) + 1)
    stop = np.minimum(start + config.max_sequence, steps.length[rows])
    return steps.window(rows, np.zeros_like(start), start), steps.window(rows, start, stop)


def _states(episodes: Sequence[Episode]) -> tuple[list, np.ndarray]:
    """Return all graphs of the episodes, and the location counts of these graphs, int32 [number of graphs, N]."""
    graphs = [graph for episode in episodes for graph in episode.graphs]
    return graphs, np.concatenate([episode.counts for episode in episodes]).astype(np.int32)


def _sample(size: int) -> np.ndarray:
    """Return at most SAMPLE of the indices 0 … size − 1, evenly spaced."""
    return np.unique(np.linspace(0, size - 1, min(size, SAMPLE)).astype(int))


def _random(seed: int, stream: int, step: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream, step])
