"""Runs: the tree of all options, configs, the folder of a run, and sweeps, which are experiments with many runs."""
