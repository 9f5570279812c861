"""The world model "mdn-rnn" (RLFlow, section 3.3): graph network, LSTM and mixtures of Gaussians.

Importing this package does not import TensorFlow.

A dream samples z and takes the most likely value of every other prediction. Rewriting is deterministic; the mixture
represents what the latent state does not contain. The ablations are options. In an ensemble the first member dreams
exactly as if it were alone. The disagreement of all members is the uncertainty: the standard deviation of their rewards
plus the share of rules whose masks differ.

Predictions start from statistics of each rule. The reward head predicts the deviation from the rule's mean reward, and
the result is clipped to the range of the rule's rewards in the data. The count head adds its outputs to the
log-frequencies with which the rule changed location counts in the data. Without these priors, controllers found dreams
that promised many times the real reward, by rewrites whose locations never ran out.
"""
