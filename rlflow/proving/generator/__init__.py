"""Enumerate pairs of small graphs with equal outputs, and generalise them to rules that the prover must accept."""

