"""Sweeps: a file of options and seeds, its trials, their run folders, and the report over them."""
