"""Options of the world models, of their training and of the dream: common options, and options of each world model."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

from rlflow.common.errors import RLFlowError
from rlflow.common.options import check, option, options_of
from rlflow.common.registry import Registry

ABOVE_0 = range(1, sys.maxsize)

CONFIGS = Registry(
    "world model",
    {
        "mdn-rnn": "worldmodel.world_model_options:MDNRNNConfig",
        "edits": "worldmodel.world_model_options:EditsConfig",
        "graph-mdn": "worldmodel.world_model_options:GraphMDNConfig",
    },
)


@dataclass(frozen=True)
class WorldModelConfig:
    """The world model.

    This class has the options that all world models share. `CONFIGS` maps the name of a world model to its subclass.
    """

    needs: ClassVar[tuple[str, ...]] = ()  # packages of the extra `learn` that the world model imports
    groups: ClassVar[Registry] = CONFIGS
    modes: ClassVar[tuple[str, ...]] = ("offline", "online")  # values of `mode` that the world model supports

    name: str = option(
        "graph-mdn",
        "which world model: graph-mdn (predicts what each rewrite changes, by graph networks with a recurrent state), "
        "edits (the same, by tables) or mdn-rnn (the paper's)",
    )
    mode: str = option(
        "offline",
        "offline: learn from `collect`; online (mdn-rnn): fresh mini-batches, each used once (the paper's way)",
        choices=("offline", "online"),
    )
    holdout: float = option(0.1, "fraction of the episodes kept for the fidelity table", at_least=0, at_most=0.9)
    checkpoint_seconds: float = option(30.0, "seconds between two checkpoints")
    threads: int = option(
        1, "TensorFlow's threads inside one operator, for large networks; 0 leaves the choice to TensorFlow",
        at_least=0,
    )  # fmt: skip

    def __post_init__(self):
        check(self, f"the world model {self.name}")
        if self.mode not in self.modes:
            raise RLFlowError(
                f"the world model '{self.name}' learns from collected episodes. Set world_model.mode=offline"
            )

    @property
    def total_steps(self) -> int:
        """The number of steps of the whole training, for its progress bar."""
        raise NotImplementedError("total_steps -> int")

    def to_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class MDNRNNConfig(WorldModelConfig):
    """The paper's recurrent mixture-density network, with the paper's values (sections 3.3, 4.7).

    The paper is RLFlow (Parker, Alabed & Yoneki 2022).
    """

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet", "graph_nets")

    name: str = "mdn-rnn"
    latent: int = option(32, "Z, dimensions of the latent state z")
    encoder_hidden: int = option(32, "width of the encoder, a graph network")
    message_passing_steps: int = option(5, "rounds of message passing in the encoder (paper: 5)")
    hidden: int = option(256, "H, units of the LSTM (paper: 256)")
    gaussians: int = option(8, "K, components of the mixture of each latent dimension (paper: 8)")
    sigma_temperature: bool = option(
        True, "the temperature scales the variances too, not the mixture's logits alone (paper)"
    )
    reward_network: bool = option(
        False,
        "a separate network for the reward, from latent state and action (suggested by the paper), instead of a "
        "head on the LSTM",
    )
    mask_heads: bool = option(
        True,
        "predict location counts and masks; otherwise a dream keeps the counts of its start (the paper used the real "
        "environment)",
    )
    members: int = option(
        1, "MDN-RNNs in the ensemble; the first one dreams, and the disagreement of all is the uncertainty"
    )
    encoder: str = option(
        "trained",
        "trained (before the dynamics, from what its decoder must predict of the graphs) or untrained (the paper's)",
        choices=("trained", "untrained"),
    )
    encoder_steps: int = option(
        400, "gradient steps of the encoder (offline, trained)", at_least=0,
        used_if={"encoder": ("trained",), "world_model.mode": ("offline",)},
    )  # fmt: skip
    steps: int = option(600, "gradient steps of the MDN-RNN (paper: 5,000; online: of both)")
    batch_graphs: int = option(16, "graphs in an encoder mini-batch")
    batch_episodes: int = option(10, "episodes in an MDN-RNN mini-batch (paper: 10)")
    max_sequence: int = option(
        40,
        "steps that gradients flow through; a longer episode gives a random window, warmed up by the steps before it",
    )
    learning_rate: float = option(0.002, "learning rate at the start of each phase")
    final_learning_rate: float = option(0.00001, "learning rate at the end of each phase", at_least=0)
    decay_power: float = option(2.0, "power of the polynomial decay between the two (paper: 2)", at_least=0)
    gradient_clip: float = option(1.0, "largest global norm of a gradient")
    evaluate_every: int = option(
        50, "steps between two evaluations of the held-out loss, if patience is not 0", used_if={"patience": ABOVE_0}
    )
    patience: int = option(
        0,
        "evaluations without a better held-out loss before the training stops and keeps the best weights; 0: never",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.patience and (self.mode == "online" or not self.holdout):
            raise RLFlowError(
                "mdn-rnn: patience needs held-out episodes from the start. Set mode=offline and a holdout above 0"
            )

    @property
    def encoder_updates(self) -> int:
        """The number of gradient steps of the encoder before the first gradient step of the dynamics."""
        return self.encoder_steps if self.mode == "offline" and self.encoder == "trained" else 0

    @property
    def total_steps(self) -> int:
        return self.encoder_updates + self.steps


SUPERVISION = (
    "supervision besides the changes by rewrites: nodes (the cost of every node) or scalar (only the rewards of steps, "
    "from which the costs of nodes are solved); mdn-rnn learns from rewards and masks only"
)


@dataclass(frozen=True)
class EditsConfig(WorldModelConfig):
    """Predicts what each rewrite changes.

    The world model `edits` (worldmodel/edits) learns tables and needs no gradient steps.
    """

    modes: ClassVar[tuple[str, ...]] = ("offline",)

    name: str = "edits"
    latent: int = option(32, "dimensions of the latent state z")
    supervision: str = option("nodes", SUPERVISION, choices=("nodes", "scalar"))

    @property
    def total_steps(self) -> int:
        return 1


@dataclass(frozen=True)
class GraphMDNConfig(WorldModelConfig):
    """Predicts what each rewrite changes, by graph networks.

    These are the options of the world model `graph-mdn` (worldmodel/graph_mdn).
    """

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet", "graph_nets")
    modes: ClassVar[tuple[str, ...]] = ("offline",)

    name: str = "graph-mdn"
    latent: int = option(32, "dimensions of the latent state z")
    latent_rounds: int = option(
        2, "rounds of message passing between the nodes of the graph that z encodes; 0: none", at_least=0, at_most=5
    )
    latent_steps: int = option(300, "gradient steps of the network that encodes graphs in z")
    hidden: int = option(
        64,
        "units of the recurrent state h, which predicts what the graph does not say: rewards that are no sum, and how "
        "far the dream may be off; 0: none",
        at_least=0,
    )
    mixture: int = option(
        5, "Gaussians of the mixture for the part of a reward that the recurrent state predicts; the temperature of a "
        "dream acts on it", used_if={"hidden": ABOVE_0},
    )  # fmt: skip
    recall: bool = option(
        True, "effects and costs that the data contain are recalled, and the networks predict the others; false: the "
        "networks predict all",
    )  # fmt: skip
    width: int = option(64, "width of embeddings and hidden layers")
    message_passing_steps: int = option(2, "rounds of message passing around a match")
    gaussians: int = option(
        1, "components of the mixture for a node's cost; use several if equal nodes may have different costs"
    )
    match_networks: int = option(
        2, "networks that judge matches; where they disagree, a dream is uncertain"
    )
    match_steps: int = option(500, "gradient steps of each of these networks")
    node_steps: int = option(1000, "gradient steps of the network that predicts costs of nodes")
    episode_steps: int = option(
        400, "gradient steps of the network with the recurrent state", used_if={"hidden": ABOVE_0}
    )
    calibration: float = option(
        0.1,
        "fraction of the training episodes from which no network but the recurrent state learns, since errors of the "
        "others show only on such episodes; the trained model recalls them too",
        at_least=0, at_most=0.5, used_if={"hidden": ABOVE_0},
    )  # fmt: skip
    learning_rate: float = option(0.002, "initial learning rate of each network; it decays along a cosine")
    supervision: str = option("nodes", SUPERVISION, choices=("nodes", "scalar"))

    @property
    def total_steps(self) -> int:
        steps = self.match_networks * self.match_steps + self.node_steps + self.latent_steps
        return steps + (self.episode_steps if self.hidden else 0)


IN_DREAMS = {"controller.train_on": ("dream",)}
SAMPLING = ("ppo", "cma-es", "random")  # controllers that sample dreams; the planner searches the most likely outcomes


@dataclass(frozen=True)
class DreamOptions:
    """The dream that controllers learn in.

    A dream is an environment in which a world model replaces the real environment; see worldmodel/dream.py.
    """

    temperatures: tuple[float, ...] = option(
        (1.0,), "temperatures of the dream; one controller is trained at each", at_least=0, distinct=True,
        used_if=IN_DREAMS | {"controller.name": SAMPLING},
    )  # fmt: skip
    max_steps: int = option(
        100, "steps after which a dream is truncated; 20 is better if the world model's errors accumulate (mdn-rnn)",
        used_if=IN_DREAMS,
    )  # fmt: skip
    uncertainty_limit: float | None = option(
        0.5,
        "a step with a higher uncertainty ends the dream without its positive reward (1 unknown effect, 0.5 uncertain "
        "effect, 0.25 uncertain gain or, in edits, an effect by analogy whose costs are known); null: no limit",
        at_least=0, used_if=IN_DREAMS,
    )  # fmt: skip
    uncertainty_penalty: float = option(
        0.0, "reward subtracted per unit of uncertainty of a step", at_least=0, used_if=IN_DREAMS
    )


COMMON = tuple(options_of(WorldModelConfig))


def world_model_config(section: Mapping) -> WorldModelConfig:
    """Return the options of the world model that a run's config chooses.

    Args:
      section: the section `world_model` of the resolved config. It has the common options and, under the name of each
        world model, the options of that world model.
    """
    common = {name: section[name] for name in COMMON}
    return CONFIGS.get(section["name"])(**common, **section[section["name"]])


def option_key(config: WorldModelConfig, name: str) -> str:
    """Return the key of an option in a config file, such as "world_model.holdout" or "world_model.mdn-rnn.hidden".

    Args:
      config: the options of the world model.
      name: the field of `config`.
    """
    return f"world_model.{name}" if name in COMMON else f"world_model.{config.name}.{name}"
