"""The world model "graph-mdn": networks judge matches and predict costs of nodes, over graphs with named nodes."""

from collections.abc import Sequence
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
from worldmodel.edits.cost_model import REACH, RewriteGains
from worldmodel.edits.grounding_index import GroundingIndex
from worldmodel.edits.learned_rules import LearnedRules
from worldmodel.edits.model import EditsWorldModel, restored_parts
from worldmodel.edits.node_values import Latents
from worldmodel.edits.reward_scales import RewardScales
from worldmodel.graph_mdn.effects import Menu
from worldmodel.graph_mdn.network import MatchNetwork, NodeBatch, NodeNetwork, Table
from worldmodel.graph_mdn.network_inputs import SignatureTable, match_batch
from worldmodel.graph_mdn.neural_costs import CostLaws, NeuralCosts
from worldmodel.graph_mdn.neural_rules import Judge, NeuralRules
from worldmodel.graph_mdn.simulator import NeuralSimulator
from worldmodel.graph_mdn.training_batches import Examples, vocabulary_of
from worldmodel.train_and_load import checked_array, write_description
from worldmodel.weights import module_arrays, restore_arrays
from worldmodel.world_model_options import GraphMDNConfig

FORMAT = 6  # version of the saved files
MATCH, NODE = "match-{}/", "node/"  # prefixes of the networks' arrays


class GraphMDNWorldModel(EditsWorldModel):
    """A variant of `worldmodel.edits.model.EditsWorldModel` that uses networks instead of tables.

    Attributes:
      table: the observed features of signatures.
      examples: the matches that the match networks learn from.
      vocabulary: the observed structures of effects.
      match_networks: the ensemble of networks that predict conditions and effects of rules.
      node_network: the network that predicts costs of nodes.
    """

    arrays_file = "weights.npz"

    def __init__(
        self, spec: EncodingSpec, config: GraphMDNConfig, rules: LearnedRules, table: SignatureTable, reach: int,
        gains: RewriteGains, laws: CostLaws, latents: Latents, rewards: RewardScales, usual_rewards: np.ndarray,
        best_trajectories: dict[int, np.ndarray],
    ):  # fmt: skip
        """Create the model with untrained networks.

        `reach` is the distance in edges up to which other nodes influence the cost of a node: 0 or REACH.
        """
        self.table, self.examples = table, Examples.of(rules)
        self.vocabulary = vocabulary_of(rules, self.examples)
        sizes = len(self.vocabulary.structures), len(self.vocabulary.slots)
        self.match_networks = [
            MatchNetwork(spec.n_rules, *sizes, config.width, config.message_passing_steps)
            for _ in range(config.match_networks)
        ]
        self.node_network = NodeNetwork(config.width, reach, config.gaussians)
        self._build()
        judge = Judge(self.match_networks, self.vocabulary, table)
        costs = NeuralCosts(self.node_network, table, reach, gains, laws)
        neural = NeuralRules.of(rules, judge)
        super().__init__(spec, config, neural, costs, latents, rewards, usual_rewards, best_trajectories)

    def observe(self, state: RewriteState, edit: Edit) -> None:
        self.table.learn(SignatureFeatures.of([state], [edit]))

    def simulator(self, index: GroundingIndex, nodes: Sequence[np.ndarray]) -> NeuralSimulator:
        return NeuralSimulator(self, index, nodes)

    def replay(self, episodes: Sequence[Episode], rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replay:
        for episode in episodes:
            if episode.signatures is not None:
                self.table.learn(episode.signatures)
        return super().replay(episodes, rows, starts, horizon)

    def _build(self) -> None:
        """Run every network once on a small batch, which creates its variables."""
        table = Table.of(self.table)
        match = match_batch(self.examples.rewritten[:1], self.table)
        nothing = Menu(self.vocabulary, self.table).choices()
        one, none = np.zeros(1, np.int32), np.zeros(0, np.int32)
        node = NodeBatch(one, one, one, one, none, none, np.zeros(0, np.float32))
        for network in self.match_networks:
            network(*tf.nest.map_structure(tf.constant, (match, nothing, table)))
        self.node_network(*tf.nest.map_structure(tf.constant, (node, table)))

    # -- files -------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write model.json, learnt.json and weights.npz to the folder. Equal models give equal bytes."""
        write_description(folder, self.config, self.spec)
        write_json(Path(folder) / "learnt.json", self.learnt() | {"reach": self.costs.reach, "files": FORMAT})
        networks = module_arrays(self.node_network, NODE)
        for number, network in enumerate(self.match_networks):
            networks |= module_arrays(network, MATCH.format(number))
        write_arrays(Path(folder) / self.arrays_file, self.arrays() | networks)

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | self.table.observed()._asdict() | self.costs.laws.arrays() | {
            "gains": self.costs.gains.samples
        }

    @classmethod
    def _restored(cls, config: GraphMDNConfig, spec: EncodingSpec, arrays: dict[str, np.ndarray], learnt: dict) -> Self:
        rules, *others = restored_parts(config, spec, arrays, learnt, FORMAT)
        if learnt["reach"] not in (0, REACH):
            raise ValueError(f"its costs have a reach of {learnt['reach']} edges, not 0 or {REACH}")
        gains = RewriteGains(checked_array(arrays, "gains", np.float64, None, 4))
        table = SignatureTable.of(arrays)
        model = cls(spec, config, rules, table, learnt["reach"], gains, CostLaws.of(arrays), *others)
        for number, network in enumerate(model.match_networks):
            restore_arrays(network, arrays, cls.arrays_file, MATCH.format(number))
        restore_arrays(model.node_network, arrays, cls.arrays_file, NODE)
        return model
