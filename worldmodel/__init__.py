"""World models: learned simulators of a rewriting environment. Importing this package imports no TensorFlow.

A world model may be anything that can follow, imagine and replay (base.py); dreams, controllers and the fidelity report
know no more. There are three, and each says in its package why it is built so: edits/ predicts which nodes disappear
and which appear, graph_mdn/ asks graph networks what edits/ looks up, mdn_rnn/ is the paper's recurrent network. Why
uncertainty ends a dream stands in dream.py, why observations count locations in spaces.py, how a dream is judged in
fidelity.py.
"""

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
    "graph-mdn": "worldmodel.graph_mdn.model:GraphMDNWorldModel",
})
TRAININGS = Registry("training of a world model", {
    "mdn-rnn": "worldmodel.mdn_rnn.training:train",
    "edits": "worldmodel.edits.training:train",
    "graph-mdn": "worldmodel.graph_mdn.training:train",
})
