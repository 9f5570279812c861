"""Optimise a model: search, compare, check, measure and deliver a faster file within a time budget.

`anytime` runs the searches, `ablation` takes back rewrites that do not pay, `contest` measures different candidates
end to end, `delivery` checks (`validate`), repairs and measures the best ones, and `choice` decides which one is
delivered. The delivered candidate has the lowest estimate among those that are equal to the original and measured to
be faster. If none is, the original is delivered in most cases. `receipt` records the result so that anyone can
replay it.

`validate` lies in this package because delivering asks it first; the command `validate` is its other user.
"""

