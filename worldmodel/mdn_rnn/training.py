"""Training the MDN-RNN, offline or online, in a way that a kill cannot harm.

Every random choice is a function of (seed, step), so a run that was killed and resumed gives the same weights, bit
for bit, as one that was not.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import sonnet as snt
import tensorflow as tf

from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, write_arrays
from rlflow.common.task import EncodingSpec, GraphArrays
from worldmodel.checkpoint import module_arrays, restore_arrays
from worldmodel.config import MDNRNNConfig
from worldmodel.mdn_rnn.batching import (
    GraphBatch,
    Steps,
    batch_graphs,
    batches_of_nodes,
    compiled,
    graph_signature,
    pack_episodes,
    sequence_signature,
)
from worldmodel.mdn_rnn.dynamics import MDNRNN
from worldmodel.mdn_rnn.encoder import GraphEncoder
from worldmodel.mdn_rnn.model import NODES_PER_BATCH, MDNRNNWorldModel
from worldmodel.training import Log, MiniBatches, Source, Trained, prepare_tensorflow, split_episodes

CHECKPOINT, BEST = "checkpoint.npz", "best.npz"
LOG_EVERY = 10  # steps
SAMPLE = 512  # graphs that the input statistics, and the held-out encoder loss, are taken over
ONLINE_RATE = 0.05  # of the moving statistics, when the data come as a stream
# Streams of random numbers (0 is `worldmodel.training.HOLDOUT`); that of member i is EPISODES + i.
GRAPHS, EPISODES = 1, 2


def train(
    config: MDNRNNConfig, spec: EncodingSpec, source: Source, folder: Path | str, seed: int, log: Log | None = None,
    progress=None,
) -> Trained:
    """See `worldmodel.training.train`. The folder gets model.json, weights.npz and checkpoint.npz.

    Its results: {"interactions", "encoder_steps", "steps" (made, which may be fewer than asked for), "resumed_from"
    (step), "losses" (last step's), "holdout" (losses on the held-out episodes; None if there are none)}.
    """
    prepare_tensorflow(seed, config.threads)
    trainer = Trainer(MDNRNNWorldModel(spec, config))
    run = _Run(trainer, Path(folder), _describe(config, spec, source, seed), log, progress)
    train_all = _train_offline if config.mode == "offline" else _train_online
    held_out = train_all(trainer, run, source, seed)
    run.write_checkpoint()
    if config.patience:
        restore_best(trainer.model, folder)
    trainer.model.save(folder)
    steps = run.step - config.encoder_updates
    return Trained(trainer.model, held_out, {
        "interactions": int(trainer.interactions),
        "encoder_steps": config.encoder_updates if config.mode == "offline" else steps * (config.encoder == "trained"),
        "steps": steps,
        "resumed_from": run.resumed_from,
        "losses": run.losses,
        "holdout": trainer.evaluate(held_out) if held_out else None,
    })


def restore_best(model: MDNRNNWorldModel, folder: Path | str) -> None:
    path = Path(folder) / BEST
    restore_arrays(model, read_arrays(path), str(path))


def learning_rate(config: MDNRNNConfig, step: int, steps: int) -> float:
    """Polynomial decay from `learning_rate` at step 0 to `final_learning_rate` at the last (paper: degree 2)."""
    left = (1 - step / steps) ** config.decay_power
    return config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * left


class Trainer(snt.Module):
    """A world model, its optimisers and the step: all that a checkpoint holds. Its two updates are traced once."""

    def __init__(self, model: MDNRNNWorldModel):
        super().__init__(name="trainer")
        self.model = model
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.interactions = tf.Variable(0, dtype=tf.int64, trainable=False, name="interactions")
        self.best = tf.Variable(float("inf"), trainable=False, name="best")  # held-out loss, for early stopping
        self.stale = tf.Variable(0, dtype=tf.int64, trainable=False, name="stale")  # evaluations since then
        self.encoder_optimiser = _adam(model.encoder.trainable_variables)
        self.optimisers = [_adam(member.trainable_variables) for member in model.members]
        spec, rate = model.spec, tf.TensorSpec([])
        graphs, counts = graph_signature(spec), tf.TensorSpec([None, spec.n_rules], tf.int32)
        steps = sequence_signature(spec, model.config.latent, model.dynamics.meaning)
        self.update_encoder = compiled(self._update_encoder, graphs, counts, rate)
        self.update_members = [
            compiled(partial(self._update_dynamics, *pair), steps, steps, rate)
            for pair in zip(model.members, self.optimisers, strict=True)
        ]
        self.update_jointly = compiled(
            self._update_jointly, graphs, counts, tf.TensorSpec([None, None], tf.int32), steps, rate
        )
        self._encoder_loss = compiled(model.encoder.loss, graphs, counts)
        self._dynamics_losses = [compiled(partial(_loss_from_start, member), steps) for member in model.members]

    def held_out_loss(self, steps: Steps) -> float:
        """The mean of all members."""
        return float(np.mean([loss(steps)[0] for loss in self._dynamics_losses]))

    def evaluate(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """The losses on these episodes, whole."""
        graphs, counts = _states(episodes)
        chosen = _spread(len(graphs), SAMPLE)
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
        """One step on the window's loss; the steps before it only warm the recurrent state up."""
        state = member.warm(before)
        return self._descend(lambda: member.loss(window, state), member.trainable_variables, optimiser, rate)

    def _update_jointly(
        self, batch: GraphBatch, counts: tf.Tensor, position: tf.Tensor, window: Steps, rate: tf.Tensor
    ) -> dict:
        """One step of encoder and dynamics. position int32 [B, T + 1]: which graph of the batch each state is."""
        encoder, dynamics = self.model.encoder, self.model.dynamics
        with tf.GradientTape() as tape:
            latent = encoder.latent(batch, True)
            encoder.latent_statistics.update(tf.stop_gradient(latent), ONLINE_RATE)
            steps = window._replace(z=tf.gather(encoder.standardised(latent), position))
            dynamics.fit_changes(steps, ONLINE_RATE)
            encoder_loss, _ = encoder.loss_of(latent, batch, counts)
            dynamics_loss, parts = dynamics.loss(steps, dynamics.initial_state(tf.shape(steps.length)[0]))
        variables = encoder.trainable_variables, dynamics.trainable_variables
        metrics = {"loss": dynamics_loss, **parts, "encoder_loss": encoder_loss, "learning_rate": rate}
        gradients = tape.gradient([encoder_loss, dynamics_loss], variables)
        norms, optimisers = ("encoder_gradient_norm", "gradient_norm"), (self.encoder_optimiser, *self.optimisers)
        for name, optimiser, of, gradient in zip(norms, optimisers, variables, gradients, strict=True):
            metrics[name] = self._apply(gradient, of, optimiser, rate)
        return metrics

    def _descend(self, loss: Callable, variables: Sequence, optimiser: snt.Optimizer, rate: tf.Tensor) -> dict:
        with tf.GradientTape() as tape:
            total, parts = loss()
        norm = self._apply(tape.gradient(total, variables), variables, optimiser, rate)
        return {"loss": total, **parts, "gradient_norm": norm, "learning_rate": rate}

    def _apply(self, gradients: Sequence, variables: Sequence, optimiser: snt.Optimizer, rate: tf.Tensor) -> tf.Tensor:
        """Returns the gradients' global norm before it is clipped."""
        gradients, norm = tf.clip_by_global_norm(gradients, self.model.config.gradient_clip)
        optimiser.learning_rate.assign(rate)
        optimiser.apply(gradients, variables)
        return norm


def _loss_from_start(member: MDNRNN, steps: Steps) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    return member.loss(steps, member.initial_state(tf.shape(steps.length)[0]))


def _adam(variables: Sequence[tf.Variable]) -> snt.optimizers.Adam:
    """Adam with its slots created, so that a checkpoint can fill them."""
    optimiser = snt.optimizers.Adam(tf.Variable(0.0, trainable=False, name="learning_rate"))
    optimiser.apply([tf.zeros_like(variable) for variable in variables], variables)
    optimiser.step.assign(0)
    return optimiser


class _Run:
    """What surrounds the steps of a training: checkpoints, logging, progress."""

    def __init__(self, trainer: Trainer, folder: Path, description: str, log: Log | None, progress):
        self.trainer, self.path, self.description, self.log = trainer, folder / CHECKPOINT, description, log
        self.progress, self.losses, self.written = progress, {}, time.monotonic()
        if self.path.exists():
            self._restore()
        self.resumed_from = self.step
        if progress is not None:
            progress.update(self.step)

    @property
    def step(self) -> int:
        return int(self.trainer.step)

    def announce(self, phase: str) -> None:
        if self.progress is not None:
            self.progress.set_description(phase)

    def finish_step(self, **updates: dict[str, tf.Tensor]) -> None:
        """Counts one step, whose updates (encoder=…, dynamics=…) gave these metrics."""
        metrics = {f"{part}/{name}": float(value) for part, of in updates.items() for name, value in of.items()}
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise RLFlowError(f"training step {self.step}: {name} is {value}; a lower learning_rate may help")
        self.losses |= metrics
        self.trainer.step.assign_add(1)
        if time.monotonic() - self.written >= self.trainer.model.config.checkpoint_seconds:
            self.write_checkpoint()
        if self.log is not None and self.step % LOG_EVERY == 0:
            self.log(self.step, {"loss" if name == "dynamics/loss" else name: value for name, value in metrics.items()})
        if self.progress is not None:
            losses = {name: f"{value:.3g}" for name, value in metrics.items() if "/loss" in name}
            self.progress.set_postfix(losses, refresh=False)
            self.progress.update(1)

    def dynamics_steps(self, held_out: Callable[[], Steps]) -> Iterator[int]:
        """The steps of the dynamics that are left, from 0 on; with patience, until the held-out loss gets no better.

        An evaluation comes before the step of its number, so that a resumed run, wherever it was killed, makes as many.
        """
        config = self.trainer.model.config
        while (step := self.step - config.encoder_updates) < config.steps and not self._is_stale():
            if config.patience and step and step % config.evaluate_every == 0:
                self._evaluate(held_out())
                if self._is_stale():
                    return
            yield step
        if config.patience and not self._is_stale():
            self._evaluate(held_out())

    def _is_stale(self) -> bool:
        patience = self.trainer.model.config.patience
        return 0 < patience <= int(self.trainer.stale)

    def _evaluate(self, held_out: Steps) -> None:
        """Keeps the weights if they are the best so far on the held-out steps."""
        trainer, loss = self.trainer, self.trainer.held_out_loss(held_out)
        if loss < float(trainer.best):
            write_arrays(self.path.with_name(BEST), module_arrays(trainer.model))
            trainer.best.assign(loss)
            trainer.stale.assign(0)
        else:
            trainer.stale.assign_add(1)
        if self.log is not None:
            self.log(self.step, {"held_out_loss": loss})

    def write_checkpoint(self) -> None:
        texts = {"description": np.array(self.description), "losses": np.array(json.dumps(self.losses))}
        write_arrays(self.path, texts | module_arrays(self.trainer, "trainer/"))
        self.written = time.monotonic()

    def _restore(self) -> None:
        arrays = read_arrays(self.path)
        saved = json.loads(str(arrays.pop("description", "{}")))
        for name, value in json.loads(self.description).items():
            if saved.get(name) != value:
                raise RLFlowError(
                    f"{self.path} was written by a training with another {name}; use another folder, or delete it"
                )
        restore_arrays(self.trainer, arrays, str(self.path), "trainer/")
        self.losses = json.loads(str(arrays.get("losses", "{}")))


def _train_offline(trainer: Trainer, run: _Run, episodes: Sequence[Episode], seed: int) -> list[Episode]:
    """Trains the encoder, then the dynamics on its latents; or both together. Returns the held-out episodes."""
    model, config = trainer.model, trainer.model.config
    training, held_out = split_episodes(episodes, config.holdout, seed)
    trainer.interactions.assign(sum(episode.interactions for episode in episodes))
    graphs, counts = _states(training)

    run.announce("encoder")
    if run.step == 0:
        chosen = _spread(len(graphs), SAMPLE)
        model.encoder.fit_inputs(batch_graphs([graphs[i] for i in chosen]), counts[chosen])
        if config.encoder == "untrained":
            _pool(model.encoder, [graphs[i] for i in chosen])
    while (step := run.step) < config.encoder_updates:
        chosen = _random(seed, GRAPHS, step).integers(len(graphs), size=config.batch_graphs)
        rate = learning_rate(config, step, config.encoder_steps)
        run.finish_step(encoder=trainer.update_encoder(batch_graphs([graphs[i] for i in chosen]), counts[chosen], rate))

    train_dynamics = _train_jointly if config.encoder == "joint" else _train_dynamics
    train_dynamics(trainer, run, training, held_out, seed)
    return held_out


def _train_dynamics(
    trainer: Trainer, run: _Run, training: Sequence[Episode], held_out: Sequence[Episode], seed: int
) -> None:
    """On latents that do not change any more: a resumed run gets the same latents and statistics here."""
    model, config = trainer.model, trainer.model.config
    run.announce("dynamics")
    model.standardise_latents(_states(training)[0])
    steps = model.pack(training)
    for member in model.members:
        member.fit(steps)
    unseen = model.pack(held_out) if config.patience else None
    for step in run.dynamics_steps(lambda: unseen):
        rate = learning_rate(config, step, config.steps)
        run.finish_step(**_update_members(trainer, steps, rate, seed, step))


def _train_jointly(
    trainer: Trainer, run: _Run, training: Sequence[Episode], held_out: Sequence[Episode], seed: int
) -> None:
    """Encoder and dynamics on the same windows, whose graphs are encoded anew at every step."""
    model, config = trainer.model, trainer.model.config
    run.announce("encoder and dynamics")
    graphs, counts = _states(training)
    numbered = pack_episodes(training, np.arange(len(graphs))[:, None])  # a state is the number of its graph
    if run.step == 0:
        model.dynamics.fit(model.pack(training))
    for step in run.dynamics_steps(lambda: model.pack(held_out)):
        _, window = _random_windows(numbered, config, _random(seed, EPISODES, step))
        chosen, position = np.unique(window.z[..., 0].astype(np.int32), return_inverse=True)
        blank = window._replace(z=np.zeros((*window.z.shape[:2], config.latent), np.float32))
        rate = learning_rate(config, step, config.steps)
        batch = batch_graphs([graphs[i] for i in chosen])
        position = position.reshape(window.z.shape[:2]).astype(np.int32)
        run.finish_step(dynamics=trainer.update_jointly(batch, counts[chosen], position, blank, rate))


def _train_online(trainer: Trainer, run: _Run, source: MiniBatches, seed: int) -> list[Episode]:
    """One step of the encoder and one of the dynamics on each mini-batch (the paper's mode). Returns the held-out one.

    The statistics that normalise the data follow the stream as moving averages.
    """
    model, config = trainer.model, trainer.model.config
    run.announce("online")
    stream = source(config.batch_episodes, run.step)
    while (step := run.step) < config.steps:
        episodes = next(stream)
        trainer.interactions.assign_add(sum(map(len, episodes)))
        rate, updates = learning_rate(config, step, config.steps), {}
        graphs, counts = _states(episodes)
        chosen = _random(seed, GRAPHS, step).integers(len(graphs), size=config.batch_graphs)
        batch = batch_graphs([graphs[i] for i in chosen])
        model.encoder.fit_inputs(batch, counts[chosen], ONLINE_RATE)
        if config.encoder == "trained":
            updates["encoder"] = trainer.update_encoder(batch, counts[chosen], rate)
        else:
            _pool(model.encoder, [graphs[i] for i in chosen])
        model.standardise_latents(graphs, ONLINE_RATE)
        steps = model.pack(episodes)
        for member in model.members:
            member.fit(steps, ONLINE_RATE)
        run.finish_step(**updates, **_update_members(trainer, steps, rate, seed, step))
    held_out = list(next(stream)) if config.holdout else []
    trainer.interactions.assign_add(sum(map(len, held_out)))
    return held_out


def _update_members(trainer: Trainer, steps: Steps, rate: float, seed: int, step: int) -> dict[str, dict]:
    """One step of every member, each on windows of its own: {"dynamics": metrics, "dynamics-2": metrics, …}."""
    result = {}
    for number, update in enumerate(trainer.update_members):
        windows = _random_windows(steps, trainer.model.config, _random(seed, EPISODES + number, step))
        result[f"dynamics-{number + 1}" if number else "dynamics"] = update(*windows, rate)
    return result


def _pool(encoder: GraphEncoder, graphs: Sequence[GraphArrays]) -> None:
    """The statistics that an encoder gathers while it is trained, for one that is not."""
    for batch in batches_of_nodes(graphs, NODES_PER_BATCH):
        encoder.latent(GraphBatch(*map(tf.constant, batch)), training=True)


def _random_windows(steps: Steps, config: MDNRNNConfig, random: np.random.Generator) -> tuple[Steps, Steps]:
    """Random episodes: (the steps before the window, a random window of at most `max_sequence` steps) of each."""
    rows = random.choice(len(steps.length), min(config.batch_episodes, len(steps.length)), replace=False)
    start = random.integers(0, np.maximum(steps.length[rows] - config.max_sequence, 0) + 1)
    stop = np.minimum(start + config.max_sequence, steps.length[rows])
    return steps.window(rows, np.zeros_like(start), start), steps.window(rows, start, stop)


def _states(episodes: Sequence[Episode]) -> tuple[list, np.ndarray]:
    """All graphs of the episodes, and their location counts int32 [number of graphs, N]."""
    graphs = [graph for episode in episodes for graph in episode.graphs]
    return graphs, np.concatenate([episode.counts for episode in episodes]).astype(np.int32)


def _spread(size: int, most: int) -> np.ndarray:
    """At most so many indices below `size`, evenly spread."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).astype(int))


def _random(seed: int, stream: int, step: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream, step])


def _describe(config: MDNRNNConfig, spec: EncodingSpec, source, seed: int) -> str:
    """What a resumed run must have in common with the one that wrote the checkpoint, as JSON."""
    options = {name: value for name, value in config.to_dict().items() if name not in ("checkpoint_seconds", "threads")}
    data = "stream"
    if config.mode == "offline":
        digest = hashlib.blake2b(digest_size=16)
        for episode in source:
            digest.update(episode.actions.tobytes() + episode.rewards.tobytes())
        data = digest.hexdigest()
    return json.dumps({"configuration": options, "encoding": spec.to_dict(), "seed": seed, "set of episodes": data})
