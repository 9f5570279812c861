"""Rules by enumeration: small graphs of equal value, generalised to rules that the prover then has to accept."""

