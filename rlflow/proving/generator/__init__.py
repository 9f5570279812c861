"""Enumerate small graphs of equal value and generalise them to rules, which the prover must then accept."""

