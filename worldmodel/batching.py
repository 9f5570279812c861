"""For `worldmodel.fidelity` alone, until it asks models for `replay`; then this file goes."""

from worldmodel.mdn_rnn.batching import Steps, pack_episodes  # noqa: F401
