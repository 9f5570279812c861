"""The class of the world model "graph-mdn", and its files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import tensorflow as tf

from rlflow.collect.edits import Edit, SignatureFeatures
from rlflow.collect.episodes import Episode
from rlflow.common.files import write_arrays, write_json
from rlflow.common.task import EncodingSpec
from rlflow.env.state import RewriteState
from worldmodel.base import Replay
from worldmodel.edits.cost_model import REACH, CostModel, NodeCosts
from worldmodel.edits.grounding_index import GroundingIndex, Groundings
from worldmodel.edits.learned_rules import DreamtMatch, LearnedRules
from worldmodel.edits.model import EditsWorldModel, restored_parts
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.graph_mdn.effects import choices_of
from worldmodel.graph_mdn.episode_network import EpisodeNetwork, EpisodeState
from worldmodel.graph_mdn.graph_latents import CHANGES, GraphLatents, LatentNetwork
from worldmodel.graph_mdn.imagination import NeuralImagination, NeuralObserver, NeuralReplayer
from worldmodel.graph_mdn.network import MatchNetwork, NodeBatch, NodeNetwork, Table
from worldmodel.graph_mdn.network_inputs import MatchGraph, SignatureTable, match_batch
from worldmodel.graph_mdn.neural_costs import CostLaws, NeuralCosts, NodeRows
from worldmodel.graph_mdn.neural_rules import Judge, NeuralRules
from worldmodel.graph_mdn.simulator import NeuralSimulator
from worldmodel.graph_mdn.training_batches import Examples, vocabulary_of
from worldmodel.train_and_load import checked_array, write_description
from worldmodel.weights import module_arrays, restore_arrays
from worldmodel.world_model_options import GraphMDNConfig

FORMAT = 11  # version of the saved files
# Prefixes of the networks' arrays.
MATCH, NODE, LATENT, EPISODE = "match-{}/", "node/", "latent/", "episode/"


class GraphMDNWorldModel(EditsWorldModel):
    """The neural world model; it shares the graphs of dreams with `worldmodel.edits.model.EditsWorldModel`.

    Attributes:
      hidden: H, the size of the recurrent state; 0 without one.
      table: the observed features of signatures.
      examples: the matches in the recalled data; the match networks learn from them.
      vocabulary: the observed structures of effects.
      match_networks: the ensemble of networks that predict conditions and effects of rules.
      node_network: the network that predicts costs of nodes.
      latent_network: the network that encodes graphs.
      graph_latents: the cache of the vectors of `latent_network`, from which z is computed.
      episode_network: the network with the recurrent state, or None if `hidden` is 0.
      episode_state: the compiled functions of `episode_network`; None if `hidden` is 0, or before this network is
        trained.
    """

    arrays_file = "weights.npz"

    def __init__(
        self, spec: EncodingSpec, config: GraphMDNConfig, rules: LearnedRules, table: SignatureTable, memory: CostModel,
        laws: CostLaws, rewards: RewardScales, usual_rewards: np.ndarray, best_trajectories: dict[int, np.ndarray],
    ):  # fmt: skip
        """Create the model with untrained networks.

        Args:
          spec: the encoding of the task.
          config: the options of the model.
          rules: the learned rules; at least one match was rewritten.
          table: the observed features of signatures.
          memory: the logged costs of nodes and the observed gains of rewrites.
          laws: the cost laws.
          rewards, usual_rewards, best_trajectories: see `EditsWorldModel`.
        """
        self.table, self.examples = table, Examples.of(rules)
        self._node_rows: dict[GroundingIndex, tuple[NodeRows, tuple[int, int]]] = {}
        self.vocabulary = vocabulary_of(rules, self.examples)
        sizes = len(self.vocabulary.structures), len(self.vocabulary.slots)
        self.match_networks = [
            MatchNetwork(spec.n_rules, *sizes, config.width, config.message_passing_steps)
            for _ in range(config.match_networks)
        ]
        self.node_network = NodeNetwork(config.width, memory.reach, config.gaussians)
        self.latent_network = LatentNetwork(config.width, config.latent_rounds, config.latent, spec.n_rules + CHANGES)
        self._build()
        self.config = config
        self.use_latents()
        judge = Judge(self.match_networks, self.vocabulary, table)
        costs = NeuralCosts(self.node_network, table, memory, laws, config.recall)
        neural = NeuralRules.of(rules, judge, config.recall)
        self.hidden, self.episode_network, self.episode_state = config.hidden, None, None
        if config.hidden:
            self.episode_network = EpisodeNetwork(spec.n_rules, config.latent, config.hidden, config.mixture)
        super().__init__(spec, config, neural, costs, None, rewards, usual_rewards, best_trajectories)

    def node_rows(self, index: GroundingIndex) -> NodeRows:
        """Return the nodes of a grounding as rows of the signature table; the result is cached until the table grows.
        """
        sizes = len(self.table.operators), len(self.table.tensors)
        if self._node_rows.get(index, (None, ()))[1] != sizes:
            self._node_rows[index] = NodeRows(index, self.table), sizes
        return self._node_rows[index][0]

    def add_classes(self, rewards: Mapping[DreamtMatch, float]) -> None:
        super().add_classes(rewards)
        self._node_rows = {}  # of the discarded groundings

    def remember(self, rules: LearnedRules, memory: CostModel) -> None:
        """Recall other data, and discard all groundings made so far; the networks stay as they are.

        The judge predicts the conditions of a rule only if all data so far have refuted matches of the rule.

        Args:
          rules: the rules learned from the data, a part of those with which the model was created, or all of them.
          memory: the logged costs of nodes and the observed gains of rewrites.
        """
        before = self.groundings.rules
        neural = NeuralRules.of(rules, before.judge, self.config.recall)
        neural.least_sure, neural.judged = before.least_sure, before.judged & neural.judged
        neural.op_types = self.vocabulary.op_types  # the judge may name any operator of the vocabulary
        self.groundings = Groundings(neural, self.spec.n_rules)
        self.match_classes = self.groundings.match_classes.xfer_ids
        self.examples, self.costs.memory, self._node_rows = Examples.of(rules), memory, {}

    def use_latents(self) -> None:
        """Discard cached vectors, so that graphs are encoded with the current weights of `latent_network`."""
        rounds, latent = self.config.latent_rounds, self.config.latent
        self.graph_latents = GraphLatents(self.latent_network, self.table, rounds, latent)

    def follow_episodes(self) -> None:
        """Use the recurrent state from now on, if the model has one. Call this after its network is trained."""
        if self.episode_network is not None:
            self.episode_state = EpisodeState(self.episode_network, self.latent, self.hidden)

    def percent(self, runtime: int) -> float:
        """Return the factor that converts gains (ps) to percent of an initial runtime (ps).

        The factor is 0 if gains are another quantity than saved runtime, which the recurrent state then does not see.
        """
        return 100.0 / runtime if self.rewards.of_runtime else 0.0

    def observer(self) -> NeuralObserver:
        return NeuralObserver(self)

    def imagine(self, start: RewriteState, n: int) -> NeuralImagination:
        return NeuralImagination(self, start, n)

    def observe(self, state: RewriteState, edit: Edit) -> None:
        self.table.learn(SignatureFeatures.of([state], [edit]))

    def simulator(
        self, index: GroundingIndex, nodes: Sequence[np.ndarray], costs: Sequence[np.ndarray] = ()
    ) -> NeuralSimulator:
        return NeuralSimulator(self, index, nodes, costs if self.sees_costs else ())

    def replayer(self, rows: np.ndarray, starts: np.ndarray, horizon: int) -> NeuralReplayer:
        return NeuralReplayer(self, rows, starts, horizon)

    def replay(self, episodes: Sequence[Episode], rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replay:
        for episode in episodes:
            if episode.signatures is not None:
                self.table.learn(episode.signatures)
        return super().replay(episodes, rows, starts, horizon)

    def _build(self) -> None:
        """Run every network once on a small batch, which creates its variables."""
        table = Table.of(self.table)
        match = match_batch([MatchGraph.of(self.examples.rewritten[0], self.table)])
        nothing = choices_of([])
        one, none = np.zeros(1, np.int32), np.zeros(0, np.int32)
        node = NodeBatch(one, one, one, one, none, none, np.zeros(0, np.float32))
        for network in self.match_networks:
            network(*tf.nest.map_structure(tf.constant, (match, nothing, table)))
        for network in (self.node_network, self.latent_network):
            network(*tf.nest.map_structure(tf.constant, (node, table)))
        self.latent_network.decoder(tf.zeros([1, self.latent_network.vector.output_size]))

    # -- files -------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write model.json, learnt.json and weights.npz to the folder. Equal models give equal bytes."""
        write_description(folder, self.config, self.spec)
        nodes = [[sizes, of_nodes.to_json()] for sizes, of_nodes in self.costs.memory.nodes.items()]
        write_json(Path(folder) / "learnt.json", self.learnt() | {"costs": nodes, "files": FORMAT})
        networks = module_arrays(self.node_network, NODE) | module_arrays(self.latent_network, LATENT)
        if self.episode_network is not None:
            networks |= module_arrays(self.episode_network, EPISODE)
        for number, network in enumerate(self.match_networks):
            networks |= module_arrays(network, MATCH.format(number))
        write_arrays(Path(folder) / self.arrays_file, self.arrays() | networks)

    def arrays(self) -> dict[str, np.ndarray]:
        costs = self.costs.laws.arrays() | self.costs.memory.arrays()
        rules = self.groundings.rules
        trust = {"least_sure": np.array([rules.least_sure]), "judged": np.array(sorted(rules.judged), np.int64)}
        return super().arrays() | self.table.observed()._asdict() | costs | trust

    @classmethod
    def _restored(cls, config: GraphMDNConfig, spec: EncodingSpec, arrays: dict[str, np.ndarray], learnt: dict) -> Self:
        rules, *others = restored_parts(spec, arrays, learnt, FORMAT)
        nodes = {int(sizes): NodeCosts.from_json(of_nodes) for sizes, of_nodes in learnt["costs"]}
        memory, table = CostModel.of(nodes, arrays, REACH), SignatureTable.of(arrays)
        model = cls(spec, config, rules, table, memory, CostLaws.of(arrays), *others)
        for number, network in enumerate(model.match_networks):
            restore_arrays(network, arrays, cls.arrays_file, MATCH.format(number))
        restore_arrays(model.node_network, arrays, cls.arrays_file, NODE)
        restore_arrays(model.latent_network, arrays, cls.arrays_file, LATENT)
        model.use_latents()
        model.groundings.rules.least_sure = float(checked_array(arrays, "least_sure", np.float64, 1)[0])
        model.groundings.rules.judged = frozenset(checked_array(arrays, "judged", np.int64, None).tolist())
        if model.episode_network is not None:
            restore_arrays(model.episode_network, arrays, cls.arrays_file, EPISODE)
        model.follow_episodes()
        return model
