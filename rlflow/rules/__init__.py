"""Rules: the *.rules files, their language, where they match and the graph after a rewrite.

prover/ proves them, generator/ enumerates new ones.

What a rule may do. It removes only the operators that give the outputs of its left side; inner ones disappear if
nothing else reads them. So a shared inner tensor is never wrong, only less profitable. A rule with several outputs must
share every tensor that is not constant: then no rewrite elsewhere can make its replacement cyclic, and cached matches
stay valid. The parser holds it. When a match is one, and what numbers may become, stands in apply.py; which match is
which location, and why a step costs what it changes, in locations.py; why rules that do not apply cost nothing, in
local.py.

A proof is of the rule as it is matched and planned. The left side and the conditions are assumptions; what the planner
refuses (another shape, inputs that do not fit) cannot happen, and a test shows that it does refuse it
(tests/rules/prover/test_checked.py); everything else that the right side asks of its inputs is shown. Numbers are real
in proofs: rounding is not part of a meaning, and exactness.py marks the rules that move it. A tensor is a shape and a
function from an index to a number, and one text of an operator (prover/semantics.py) serves three algebras: symbols
(all shapes), formal numbers (all numbers, bounded shapes) and plain numbers (counterexamples, and the test of the
axioms against ONNX's reference).

All shapes (prover/all_shapes.py). Ranks, axes, flags and how many inputs `*xs` has are drawn case by case; sizes,
strides, pads and indices are z3 integers. An element is a sum of products; both sides' elements at an unknown index
must have the same normal form, where z3 decides which indices are equal and what the borders of sums are. A comparison
that is open splits the case. Products of unknown sizes are functions with the laws that proofs need; an equation
between sizes is put in. Forms that differ are compared once more with their sums over other indices (prover/ranges.py),
as of a kernel that is taken in blocks or padded with zeros. First windows are left opaque (prover/opaque.py). The
limits (ranks to 4, …) stand in each record.

Bounded shapes (prover/bounded.py). What symbols do not reach is written out: every combination of ranks, flags, sizes,
strides and pads up to the largest bound on a ladder that a fixed amount of work is enough for, with elements as formal
numbers whose normal forms must be identical. No chance is involved, and no seconds: the same rule gets the same proof
on every machine.
"""
