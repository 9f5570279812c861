"""Prove the rewrite rules and enumerate new ones. This package runs offline: only the command line and tests use it.

A proof is about the rule as it is matched and planned. The left side and the conditions are assumptions. The planner
never applies a rule to shapes or inputs that violate these assumptions, and tests check the planner. All other
requirements of the right side on its inputs are proved. Numbers are real in proofs: rlflow/rules/exactness.py marks the
rules that change rounding. A tensor is a shape and a function from an index to a number. One definition of an operator
(semantics.py) serves three algebras: symbols (symbolic.py), formal numbers (formal.py) and plain numbers (numbers.py).

A reader of one proof needs three files: prove.py chooses the method, cases.py splits a rule into cases, and
all_shapes.py or bounded.py compares both sides. all_shapes.py takes sizes, strides, pads and indices as z3 integers; an
element is a sum of products, and both sides must have equal normal forms at an unknown index. bounded.py computes
every case up to a bound with formal numbers. No step depends on randomness or on elapsed time: a rule gets the same
proof on every machine. generator/ finds rules by enumeration, and the prover must then accept them.
"""

