"""Optimise a model: search, compare, check, measure and deliver a faster file within a time budget.

`pipeline` holds the steps in their order. `anytime` runs the searches, `ablation` takes back rewrites that gain
nothing, `contest` measures different candidates end to end, `delivery` checks (`validate`), repairs and measures the
best ones, and `choice` decides which one is delivered. The delivered candidate has the lowest estimate among the
candidates that equal the original and are measured to be faster. If no candidate is faster, the original
is delivered in most cases. `receipt` records the result so that anyone can replay it.

`validate` lies in this package because the delivery needs its checks. The command `validate` runs the same checks.
"""
