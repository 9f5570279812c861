"""World models: learned simulators of a rewriting environment. Importing this package imports no TensorFlow."""

import os
import sys
import warnings

from rlflow.common.registry import Registry

# Before anything here imports TensorFlow: no chatter, and no rounding that depends on the shape of a batch.
if "tensorflow" in sys.modules and os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0":
    warnings.warn("TensorFlow was imported before worldmodel: the same seed may give other weights here", stacklevel=2)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

WORLD_MODELS = Registry("world model", {
    "mdn-rnn": "worldmodel.mdn_rnn.model:MDNRNNWorldModel",
    "edits": "worldmodel.edits.model:EditsWorldModel",
})
TRAININGS = Registry("training of a world model", {
    "mdn-rnn": "worldmodel.mdn_rnn.training:train",
    "edits": "worldmodel.edits.training:train",
})
