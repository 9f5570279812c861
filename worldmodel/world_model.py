"""For `worldmodel.fidelity` alone, until it asks models for `replay`; then this file goes."""

from worldmodel.mdn_rnn.imagination import State  # noqa: F401
from worldmodel.mdn_rnn.model import MDNRNNWorldModel as WorldModel  # noqa: F401
