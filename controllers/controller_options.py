"""Options of the controllers and of their training. Imports no TensorFlow, so that a config can be read without it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

from rlflow.common.errors import RLFlowError
from rlflow.common.options import check, groups_from, option, options_from, read
from rlflow.common.registry import Registry
from rlflow.common.task import Observes
from rlflow.env import MEASURED
from rlflow.search import AnnealingOptions, BeamOptions

CONFIGS = Registry(
    "controller",
    {
        "random": "controllers.controller_options:RandomConfig",
        "cma-es": "controllers.controller_options:CMAESConfig",
        "ppo": "controllers.controller_options:PPOConfig",
        "planner": "controllers.controller_options:PlannerConfig",
        "xrlflow": "controllers.controller_options:XRLflowConfig",
        "astar": "controllers.controller_options:AStarConfig",
        "linear-scores": "controllers.controller_options:LinearScoresConfig",
        "topoformer": "controllers.controller_options:TopoformerConfig",
        "egrl": "controllers.controller_options:EGRLConfig",
    },
)

ON_REAL_GRAPH = {"controller.train_on": ("real",)}
QSTAR = "qstar"  # the value of `AStarConfig.search` whose network values choices instead of states


@dataclass(frozen=True)
class IterationOptions:
    """Iterations of learning the world model (`train-wm --iterations N`)."""

    count: int | None = option(
        None,
        "number of iterations; from the second on, a controller trains in the dream and plays real episodes for "
        "the world model; null: 2 for a controller that learns in the dream of stored episodes (ppo, cma-es), else 1",
        at_most=1000,
    )  # fmt: skip
    interactions: int = option(
        2500, "largest number of real steps of the controllers in all further iterations together; each counts once",
        used_if={"iterations.count": (None, *range(2, 1001))},
    )  # fmt: skip


@dataclass(frozen=True)
class ControllerOptions:
    """The controller

    Options that apply to every controller: its name, and where and for how long it trains.
    """

    groups: ClassVar[Registry] = CONFIGS

    name: str = option(
        "ppo",
        "ppo, cma-es, planner, random, xrlflow or astar; for one-shot tasks linear-scores, for orders topoformer, for "
        "placements egrl",
    )
    seed: int | None = option(
        None, "seed of the controller's training; null: the seed of the run", at_least=0, at_most=2**31 - 1
    )
    tag: str | None = option(
        None, "further name of an experiment, so that one run holds several: letters, digits, '-', '_' and '.'"
    )
    max_steps: int = option(
        500, "steps after which an episode of an acting controller on the real graph (eval, iterations) is truncated"
    )
    train_on: str = option(
        "dream", "environment of the training: dream, or real (the real graph: the model-free baseline)",
        choices=("dream", "real"),
    )  # fmt: skip
    interactions: int = option(
        50_000, "real: largest number of real steps in all environments and evaluations together",
        used_if=ON_REAL_GRAPH,
    )  # fmt: skip
    measurement_seconds: float | None = option(
        None, "real: largest number of seconds of measurement (env.reward=measured), each graph once; null: no limit",
        used_if=ON_REAL_GRAPH | MEASURED,
    )  # fmt: skip


class LearnerConfig:
    """The base class of the options of a controller.

    Attributes:
      needs: packages of the extra `learn` that the controller imports.
      observes: the kind of observation that the controller needs.
      iterations: the number of iterations of learning by default (`rlflow.runs.folder.iterations_of`).
    """

    needs: ClassVar[tuple[str, ...]] = ()
    observes: ClassVar[Observes] = Observes.LATENT
    iterations: ClassVar[int] = 1

    def __post_init__(self):
        check(self, type(self).__name__)


@dataclass(frozen=True)
class RandomConfig(LearnerConfig):
    """Uniform choice among valid actions."""

    dreams: int = option(64, "episodes whose mean return is reported")


@dataclass(frozen=True)
class CMAESConfig(LearnerConfig):
    """Evolution of the weights of a small policy."""

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "cma")
    iterations: ClassVar[int] = 2

    generations: int = option(
        40, "budget in generations; each restart doubles the individuals, so that a generation counts as 2, then 4, …"
    )
    popsize: int = option(32, "individuals in a generation before the first restart", at_least=4)
    dreams: int = option(4, "episodes of an individual; their mean return is its fitness")
    policy: str = option(
        "linear", "priorities (one for each match class), linear (in z and h) or mlp (one hidden layer)",
        choices=("priorities", "linear", "mlp"),
    )  # fmt: skip
    hidden: int = option(16, "mlp: hidden units", used_if={"policy": ("mlp",)})
    priorities_first: int = option(
        20, "linear, mlp: first generations, which search priorities; the others continue from their best", at_least=0,
        used_if={"policy": ("linear", "mlp")},
    )  # fmt: skip
    sigma0: float = option(0.1, "standard deviation of the weights in the first generation; initial scores lie in ±1")
    full_covariance: int = option(100, "largest number of weights with learned covariances; above, only variances")
    evaluate_every: int = option(5, "generations between two evaluations of the mean and the best individual")
    max_steps: int = option(100, "steps after which an episode is truncated")
    patience: int = option(10, "generations of equal fitness before a restart")


@dataclass(frozen=True)
class PPOConfig(LearnerConfig):
    """Proximal policy optimisation."""

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet")
    iterations: ClassVar[int] = 2

    policy: str = option(
        "match-classes",
        "match-classes (choose a valid match class) or two-stage (the paper's: choose a rule, then a location)",
        choices=("match-classes", "two-stage"),
    )
    greedy_prior: float = option(
        2.0,
        "match-classes: initial logit of a match class of medium median reward, above the logit of NO-OP",
        at_least=0, used_if={"policy": ("match-classes",)},
    )  # fmt: skip
    updates: int = option(40, "number of updates")
    envs: int = option(32, "number of parallel environments")
    steps: int = option(64, "steps of each environment between two updates")
    epochs: int = option(4, "passes over the transitions of an update")
    minibatches: int = option(4, "minibatches of a pass, one gradient step each")
    learning_rate: float = option(0.001, "learning rate of Adam at the first update")
    anneal: bool = option(True, "whether the learning rate decays linearly to 0")
    gamma: float = option(0.995, "discount per step", at_least=0, at_most=1)
    gae_lambda: float = option(
        0.95, "λ of generalised advantage estimation; 1: Monte Carlo, 0: one step", at_least=0, at_most=1
    )
    clip: float = option(0.2, "the probability ratio is clipped to 1 ± clip")
    entropy_weight: float = option(0.003, "weight of the entropy bonus (of both stages), per nat", at_least=0)
    value_weight: float = option(0.5, "weight of the squared error of the value head", at_least=0)
    imitate: int = option(
        8, "gradient steps of an update that imitate the best episode so far, sampled or real; 0: none", at_least=0
    )
    max_gradient_norm: float = option(0.5, "largest global norm of a gradient")
    hidden: int = option(128, "units of the two hidden layers; two-stage: also of the location head")
    embedding: int = option(
        32, "two-stage: size of the rule embedding in the location head", used_if={"policy": ("two-stage",)}
    )
    evaluate_every: int = option(5, "updates between evaluations (and checkpoints); divides `updates`")
    evaluation_dreams: int = option(
        8,
        "episodes of a greedy evaluation in dreams (one on the real graph, where all are equal); the policy of the "
        "best mean return is kept",
    )  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        if self.updates % self.evaluate_every or (self.envs * self.steps) % self.minibatches:
            raise RLFlowError("ppo needs evaluate_every to divide updates, and minibatches to divide envs × steps")


@dataclass(frozen=True)
class PlannerConfig(LearnerConfig):
    """Search in the dream, with the options of search.beam and search.annealing."""

    steps: int = option(10_000, "largest number of rewrites tried in the dream")
    annealing: float = option(0.5, "share of these rewrites for annealing, after beam search", at_least=0, at_most=1)
    uncertainty_limit: float = option(
        0.25, "steps with a higher uncertainty of the world model are not planned", at_least=0
    )
    beam_search: BeamOptions = options_from("search.beam", BeamOptions)
    annealing_search: AnnealingOptions = options_from("search.annealing", AnnealingOptions)


@dataclass(frozen=True)
class XRLflowConfig(LearnerConfig):
    """X-RLflow: a graph network that observes the graph and all candidates, on the real graph only."""

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet")
    observes: ClassVar[Observes] = Observes.CANDIDATES

    encoding: str = option(
        "local",
        "local (only the part of each candidate that its change can influence) or whole (the whole candidate, as in "
        "the paper): equal results, with different time and memory",
        choices=("local", "whole"),
    )
    head: str = option(
        "each",
        "each (one head scores every candidate) or flattened (the paper's: one layer for all candidates, concatenated)",
        choices=("each", "flattened"),
    )
    padding: int = option(
        500, "flattened: number of candidates that can be chosen, the first ones", used_if={"head": ("flattened",)}
    )
    gains: bool = option(
        False,
        "each: the estimated gain of each candidate is observed, and the initial policy draws among the candidates "
        "that gain; for agents that act on new models",
    )
    also: tuple[str, ...] = option(
        (), "further models (paths or zoo names) of the training, in turn; also train-controller --models"
    )
    imitate: int = option(
        0, "passes of imitation over beam search's actions, before learning from rewards", at_least=0
    )
    updates: int = option(100, "number of updates; 0: only imitation", at_least=0)
    episodes: int = option(10, "sampled episodes between two updates; a greedy one evaluates each update")
    epochs: int = option(4, "largest number of passes over the transitions of an update")
    batch: int = option(16, "transitions of a gradient step")
    target_kl: float = option(0.05, "KL divergence from the old policy after which an update makes no further pass")
    learning_rate: float = option(0.0005, "learning rate of Adam")
    gamma: float = option(0.99, "discount per step", at_least=0, at_most=1)
    gae_lambda: float = option(0.95, "λ of generalised advantage estimation", at_least=0, at_most=1)
    clip: float = option(0.2, "the probability ratio is clipped to 1 ± clip")
    entropy_weight: float = option(0.01, "weight of the entropy bonus, per nat", at_least=0)
    value_weight: float = option(0.5, "weight of the squared error of the value head", at_least=0)
    max_gradient_norm: float = option(0.5, "largest global norm of a gradient")
    layers: int = option(5, "attention layers; a node is influenced over this many edges")
    width: int = option(64, "width of a node in all layers")
    global_width: int = option(32, "width of a graph, and of the change by a candidate")

    def __post_init__(self):
        super().__post_init__()
        if self.gains and self.head != "each":
            raise RLFlowError(f"xrlflow: gains=true needs head=each, not {self.head}")


@dataclass(frozen=True)
class AStarConfig(LearnerConfig):
    """A* with a learned value of choices or states, on the real graph only (values of Knossos in brackets).

    Options of the controller `astar` (controllers/astar/agent.py). Knossos is the project whose paper
    controllers/astar/__init__.py describes. The help of an option ends with the value of this paper in brackets.
    """

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet")
    observes: ClassVar[Observes] = Observes.STATES

    also: tuple[str, ...] = option((), "further problems of the training")
    search: str = option(
        QSTAR, "search of training and acting: qstar, which values choices; astar (astar) or mcts (Monte Carlo tree "
        "search), which value states", choices=(QSTAR, "astar", "mcts"),
    )  # fmt: skip
    horizon: int = option(10, "largest number of rewrites of a path that one search considers (10; programs 30, 40)")
    evaluations: int = option(5000, "largest number of rewrites that a search tries (5000; programs 30000)")
    patience: int = option(
        1000, "number of rewrites without improvement after which the search ends, once it has found a gain",
        used_if={"search": (QSTAR, "astar")},
    )  # fmt: skip
    epochs: int = option(40, "number of epochs; 0: the value is 0, and A* a best-first search (40)", at_least=0)
    problems: int = option(6, "largest number of problems that an epoch searches (6)")
    band: tuple[float, ...] = option(
        (0.2, 0.8), "success rates between which a problem is preferred (0.2, 0.8)", at_least=0, at_most=1
    )
    examples: int = option(200, "largest number of examples that an epoch draws from one search")
    passes: int = option(4, "passes over the examples of an epoch")
    batch: int = option(16, "examples of a gradient step (16)")
    learning_rate: float = option(0.0001, "learning rate of Adam (0.0001)")
    anneal: bool = option(True, "whether the learning rate decays linearly to 0 over the epochs (false)")
    width: int = option(200, "width of a node (200)")
    propagations: int = option(10, "rounds of messages; 0: without a graph network (10)", at_least=0)
    hidden: int = option(200, "units of the two hidden layers of the head (200)")
    dropout: float = option(0.2, "share of these units that a gradient step leaves out (0.2)", at_least=0, at_most=0.9)
    alpha: float = option(
        5.0, "inverse temperature of drawn actions, and of the noise in a training of qstar, in mean gains (5)",
        at_least=0,
    )  # fmt: skip
    exploration: float = option(
        0.5, "constant c of the exploration bonus, in mean gains (0.5)", at_least=0, used_if={"search": ("mcts",)}
    )

    def __post_init__(self):
        super().__post_init__()
        if len(self.band) != 2 or self.band[0] > self.band[1]:
            raise RLFlowError(f"astar: band is two shares in ascending order, not {list(self.band)}")


@dataclass(frozen=True)
class LinearScoresConfig(LearnerConfig):
    """Evolution of a linear score of each node's options, for one-shot tasks."""

    needs: ClassVar[tuple[str, ...]] = ("cma",)
    observes: ClassVar[Observes] = Observes.GRAPH

    generations: int = option(60, "number of generations; each restart doubles the individuals of a generation")
    popsize: int = option(16, "individuals in a generation before the first restart", at_least=4)
    sigma0: float = option(0.5, "standard deviation of the first generation's weights")
    patience: int = option(10, "generations of equal fitness before a restart")


@dataclass(frozen=True)
class TopoformerConfig(LearnerConfig):
    """REINFORCE on new graphs: priorities of nodes, for the task ordering (values of the paper in brackets).

    Options of the controller `topoformer` (controllers/topoformer/controller.py). The help of an option ends with the
    paper's value in brackets.
    """

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet")
    observes: ClassVar[Observes] = Observes.GRAPH

    start: str | None = option(
        None, "initial network: the folder of an earlier training; with epochs=0 it is used without training"
    )
    epochs: int = option(325, "number of epochs (325)", at_least=0)
    steps: int = option(125, "gradient steps of an epoch (125)")
    batch: int = option(8, "new graphs of a gradient step (8)")
    nodes: tuple[int, ...] = option((100,), "numbers of nodes of the graphs, in turn (500)", distinct=True)
    orders: int = option(8, "orders drawn for each graph (1)")
    baseline: str = option(
        "mean",
        "baseline of the return: mean (of the orders of the same graph) or greedy (greedy order of the best network, "
        "as in the paper)",
        choices=("mean", "greedy"),
    )
    learning_rate: float = option(0.001, "learning rate of Adam in the first epoch (0.0001)")
    decay: float = option(0.99, "factor of the learning rate after each epoch (0.996)", at_most=1)
    evaluation_graphs: int = option(200, "graphs on which networks are compared after each epoch", at_least=2)
    width: int = option(64, "width of a node's embedding (256)")
    layers: int = option(3, "attention layers (4)")
    heads: int = option(2, "attention heads for each of the attended graphs (10)")
    head_size: int = option(16, "size of a head (64)")
    attends: str = option(
        "seven",
        "attended graphs: seven (the paper's), both-ways (edges in both directions), forward (edges from sources), all "
        "(all pairs) or none",
        choices=("seven", "both-ways", "forward", "all", "none"),
    )
    beam: int = option(16, "width of the beams (16)")

    def __post_init__(self):
        super().__post_init__()
        if self.baseline == "mean" and self.orders == 1:
            raise RLFlowError("topoformer: the mean of one order is no baseline. Set baseline=greedy or orders=2")


WITH_GRADIENTS, WITH_EVOLUTION = {"variant": ("egrl", "pg")}, {"variant": ("egrl", "ea")}


@dataclass(frozen=True)
class EGRLConfig(LearnerConfig):
    """Evolution and policy gradients on a graph U-Net, for the task placement (values of the paper in brackets).

    Options of the controller `egrl` (controllers/egrl/). The help of an option ends with the paper's value in brackets,
    if the paper states one.
    """

    needs: ClassVar[tuple[str, ...]] = ("tensorflow", "sonnet")
    observes: ClassVar[Observes] = Observes.GRAPH

    variant: str = option(
        "egrl", "egrl, or an ablation: ea (only evolution) or pg (only the gradient policy)",
        choices=("egrl", "ea", "pg"),
    )  # fmt: skip
    evaluations: int = option(4000, "placements evaluated by all individuals together (4000)", at_least=2)
    invalid: str = option(
        "ratio",
        "reward of a placement that needs a repair: ratio (−1 times the share of bytes that moved, Algorithm 1), "
        "minus-one (Table 2), or rectified (the reward of the repaired placement)",
        choices=("ratio", "minus-one", "rectified"),
    )
    slowest: float = option(
        3.0, "first policies' logit of the last memory above the others (the paper puts all tensors there)",
        at_least=0,
    )  # fmt: skip
    hidden: int = option(128, "width of the layers of the graph U-Net; a multiple of heads (128)")
    output: int = option(128, "width of its output layer (128)")
    depth: int = option(4, "levels of its pools (4)")
    heads: int = option(4, "attention heads (4)")
    pool: float = option(0.8, "share of the nodes that each level keeps", at_most=1)
    population: int = option(20, "individuals of the population (20)", at_least=3, used_if=WITH_EVOLUTION)
    boltzmann: float = option(
        0.2, "share of them that are Boltzmann chromosomes (0.2)", at_least=0, at_most=1, used_if=WITH_EVOLUTION
    )
    elites: int = option(4, "individuals that survive unchanged", used_if=WITH_EVOLUTION)
    tournament: int = option(3, "individuals of a tournament", used_if=WITH_EVOLUTION)
    crossover: float = option(
        0.5, "probability that a child is crossed with an elite", at_least=0, at_most=1, used_if=WITH_EVOLUTION
    )
    mutation: float = option(0.9, "probability that a child mutates", at_least=0, at_most=1, used_if=WITH_EVOLUTION)
    mutation_share: float = option(0.1, "share of its parameters that change", at_most=1, used_if=WITH_EVOLUTION)
    mutation_sigma: float = option(0.1, "standard deviation of changes of weights of a network", used_if=WITH_EVOLUTION)
    prior_sigma: float = option(
        1.0, "standard deviation of changes of priors and of logarithms of temperatures", used_if=WITH_EVOLUTION
    )
    rollouts: int = option(1, "placements of the gradient policy in a generation (1)", used_if=WITH_GRADIENTS)
    exploration: float = option(
        1.0, "standard deviation of the noise on its logits", at_least=0, used_if=WITH_GRADIENTS
    )
    gradient_steps: int = option(1, "gradient steps for each evaluation (1)", used_if=WITH_GRADIENTS)
    batch: int = option(24, "placements of a gradient step (24)", used_if=WITH_GRADIENTS)
    buffer: int = option(100_000, "placements in the replay buffer (100000)", used_if=WITH_GRADIENTS)
    learning_rate: float = option(0.001, "learning rate of the actor's Adam (0.001)", used_if=WITH_GRADIENTS)
    critic_learning_rate: float = option(0.001, "learning rate of the critics' Adam (0.001)", used_if=WITH_GRADIENTS)
    critic_width: int = option(64, "width of the critics' layers", used_if=WITH_GRADIENTS)
    alpha: float = option(
        0.05, "weight of the entropy of a decision, per nat (0.05)", at_least=0, used_if=WITH_GRADIENTS
    )
    reward_scale: float = option(5.0, "factor of the rewards that the critics learn (5)", used_if=WITH_GRADIENTS)
    noise: float = option(
        0.1, "standard deviation of the noise on one-hot actions", at_least=0, used_if=WITH_GRADIENTS
    )
    clip: float = option(0.3, "limit of this noise", at_least=0, used_if=WITH_GRADIENTS)
    bootstrap: bool = option(
        False, "learn the discounted value of a next decision too, although an episode has one step",
        used_if=WITH_GRADIENTS,
    )  # fmt: skip
    gamma: float = option(0.99, "discount (0.99)", at_most=1, used_if={"bootstrap": (True,)})
    tau: float = option(0.001, "share of the critics in an update of their targets (0.001)", at_most=1,
                        used_if={"bootstrap": (True,)})  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        if self.hidden % self.heads:
            raise RLFlowError(f"egrl: hidden={self.hidden} is not a multiple of heads={self.heads}")
        if self.variant != "pg" and self.elites >= self.population:
            raise RLFlowError(f"egrl: elites={self.elites} leaves no individual of {self.population} to evolve")


def controller_config(config: Mapping):
    """Return the options of the controller that a config names, an instance of its `LearnerConfig`.

    Fields such as `PlannerConfig.beam_search` take their options from another group of the config, such as search.beam.
    """
    name = config["controller"]["name"]
    kind = CONFIGS.get(name)
    others = {}
    for key, (group, options) in groups_from(kind).items():
        others[key] = options(**reduce(lambda section, part: section[part], group.split("."), config))
    return kind(**read(kind, config["controller"][name]), **others)
