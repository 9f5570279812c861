"""Prove that the rewrite rules are correct, and enumerate new rules. Only the command line and tests use this package.

A proof assumes that the left side of a rule is a valid graph and that the rule's conditions hold. It shows that the
right side is then valid, too, and computes the same numbers. The operators in `CHECKED` (numbers.py) are an exception:
the planner refuses a match if their inputs do not fit, and tests check the planner. Numbers are real in proofs;
rlflow/rules/exactness.py marks the rules that change rounding. A tensor is a shape and a function from an index to a
number. One definition of an operator (semantics.py) serves three algebras: symbols (symbolic.py), formal numbers
(formal.py) and plain numbers (numbers.py).

To follow one proof, read three files: prove.py chooses the method, cases.py splits a rule into cases, and all_shapes.py
or bounded.py compares both sides. In all_shapes.py, sizes, strides, pads and indices are z3 integers, and an element is
a sum of products. Both sides must have equal normal forms at an unknown index. bounded.py computes every case up to a
bound with formal numbers. No proof depends on randomness or on elapsed time, so every machine finds the same proofs.
generator/ finds rules by enumeration and writes only the rules that the prover accepts.
"""

