"""The world model "mdn-rnn": graph encoder and MDN-RNN behind one NumPy interface."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import sonnet as snt
import tensorflow as tf

from rlflow.errors import RLFlowError
from rlflow.files import read_arrays, read_json, write_arrays, write_json
from rlflow.graph.features import EncodingSpec, GraphArrays
from worldmodel.batching import GraphBatch, batch_graphs, batches_of_nodes, compiled, graph_signature
from worldmodel.checkpoint import module_arrays, restore_arrays
from worldmodel.config import WorldModelConfig
from worldmodel.encoder import GraphEncoder
from worldmodel.mdn_rnn import MDNRNN

NODES_PER_BATCH = 8192  # graphs are encoded in batches of about this many nodes, whatever their number


class State(NamedTuple):
    """The recurrent state: h float32 [B, H], the LSTM's output (controllers see it), and its cell c [B, H]."""

    h: np.ndarray
    c: np.ndarray


class Step(NamedTuple):
    """One predicted step of B dreams; the fields of `mdn_rnn.Outcome`, and the next recurrent state."""

    z: np.ndarray
    counts: np.ndarray
    shown_counts: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    state: State


class WorldModel(snt.Module):
    """Encodes graphs and predicts what actions do to them. Takes and gives NumPy arrays.

    Attributes: spec, config, encoder, dynamics.
    """

    def __init__(self, spec: EncodingSpec, config: WorldModelConfig):
        super().__init__(name="world_model")
        self.spec, self.config = spec, config
        self.encoder = GraphEncoder(spec, config.latent, config.encoder_hidden, config.message_passing_steps)
        self.dynamics = MDNRNN(spec, config.latent, config.hidden, config.gaussians)
        self._build()
        self._encode = compiled(self.encoder, graph_signature(spec))
        self._latent = compiled(self.encoder.latent, graph_signature(spec))
        self._step = compiled(
            self._predict, tf.TensorSpec([None, config.latent]), tf.TensorSpec([None, spec.n_xfers], tf.int32),
            tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([None, config.hidden]),
            tf.TensorSpec([None, config.hidden]), tf.TensorSpec([]), tf.TensorSpec([2], tf.int32),
        )

    def encode(self, graphs: Sequence[GraphArrays]) -> np.ndarray:
        """z float32 [len(graphs), Z]."""
        return np.concatenate([self._encode(batch).numpy() for batch in batches_of_nodes(graphs, NODES_PER_BATCH)])

    def standardise_latents(self, graphs: Sequence[GraphArrays], rate: float = 1.0) -> None:
        """Makes the z of these graphs have mean 0 and variance 1 (as far as `rate` lets them)."""
        latents = [self._latent(batch) for batch in batches_of_nodes(graphs, NODES_PER_BATCH)]
        self.encoder.latent_statistics.update(tf.concat(latents, axis=0), rate)

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode: zeros."""
        return State(*(np.zeros((batch_size, self.config.hidden), np.float32) for _ in State._fields))

    def step(
        self, z: np.ndarray, counts: np.ndarray, actions: np.ndarray, state: State,
        temperature: float = 0.0, seed: tuple[int, int] = (0, 0),
    ) -> Step:
        """Predicts B steps: z [B, Z], counts int [B, N], actions int [B, 2]. At temperature 0, the most likely one."""
        z, counts, shown, reward, terminated, h, c = self._step(
            z, counts.astype(np.int32), actions.astype(np.int32), *state, np.float32(temperature),
            np.asarray(seed, np.int32),
        )
        state = State(h.numpy(), c.numpy())
        return Step(z.numpy(), counts.numpy(), shown.numpy(), reward.numpy(), terminated.numpy(), state)

    def save(self, folder: Path | str) -> None:
        """Writes model.json (config, spec) and weights.npz. Equal weights give equal bytes."""
        folder = Path(folder)
        write_json(folder / "model.json", {"config": self.config.to_dict(), "spec": self.spec.to_dict()})
        write_arrays(folder / "weights.npz", module_arrays(self))

    @classmethod
    def load(cls, folder: Path | str, spec: EncodingSpec | None = None) -> Self:
        """Reads what `save` wrote. Raises RLFlowError if it is damaged, or made for another spec than the one given."""
        folder = Path(folder)
        described = read_json(folder / "model.json")
        try:
            saved, config = EncodingSpec(**described["spec"]), WorldModelConfig(**described["config"])
        except (KeyError, TypeError) as error:
            raise RLFlowError(f"{folder / 'model.json'} does not describe a world model: {error}") from error
        if spec is not None:
            refuse_other_spec(saved, spec, str(folder))
        model = cls(saved, config)
        restore_arrays(model, read_arrays(folder / "weights.npz"), str(folder / "weights.npz"))
        return model

    def _predict(self, z, counts, actions, h, c, temperature, seed):
        prediction, state = self.dynamics(z, counts, actions, snt.LSTMState(h, c))
        return *self.dynamics.outcome(prediction, z, counts, actions, temperature, seed), state.hidden, state.cell

    def _build(self) -> None:
        """Creates every variable, by one run over a graph of one node."""
        spec = self.spec
        graph = GraphArrays(
            np.zeros(1, np.int32), np.zeros((1, spec.node_features), np.float32),
            np.zeros((1, spec.edge_features), np.float32), np.zeros(1, np.int32), np.zeros(1, np.int32),
            np.zeros(spec.global_features, np.float32),
        )
        batch, counts = GraphBatch(*map(tf.constant, batch_graphs([graph]))), tf.zeros([1, spec.n_xfers], tf.int32)
        self.encoder.loss(batch, counts)
        self.dynamics(self.encoder(batch), counts, tf.zeros([1, 2], tf.int32), self.dynamics.initial_state(1))


def refuse_other_spec(saved: EncodingSpec, wanted: EncodingSpec, source: str) -> None:
    differences = [
        f"{field.name} is {getattr(saved, field.name)}, not {getattr(wanted, field.name)}"
        for field in fields(EncodingSpec) if getattr(saved, field.name) != getattr(wanted, field.name)
    ]
    if differences:
        raise RLFlowError(f"the world model in {source} was made for another encoding: {'; '.join(differences)}")
