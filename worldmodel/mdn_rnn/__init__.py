"""The world model "mdn-rnn" (RLFlow, section 3.3): graph network, LSTM and mixtures of Gaussians.

Importing this package does not import TensorFlow.

A dream samples z and takes the most likely value of everything else. Rewriting is deterministic; the mixture represents
what the latent state does not contain. The ablations are options. In an ensemble the first member dreams exactly as if
it were alone. The other members give its uncertainty: the spread of rewards plus the share of masks that differ.

Predictions start from statistics of each rule. The reward head predicts the deviation from the rule's mean reward, and
the result is clipped to the rewards of the rule in the data. The count head adds to the log-frequencies of the rule's
changes. Without these priors controllers found dreams that promised many times the real reward, by rewrites whose
locations never ran out.
"""
