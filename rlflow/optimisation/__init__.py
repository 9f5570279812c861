"""Optimise a model: search, compare, check, measure and deliver a faster file within a time budget.

`pipeline` holds the steps in their order. `anytime` runs the searches, `ablation` takes back rewrites that gain
nothing, and `contest` measures different candidates end to end. `delivery` compares the best candidates with the
original (`validate`), repairs and measures them, and `choice` decides which candidate is delivered. The delivered
candidate has the lowest estimate among the candidates that are equal to the original and measured faster. If no
candidate is faster, the original is delivered in most cases (`choice` lists the exceptions). `receipt` records the
result so that anyone can replay it.

The command `validate` runs the same checks as the delivery.
"""
