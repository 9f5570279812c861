"""The world model "mdn-rnn" (RLFlow, section 3.3): graph network, LSTM and mixtures of Gaussians.

Importing this package imports no TensorFlow.

z is sampled, the rest of a dream is its most likely outcome. Rewriting is deterministic; the mixture says what the
latent does not know. The ablations are options. In an ensemble the first member dreams exactly as if it were the only
one, and the others give its uncertainty, by the spread of rewards and the share of masks that differ.

It starts from what each rule is known to do. Its reward head predicts the deviation from the rule's mean reward and is
clipped to what the rule earned in the data; its count head adds to the log-frequencies of the changes that the rule
made. Without that, controllers found dreams that promised many times what reality gave, by rewrites whose locations
never ran out.
"""
