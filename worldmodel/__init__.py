"""World models: learned simulators of a rewriting environment. Importing this package does not import TensorFlow.

A world model follows real episodes, makes imagined rollouts and predicts recorded episodes again. Dreams, controllers
and the fidelity report use only this interface, which base.py defines. There are three world models:

- edits/ learns tables of the nodes that each rewrite removes and adds.
- graph_mdn/ predicts these nodes with graph networks instead of tables.
- mdn_rnn/ is the recurrent mixture-density network of the RLFlow paper.
"""

import os
import sys
import warnings

from rlflow.common.registry import Registry

# TensorFlow reads these variables when it is imported. They reduce its logging, and switch off oneDNN, whose rounding
# depends on the shape of a batch.
if "tensorflow" in sys.modules and os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0":
    warnings.warn("TensorFlow was imported before worldmodel: the same seed may give other weights here", stacklevel=2)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

WORLD_MODELS = Registry("world model", {
    "mdn-rnn": "worldmodel.mdn_rnn.model:MDNRNNWorldModel",
    "edits": "worldmodel.edits.model:EditsWorldModel",
    "graph-mdn": "worldmodel.graph_mdn.model:GraphMDNWorldModel",
})
TRAININGS = Registry("training of a world model", {
    "mdn-rnn": "worldmodel.mdn_rnn.training:train",
    "edits": "worldmodel.edits.training:train",
    "graph-mdn": "worldmodel.graph_mdn.training:train",
})
