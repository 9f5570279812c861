"""The options of controllers and of how they learn. Imports no TensorFlow, so that a config can be read without."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

from rlflow.common.errors import RLFlowError
from rlflow.common.options import check, groups_from, option, options_from, read
from rlflow.common.registry import Registry
from rlflow.common.task import Observes
from rlflow.search import AnnealingOptions, BeamOptions

CONFIGS = Registry(
    "controller",
    {
        "random": "controllers.controller_options:RandomConfig",
        "cma-es": "controllers.controller_options:CMAESConfig",
        "ppo": "controllers.controller_options:PPOConfig",
        "planner": "controllers.controller_options:PlannerConfig",
        "xrlflow": "controllers.controller_options:XRLflowConfig",
        "linear-scores": "controllers.controller_options:LinearScoresConfig",
        "topoformer": "controllers.controller_options:TopoformerConfig",
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

    name: str = option(
        "planner",
        "planner, ppo, cma-es, random or xrlflow; linear-scores for one-shot tasks, topoformer for orders",
    )
    max_steps: int = option(500, "steps after which its episode on the real graph is cut")
    train_on: str = option(
        "dream", "dream, or real: on the real graph itself, without learning from dreams (the model-free baseline)",
        choices=("dream", "real"),
    )  # fmt: skip
    interactions: int = option(
        10_000, "real: steps of the real environment at most, all copies and evaluations together"
    )
    measurement_seconds: float | None = option(
        None, "real: seconds of measurement at most (env.reward=measured), each graph once; null: any number"
    )


class LearnerConfig:
    """What the options of any controller say besides.

    needs: what it imports of the extra `learn`.  observes: what it is shown.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    observes: ClassVar[Observes] = Observes.LATENT


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
    priorities_first: int = option(
        20, "linear, mlp: generations that search through priorities, from where the others go on", at_least=0
    )
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
        "match-classes: logits by which it prefers, before it learns, one of middling usual reward to NO-OP",
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
class XRLflowConfig(LearnerConfig):
    """X-RLflow: a graph network sees the graph and all candidates, on the real graph alone."""

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet")
    observes: ClassVar[Observes] = Observes.CANDIDATES

    encoding: str = option(
        "local",
        "local (of each candidate what it changes, as far as the network looks) or whole (each candidate from end to "
        "end, as in the paper): the same numbers, in other time and memory",
        choices=("local", "whole"),
    )
    head: str = option(
        "each",
        "each (one head scores every candidate) or flattened (the paper's: all candidates end to end into one layer)",
        choices=("each", "flattened"),
    )
    padding: int = option(500, "flattened: candidates that it can choose, the first ones")
    gains: bool = option(
        False,
        "each: the estimated gain of each candidate is shown, and the policy begins as a draw among those that gain; "
        "for an agent that acts on models that it never saw",
    )
    also: tuple[str, ...] = option(
        (), "further models (paths or zoo names) that it learns on, in turn; also train-controller --models"
    )
    imitate: int = option(
        0, "passes over what beam search did on the models that it learns on, before it learns from rewards", at_least=0
    )
    updates: int = option(100, "budget; 0 for imitation alone", at_least=0)
    episodes: int = option(10, "sampled episodes between two updates; after an update a greedy one judges the policy")
    epochs: int = option(4, "passes over their transitions at most")
    batch: int = option(16, "transitions of a gradient step")
    target_kl: float = option(0.05, "an update ends with the pass in which the policy moved farther than that")
    learning_rate: float = option(0.0005, "Adam's")
    gamma: float = option(0.99, "discount per step", at_least=0, at_most=1)
    gae_lambda: float = option(0.95, "of the generalised advantage estimate", at_least=0, at_most=1)
    clip: float = option(0.2, "the probability ratio is clipped to 1 ± clip")
    entropy_weight: float = option(0.01, "of the bonus for the entropy, in nats", at_least=0)
    value_weight: float = option(0.5, "of the squared error of the value head", at_least=0)
    max_gradient_norm: float = option(0.5, "global norm that gradients are clipped to")
    layers: int = option(5, "of attention: so many edges a node looks back")
    width: int = option(64, "of a node in all layers")
    global_width: int = option(32, "of a graph, and of what a candidate changes")

    def __post_init__(self):
        check(self, "xrlflow")
        if self.gains and self.head != "each":
            raise RLFlowError(f"xrlflow: gains=true needs head=each, not {self.head}")


@dataclass(frozen=True)
class LinearScoresConfig(LearnerConfig):
    """Evolution of a linear score of each node's options, for one-shot tasks."""

    needs: ClassVar[tuple[str, ...]] = ("cma",)
    observes: ClassVar[Observes] = Observes.GRAPH

    generations: int = option(60, "budget; after a new start with twice as many individuals each is twice as large")
    popsize: int = option(16, "individuals in a generation of the first start", at_least=4)
    sigma0: float = option(0.5, "standard deviation of the first generation's weights")
    patience: int = option(10, "generations of equal fitness that are tolerated")

    def __post_init__(self):
        check(self, "linear-scores")


@dataclass(frozen=True)
class TopoformerConfig(LearnerConfig):
    """REINFORCE on new graphs: priorities of nodes, for the task ordering. In brackets what the paper has."""

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet")
    observes: ClassVar[Observes] = Observes.GRAPH

    start: str | None = option(
        None, "folder of a trained one to begin with, or shipped: RLFlow's own; with epochs=0 it orders as it is"
    )
    epochs: int = option(325, "budget (325)", at_least=0)
    steps: int = option(125, "gradient steps of an epoch (125)")
    batch: int = option(8, "new graphs of a step (8)")
    nodes: tuple[int, ...] = option((100,), "of these graphs, in turns (500)", distinct=True)
    orders: int = option(8, "drawn of each graph (1)")
    baseline: str = option(
        "mean",
        "what they are compared with: mean (of the orders of that graph) or greedy (the best network's greedy one, as "
        "in the paper)",
        choices=("mean", "greedy"),
    )
    learning_rate: float = option(0.001, "Adam's, in the first epoch (0.0001)")
    decay: float = option(0.99, "of the learning rate, by epoch (0.996)", at_most=1)
    evaluation_graphs: int = option(200, "on which networks are compared after each epoch", at_least=2)
    width: int = option(64, "of a node's embedding (256)")
    layers: int = option(3, "of attention (4)")
    heads: int = option(2, "of attention, for each graph that it goes along (10)")
    head_size: int = option(16, "numbers of a head (64)")
    attends: str = option(
        "seven",
        "seven (the paper's graphs), both-ways (the edges), forward (from sources alone), all (pairs alike) or none",
        choices=("seven", "both-ways", "forward", "all", "none"),
    )
    beam: int = option(16, "width of the beams (16)")

    def __post_init__(self):
        check(self, "topoformer")
        if self.baseline == "mean" and self.orders == 1:
            raise RLFlowError("topoformer: the mean of one order is no baseline; say baseline=greedy, or more orders")


def controller_config(config: Mapping):
    """The options of the controller that a whole config names, with those of other groups that it takes."""
    name = config["controller"]["name"]
    kind = CONFIGS.get(name)
    others = {}
    for key, (group, options) in groups_from(kind).items():
        others[key] = options(**reduce(lambda section, part: section[part], group.split("."), config))
    return kind(**read(kind, config["controller"][name]), **others)
