"""Rewrite rules at run time: the *.rules files, their language, their matches and the graph after a rewrite.

rlflow.proving proves the rules and enumerates new ones, offline. This package reads only the records of its proofs
(proofs.py).

A rewrite removes the operators that give the outputs of the rule's left side. The inner operators of the left side
disappear only if nothing else reads their outputs, so a shared inner tensor makes a rewrite less profitable, never
wrong. If a rule has several outputs, each tensor that is not constant must occur under every output. Then no rewrite
elsewhere in the graph can make the replacement cyclic, and cached matches stay valid. The parser enforces this.

apply.py defines when a match is valid and how numbers are stored; locations.py defines the order of matches and how
matches are updated after a rewrite.
"""
