"""The world model "mdn-rnn" (RLFlow, section 3.3): graph network, LSTM and mixtures of Gaussians.

Importing this package imports no TensorFlow.
"""
