"""The options of the world models and of their training: what all have, and what each has besides."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

from rlflow.common.errors import RLFlowError


@dataclass(frozen=True)
class WorldModelConfig:
    """What every world model has.

    name: which one of `worldmodel.WORLD_MODELS`.
    mode: "offline" (episodes collected first) or "online" (fresh mini-batches of episodes, each used once and thrown
      away).
    holdout: fraction of the episodes kept from training for the fidelity table.
    checkpoint_seconds: a checkpoint is written this often.
    threads: TensorFlow's intra-op threads; 0 leaves the choice to TensorFlow.
    """

    uses_tensorflow: ClassVar[bool] = False

    name: str
    mode: str = "offline"
    holdout: float = 0.1
    checkpoint_seconds: float = 60.0
    threads: int = 0

    def __post_init__(self):
        if self.mode not in ("offline", "online"):
            raise RLFlowError(f"world model: mode is 'offline' or 'online', not '{self.mode}'")
        if not 0 <= self.holdout < 1:
            raise RLFlowError(f"world model: holdout must be in [0, 1), not {self.holdout}")

    @property
    def total_steps(self) -> int:
        """Steps that the progress of a training counts."""
        raise NotImplementedError("total_steps -> int")

    def to_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class MDNRNNConfig(WorldModelConfig):
    """Of `mdn-rnn`; the paper's value where the paper states one (sections 3.3, 4.7).

    The model:
      latent: Z, dimensions of the latent state z.
      encoder_hidden: width of the graph network.
      message_passing_steps: rounds of message passing (paper: 5).
      hidden: H, units of the LSTM (paper: 256).
      gaussians: K, components of the mixture of each latent dimension (paper: 8).
      sigma_temperature: the temperature also scales the variances (Ha & Schmidhuber), not the mixture's logits alone (paper).
      reward_network: a network of its own predicts the reward from latent state and action (suggested by the paper),
        instead of a head on the LSTM.
      mask_heads: heads predict the location counts and which rules apply. Without them a dream goes on with those of its
        start; the paper asked the real environment.
      action: what tells an action besides its rule: "numbers" (the location's number) or "meaning" (the encoder's
        embedding of the nodes that it matches; in a dream, which has no nodes, its mean for this rule and location in the data).
      members: MDN-RNNs that learn side by side. The first one dreams; how much the others differ is its doubt.

    The training; online, the paper's way, every mini-batch gives one step of the encoder and one of the dynamics:
      encoder: "trained" (offline: before the dynamics, from what its decoder must tell of the graphs), "joint" (together with
        the dynamics, whose loss reaches it; each step encodes the graphs of its windows, which begin with nothing
        remembered) or "untrained" (as it was made: the paper's).
      encoder_steps: gradient steps of the trained encoder (offline; online makes `steps` of both).
      steps: gradient steps of the MDN-RNN (paper: 5,000).
      batch_graphs: graphs in an encoder mini-batch.
      batch_episodes: episodes in an MDN-RNN mini-batch (paper: 10).
      max_sequence: gradients flow through at most this many steps. A longer episode gives a random window of that
        many, whose recurrent state is warmed up by the episode's earlier steps.
      learning_rate, final_learning_rate, decay_power: polynomial decay over each phase (paper: power 2).
      gradient_clip: largest global norm of a gradient.
      evaluate_every: steps of the dynamics between two looks at the loss on the held-out episodes, if patience is not 0.
      patience: the training stops after so many looks without a better loss, and the best weights are kept; 0: never.
    """

    uses_tensorflow: ClassVar[bool] = True

    name: str = "mdn-rnn"
    latent: int = 32
    encoder_hidden: int = 32
    message_passing_steps: int = 5
    hidden: int = 256
    gaussians: int = 8
    sigma_temperature: bool = True
    reward_network: bool = False
    mask_heads: bool = True
    action: str = "numbers"
    members: int = 1
    encoder: str = "trained"
    encoder_steps: int = 1000
    steps: int = 5000
    batch_graphs: int = 32
    batch_episodes: int = 10
    max_sequence: int = 64
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    decay_power: float = 2.0
    gradient_clip: float = 1.0
    evaluate_every: int = 50
    patience: int = 0

    def __post_init__(self):
        super().__post_init__()
        for name, choices in (("encoder", ("trained", "joint", "untrained")), ("action", ("numbers", "meaning"))):
            if getattr(self, name) not in choices:
                raise RLFlowError(f"mdn-rnn: {name} is one of {', '.join(choices)}, not '{getattr(self, name)}'")
        if self.encoder == "joint" and (self.action != "numbers" or self.members > 1 or self.mode == "online"):
            raise RLFlowError("mdn-rnn: encoder=joint goes with action=numbers, members=1 and mode=offline alone")
        if self.patience and (self.mode == "online" or not self.holdout):
            raise RLFlowError("mdn-rnn: patience needs held-out episodes from the start: mode=offline, and a holdout above 0")

    @property
    def encoder_updates(self) -> int:
        """Steps of the encoder before those of the dynamics."""
        return self.encoder_steps if self.mode == "offline" and self.encoder == "trained" else 0

    @property
    def total_steps(self) -> int:
        return self.encoder_updates + self.steps


@dataclass(frozen=True)
class EditsConfig(WorldModelConfig):
    """Of `edits`.

    latent: Z, dimensions of the latent state z.
    """

    name: str = "edits"
    latent: int = 32

    def __post_init__(self):
        super().__post_init__()
        if self.mode != "offline":
            raise RLFlowError("the world model 'edits' learns from collected episodes: world_model.mode=offline")

    @property
    def total_steps(self) -> int:
        return 1


CONFIGS: dict[str, type[WorldModelConfig]] = {"mdn-rnn": MDNRNNConfig, "edits": EditsConfig}
COMMON = tuple(field.name for field in fields(WorldModelConfig))


def world_model_config(section: Mapping) -> WorldModelConfig:
    """The options of the world model that the section `world_model` names, of its common part and of that model's own."""
    common = {name: section[name] for name in COMMON}
    return CONFIGS[section["name"]](**common, **section[section["name"]])


def option_key(config: WorldModelConfig, name: str) -> str:
    """Where an option stands in a config file: "world_model.holdout", "world_model.mdn-rnn.hidden"."""
    return f"world_model.{name}" if name in COMMON else f"world_model.{config.name}.{name}"
