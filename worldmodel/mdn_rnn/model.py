"""The world model "mdn-rnn": graph encoder and MDN-RNN with the interface of `worldmodel.base`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import sonnet as snt
import tensorflow as tf

from rlflow.collect.episodes import Episode
from rlflow.common.files import read_arrays, write_arrays
from rlflow.common.task import EncodingSpec, GraphArrays, State
from rlflow.env.rewards import INVALID_REWARD
from worldmodel.base import Replay
from worldmodel.mdn_rnn.batching import (
    GraphBatch,
    Steps,
    batch_graphs,
    batches_of_nodes,
    compiled,
    graph_signature,
    pack_episodes,
    padded,
    sequence_signature,
)
from worldmodel.mdn_rnn.dynamics import MDNRNN, Outcome
from worldmodel.mdn_rnn.encoder import GraphEncoder
from worldmodel.mdn_rnn.imagination import MDNRNNImagination, MDNRNNObserver, RecurrentState
from worldmodel.spaces import valid_actions
from worldmodel.train_and_load import read_description, write_description
from worldmodel.weights import module_arrays, restore_arrays
from worldmodel.world_model_options import MDNRNNConfig


class Step(NamedTuple):
    """One predicted step of B dreams.

    Attributes:
      z, counts, shown_counts, reward, terminated: as in `dynamics.Outcome`.
      uncertainty: float32 [B], see `disagreement`.
      state: the recurrent state after the step.
    """

    z: np.ndarray
    counts: np.ndarray
    shown_counts: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    uncertainty: np.ndarray
    state: RecurrentState


class MDNRNNWorldModel(snt.Module):
    """A world model that encodes graphs and predicts the effects of actions. Inputs and outputs are NumPy arrays.

    Attributes:
      spec, config, latent, hidden: see `worldmodel.base.WorldModel`.
      encoder: the graph encoder.
      dynamics: the MDN-RNN that dreams, the first member of the ensemble.
      others: the other members of the ensemble, which only contribute to the uncertainty.
    """

    files = ("weights.npz",)
    digest = None

    def __init__(self, spec: EncodingSpec, config: MDNRNNConfig):
        super().__init__(name="world_model")
        self.spec, self.config = spec, config
        self.latent, self.hidden = config.latent, config.hidden
        self.encoder = GraphEncoder(spec, config.latent, config.encoder_hidden, config.message_passing_steps)
        self.dynamics = MDNRNN(spec, config)
        self._build(self.dynamics)
        self.others = []
        for _ in range(config.members - 1):  # in this order, so that the first does not depend on the others
            self.others.append(MDNRNN(spec, config))
            self._build(self.others[-1])
        self._encode = compiled(self.encoder, graph_signature(spec))
        self._latent = compiled(self.encoder.latent, graph_signature(spec))
        recurrent = tf.TensorSpec([None, config.members * config.hidden])
        step = (
            tf.TensorSpec([None, config.latent]), tf.TensorSpec([None, spec.n_rules], tf.int32),
            tf.TensorSpec([None, 2], tf.int32),
        )
        temperature, seed = tf.TensorSpec([]), tf.TensorSpec([2], tf.int32)
        self._step = compiled(self._predict, *step, recurrent, recurrent, temperature, seed)
        self._recur = compiled(self._remember, *step, recurrent, recurrent)
        sequences = sequence_signature(spec, config.latent)
        self._warm = compiled(self._warmed, sequences)
        self._coverage = compiled(self.dynamics.coverage, sequences)

    @property
    def members(self) -> list[MDNRNN]:
        return [self.dynamics, *self.others]

    # -- worldmodel.base.WorldModel ----------------------------------------------------------------

    def observer(self) -> MDNRNNObserver:
        return MDNRNNObserver(self)

    def imagine(self, start: State, n: int) -> MDNRNNImagination:
        z, counts = self.encode([start.arrays()]), start.counts.astype(np.int32)[None]
        return MDNRNNImagination(self, np.repeat(z, n, 0), np.repeat(counts, n, 0), self.initial_state(n))

    def replay(self, episodes: Sequence[Episode], rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replay:
        """Return open-loop predictions; see `worldmodel.base.WorldModel.replay`.

        As in a dream, NO-OP ends the episode with the reward 0, and an invalid action earns INVALID_REWARD. Both leave
        the state unchanged.
        """
        steps = self.pack(episodes)
        valid = [valid_actions(episode.actions, episode.counts[:-1]) for episode in episodes]
        # Packed sequences omit invalid actions, so the starts are shifted.
        at = np.array([valid[row][:start].sum() for row, start in zip(rows, starts, strict=True)])
        state = RecurrentState(*(part.numpy() for part in self._warm(steps.window(rows, np.zeros_like(at), at))))
        dreams = MDNRNNImagination(self, steps.z[rows, at], steps.counts[rows, at], state)

        actions = padded([episode.actions for episode in episodes], horizon)
        valid = padded(valid, horizon)
        noops = valid & (actions[..., 0] == self.spec.n_rules)
        result = []
        for t in (starts + k for k in range(horizon)):
            moves, noop = (valid & ~noops)[rows, t], noops[rows, t]
            predicted = dreams.advance(actions[rows, t], moves, 0.0, (0, 0))
            rewards = np.where(moves, predicted.rewards, np.where(noop, 0.0, INVALID_REWARD))
            uncertainty = np.where(moves, predicted.uncertainty, 0)
            result.append((rewards, noop | (moves & predicted.terminated), dreams.counts, uncertainty))
        return Replay(*(np.stack(values, axis=1) for values in zip(*result, strict=True)))

    def calibration(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the shares of real changes of z within the central 50 % and 90 % of the predicted distributions.

        Each change is predicted one step ahead, from the real state.

        Returns:
          {"coverage_50", "coverage_90"}.
        """
        steps = self.pack(episodes)
        half, most = self._coverage(steps)
        return {"coverage_50": float(half), "coverage_90": float(most)}

    def save(self, folder: Path | str) -> None:
        """Write model.json and weights.npz. Equal weights give equal bytes."""
        write_description(folder, self.config, self.spec)
        write_arrays(Path(folder) / "weights.npz", module_arrays(self))

    @classmethod
    def load(cls, folder: Path | str, spec: EncodingSpec | None = None) -> Self:
        """Load a saved model.

        Args:
          folder: the folder of the model.
          spec: the expected encoding; None accepts any encoding.

        Raises:
          RLFlowError: a file is damaged, or the model was made for another encoding.
        """
        config, saved = read_description(folder, spec)
        model = cls(saved, config)
        path = Path(folder) / "weights.npz"
        restore_arrays(model, read_arrays(path), str(path))
        return model

    @property
    def match_classes(self) -> np.ndarray:
        """The rule of each match class, int32 [N]: every rule is one match class."""
        return np.arange(self.spec.n_rules, dtype=np.int32)

    @property
    def usual_rewards(self) -> np.ndarray:
        """The mean reward of each rule in the data, float32 [N], used as its median; 0 for a rule without data."""
        return self.dynamics.reward_statistics.mean.numpy()[:-1]

    # -- parts ---------------------------------------------------------------------------------------

    def encode(self, graphs: Sequence[GraphArrays]) -> np.ndarray:
        """Return the latent states z of the graphs, float32 [len(graphs), Z]."""
        return np.concatenate([self._encode(batch).numpy() for batch in batches_of_nodes(graphs)])

    def standardise_latents(self, graphs: Sequence[GraphArrays], rate: float = 1.0) -> None:
        """Update the statistics with which z is standardised from some graphs.

        Args:
          graphs: the graphs.
          rate: weight of the new statistics; with 1, the z of these graphs have mean 0 and variance 1.
        """
        latents = [self._latent(batch) for batch in batches_of_nodes(graphs)]
        self.encoder.latent_statistics.update(tf.concat(latents, axis=0), rate)

    def pack(self, episodes: Sequence[Episode]) -> Steps:
        """Encode all graphs of episodes and return the episodes as sequences."""
        return pack_episodes(episodes, self.encode([graph for episode in episodes for graph in episode.graphs]))

    def initial_state(self, batch_size: int) -> RecurrentState:
        """Return the recurrent states of B = `batch_size` new episodes: zeros."""
        size = self.config.members * self.config.hidden
        return RecurrentState(*(np.zeros((batch_size, size), np.float32) for _ in RecurrentState._fields))

    def step(
        self, z: np.ndarray, counts: np.ndarray, actions: np.ndarray, state: RecurrentState,
        temperature: float = 0.0, seed: tuple[int, int] = (0, 0),
    ) -> Step:
        """Predict one step of B dreams.

        Args:
          z: float32 [B, Z], the latent states.
          counts: int [B, N], the number of locations of each rule.
          actions: int [B, 2], (xfer_id, location).
          state: the recurrent states before the step.
          temperature: τ; 0 gives the most likely outcome.
          seed: two integers that determine the drawing of z.
        """
        *outcome, h, c = self._step(
            z, counts.astype(np.int32), actions.astype(np.int32), *state, np.float32(temperature),
            np.asarray(seed, np.int32),
        )
        return Step(*(part.numpy() for part in outcome), RecurrentState(h.numpy(), c.numpy()))

    def recur(
        self, z: np.ndarray, counts: np.ndarray, actions: np.ndarray, state: RecurrentState
    ) -> RecurrentState:
        """Return the recurrent states after one real step of B episodes.

        Args:
          z: float32 [B, Z], the latent states before the step.
          counts: int [B, N], the number of locations of each rule before the step.
          actions: int [B, 2], (xfer_id, location).
          state: the recurrent states before the step.
        """
        arguments = z, counts.astype(np.int32), actions.astype(np.int32), *state
        return RecurrentState(*(part.numpy() for part in self._recur(*arguments)))

    def _predict(self, z, counts, actions, h, c, temperature, seed):
        """Return the fields of the first member's outcome, the `disagreement` of all members, and the next h and c."""
        outcomes, states = [], []
        for member, state in zip(self.members, self._split(h, c), strict=True):
            prediction, state = member(z, counts, actions, state)
            outcomes.append(member.outcome(prediction, z, counts, actions, temperature, seed))
            states.append(state)
        return *outcomes[0], disagreement(outcomes), *_joined(states)

    def _remember(self, z, counts, actions, h, c):
        pairs = zip(self.members, self._split(h, c), strict=True)
        return _joined([member.recur(z, counts, actions, state) for member, state in pairs])

    def _warmed(self, steps):
        return _joined([member.warm(steps) for member in self.members])

    def _split(self, h: tf.Tensor, c: tf.Tensor) -> list[snt.LSTMState]:
        hidden, cell = (tf.split(x, self.config.members, axis=1) for x in (h, c))
        return [snt.LSTMState(*parts) for parts in zip(hidden, cell, strict=True)]

    def _build(self, member: MDNRNN) -> None:
        """Run the encoder and this member on a graph with one node, which creates their variables."""
        spec = self.spec
        graph = GraphArrays(
            np.zeros(1, np.int32), np.zeros((1, spec.node_features), np.float32),
            np.zeros((1, spec.edge_features), np.float32), np.zeros(1, np.int32), np.zeros(1, np.int32),
            np.zeros(spec.global_features, np.float32),
        )
        batch, counts = GraphBatch(*map(tf.constant, batch_graphs([graph]))), tf.zeros([1, spec.n_rules], tf.int32)
        self.encoder.loss(batch, counts)
        actions = tf.zeros([1, 2], tf.int32)
        member(self.encoder(batch), counts, actions, member.initial_state(1))


def disagreement(outcomes: Sequence[Outcome]) -> tf.Tensor:
    """Return the disagreement of ensemble members about B steps, float32 [B]; zeros for a single member.

    The disagreement is the standard deviation of the predicted rewards plus the share of rules whose predicted masks
    differ.
    """
    if len(outcomes) == 1:
        return tf.zeros_like(outcomes[0].reward)
    masks = tf.stack([outcome.shown_counts > 0 for outcome in outcomes])
    differ = tf.reduce_any(masks, axis=0) != tf.reduce_all(masks, axis=0)
    rewards = tf.stack([outcome.reward for outcome in outcomes])
    return tf.math.reduce_std(rewards, axis=0) + tf.reduce_mean(tf.cast(differ, tf.float32), axis=-1)


def _joined(states: Sequence[snt.LSTMState]) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.concat([state.hidden for state in states], axis=1), tf.concat([state.cell for state in states], axis=1)
