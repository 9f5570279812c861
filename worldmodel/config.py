"""The options of a world model and of its training."""

from dataclasses import asdict, dataclass

from rlflow.errors import RLFlowError


@dataclass(frozen=True)
class WorldModelConfig:
    """Every option, with the paper's value where the paper states one (sections 3.3, 4.7).

    The model:
      name: which world model of `worldmodel.WORLD_MODELS`.
      latent: Z, dimensions of the latent state z.
      encoder_hidden: width of the graph network.
      message_passing_steps: rounds of message passing (paper: 5).
      hidden: H, units of the LSTM (paper: 256).
      gaussians: K, components of the mixture of each latent dimension (paper: 8).

    The training:
      mode: "offline" (episodes collected first; encoder, then dynamics) or "online" (the paper's: every mini-batch
        of fresh episodes gives one step of each and is thrown away).
      encoder_steps: gradient steps of the encoder (offline; online makes `steps` of both).
      steps: gradient steps of the MDN-RNN (paper: 5,000).
      batch_graphs: graphs in an encoder mini-batch.
      batch_episodes: episodes in an MDN-RNN mini-batch (paper: 10).
      max_sequence: gradients flow through at most this many steps. A longer episode gives a random window of that
        many, whose recurrent state is warmed up by the episode's earlier steps.
      learning_rate, final_learning_rate, decay_power: polynomial decay over each phase (paper: power 2).
      gradient_clip: largest global norm of a gradient.
      holdout: fraction of the episodes kept from training for the fidelity table.
      checkpoint_seconds: a checkpoint is written this often.
      threads: TensorFlow's intra-op threads; 0 leaves the choice to TensorFlow.
    """

    name: str = "mdn-rnn"
    latent: int = 32
    encoder_hidden: int = 32
    message_passing_steps: int = 5
    hidden: int = 256
    gaussians: int = 8
    mode: str = "offline"
    encoder_steps: int = 1000
    steps: int = 5000
    batch_graphs: int = 32
    batch_episodes: int = 10
    max_sequence: int = 64
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    decay_power: float = 2.0
    gradient_clip: float = 1.0
    holdout: float = 0.1
    checkpoint_seconds: float = 60.0
    threads: int = 0

    def __post_init__(self):
        if self.mode not in ("offline", "online"):
            raise RLFlowError(f"world model: mode is 'offline' or 'online', not '{self.mode}'")
        if not 0 <= self.holdout < 1:
            raise RLFlowError(f"world model: holdout must be in [0, 1), not {self.holdout}")

    def to_dict(self) -> dict:
        return asdict(self)
