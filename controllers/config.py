"""The options of controllers and of how they learn. Imports no TensorFlow, so that a config can be read without."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

from rlflow.common.errors import RLFlowError
from rlflow.common.options import check, groups_from, option, options_from
from rlflow.common.registry import Registry
from rlflow.search.options import AnnealingOptions, BeamOptions

CONFIGS = Registry(
    "controller",
    {
        "random": "controllers.config:RandomConfig",
        "cma-es": "controllers.config:CMAESConfig",
        "ppo": "controllers.config:PPOConfig",
        "planner": "controllers.config:PlannerConfig",
        "linear-scores": "controllers.config:LinearScoresConfig",
    },
)


@dataclass(frozen=True)
class IterationOptions:
    """Iterations of learning the world model (`train-wm --iterations N`)."""

    count: int = option(
        1,
        "after the first one a controller learns in the dream so far and plays the real graph, for the model to learn "
        "from",
    )
    interactions: int = option(
        10_000,
        "steps of the real environment in all iterations together, those of `collect` included; no step counts twice",
    )


@dataclass(frozen=True)
class ControllerOptions:
    """Who acts."""

    groups: ClassVar[Registry] = CONFIGS

    name: str = option("planner", "planner, ppo, cma-es or random; linear-scores for one-shot tasks")
    max_steps: int = option(500, "steps after which its episode on the real graph is cut")
    train_on: str = option(
        "dream", "dream, or real: on the real graph itself, without learning from dreams (the model-free baseline)",
        choices=("dream", "real"),
    )  # fmt: skip
    interactions: int = option(
        10_000, "real: steps of the real environment at most, all copies and evaluations together"
    )


class LearnerConfig:
    """What the options of any controller say besides.

    needs: what it imports of the extra `learn`.
    """

    needs: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class RandomConfig(LearnerConfig):
    """Every valid action alike."""

    dreams: int = option(64, "episodes whose mean return is reported")
    max_steps: int = option(200, "steps after which an unfinished one is cut")

    def __post_init__(self):
        check(self, "random")


@dataclass(frozen=True)
class CMAESConfig(LearnerConfig):
    """Evolution of the weights of a small policy."""

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "cma")

    generations: int = option(
        40, "budget; after a new start with twice as many individuals each counts as 2, then 4, …"
    )
    popsize: int = option(32, "individuals in a generation of the first start", at_least=4)
    dreams: int = option(4, "episodes whose mean return is an individual's fitness")
    policy: str = option(
        "linear", "priorities (of match classes, whatever the state), linear (in z and h) or mlp (one hidden layer)",
        choices=("priorities", "linear", "mlp"),
    )  # fmt: skip
    hidden: int = option(16, "units of mlp's layer")
    sigma0: float = option(0.1, "standard deviation of the first generation's weights; scores begin in ±1")
    full_covariance: int = option(100, "weights up to which all covariances are learnt; of more, the variances alone")
    evaluate_every: int = option(5, "generations between evaluations of the mean and of the best individual")
    max_steps: int = option(200, "steps after which an unfinished episode is cut")
    patience: int = option(10, "generations of equal fitness that are tolerated")

    def __post_init__(self):
        check(self, "cma-es")


@dataclass(frozen=True)
class PPOConfig(LearnerConfig):
    """Gradients of the policy."""

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet")

    policy: str = option(
        "match-classes",
        "match-classes (chooses among those that are there) or two-stage (the paper's: a rule, then a location)",
        choices=("match-classes", "two-stage"),
    )
    greedy_prior: float = option(
        5.0,
        "match-classes: logits by which it prefers, before it learns, one of usual mean reward to NO-OP",
        at_least=0,
    )
    updates: int = option(60, "budget")
    envs: int = option(32, "environments played side by side")
    steps: int = option(64, "steps of each environment between two updates")
    epochs: int = option(4, "passes over those transitions")
    minibatches: int = option(4, "parts of a pass, one gradient step each")
    learning_rate: float = option(0.001, "Adam's, at the first update")
    anneal: bool = option(True, "let the learning rate fall linearly to 0")
    gamma: float = option(0.995, "discount per step", at_least=0, at_most=1)
    gae_lambda: float = option(
        0.95, "of the generalised advantage estimate; 1 is Monte Carlo, 0 one-step", at_least=0, at_most=1
    )
    clip: float = option(0.2, "the probability ratio is clipped to 1 ± clip")
    entropy_weight: float = option(0.003, "of the bonus for the entropy (of both stages), in nats", at_least=0)
    value_weight: float = option(0.5, "of the squared error of the value head", at_least=0)
    max_gradient_norm: float = option(0.5, "global norm that gradients are clipped to")
    hidden: int = option(128, "units of the trunk's two layers and of the two-stage location head")
    embedding: int = option(32, "size of the rule embedding that this location head sees")
    evaluate_every: int = option(5, "updates between evaluations (and checkpoints); divides `updates`")
    evaluation_dreams: int = option(8, "episodes of a greedy evaluation; the best policy by its mean return is kept")
    max_steps: int = option(200, "steps after which an unfinished evaluation episode is cut")

    def __post_init__(self):
        check(self, "ppo")
        if self.updates % self.evaluate_every or (self.envs * self.steps) % self.minibatches:
            raise RLFlowError("ppo needs evaluate_every to divide updates, and minibatches to divide envs × steps")


@dataclass(frozen=True)
class PlannerConfig(LearnerConfig):
    """The searches of the groups search.beam and search.annealing, in the dream."""

    steps: int = option(10_000, "rewrites that may be tried in the dream")
    annealing: float = option(0.5, "share of them for annealing, after beam search", at_least=0, at_most=1)
    uncertainty_limit: float = option(
        0.25, "steps of which the world model is more uncertain are not planned", at_least=0
    )
    beam_search: BeamOptions = options_from("search.beam", BeamOptions)
    annealing_search: AnnealingOptions = options_from("search.annealing", AnnealingOptions)

    def __post_init__(self):
        check(self, "the planner")


@dataclass(frozen=True)
class LinearScoresConfig(LearnerConfig):
    """Evolution of a linear score of each node's options, for one-shot tasks."""

    needs: ClassVar[tuple[str, ...]] = ("cma",)

    generations: int = option(60, "budget; after a new start with twice as many individuals each is twice as large")
    popsize: int = option(16, "individuals in a generation of the first start", at_least=4)
    sigma0: float = option(0.5, "standard deviation of the first generation's weights")
    patience: int = option(10, "generations of equal fitness that are tolerated")

    def __post_init__(self):
        check(self, "linear-scores")


def controller_config(config: Mapping):
    """The options of the controller that a whole config names, with those of other groups that it takes."""
    name = config["controller"]["name"]
    kind = CONFIGS.get(name)
    others = {}
    for key, (group, options) in groups_from(kind).items():
        others[key] = options(**reduce(lambda section, part: section[part], group.split("."), config))
    return kind(**config["controller"][name], **others)
