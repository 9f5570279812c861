"""Rewrite rules at run time: the *.rules files, their language, their matches and the graph after a rewrite.

rlflow.proving proves the rules and enumerates new ones, offline. This package reads only the records of its proofs
(proofs.py).

A rule removes the operators that give the outputs of its left side. Its inner operators disappear only if nothing else
reads their outputs, so a shared inner tensor makes a rewrite less profitable, never wrong. The outputs of a rule with
several outputs must share every tensor that is not constant. Then no rewrite elsewhere can make the replacement cyclic,
and cached matches stay valid. The parser enforces this condition.

apply.py defines when a match is valid and which numbers may change; locations.py defines which match has which
location, and explains why a step costs only what it changes and why rules that do not apply cost nothing.
"""
