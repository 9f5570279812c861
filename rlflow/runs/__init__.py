"""Runs: all options as one tree, configs, the folder of a run, and sweeps over many."""
