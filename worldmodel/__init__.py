"""World models: learned simulators of a rewriting environment. Importing this package imports no TensorFlow."""

from rlflow.registry import Registry

WORLD_MODELS = Registry("world model", {"mdn-rnn": "worldmodel.world_model:WorldModel"})
