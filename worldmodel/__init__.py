"""World models: learned simulators of a rewriting environment. Importing this package does not import TensorFlow.

A world model can follow, imagine and replay episodes (base.py). Dreams, controllers and the fidelity report use only
this interface. There are three world models. edits/ predicts which nodes disappear and which appear. graph_mdn/
predicts the same with graph networks instead of tables. mdn_rnn/ is the recurrent network of the paper.
"""

import os
import sys
import warnings

from rlflow.common.registry import Registry

# Set before TensorFlow is imported: less logging, and no rounding that depends on the shape of a batch.
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
