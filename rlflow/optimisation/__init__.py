"""Optimise a model: search, compare, check, measure and deliver a faster file within a time budget.

`pipeline` holds the steps in their order, and `budget` divides the seconds among them. `anytime` runs the searches, and
`deciding` times the kernels on which a decision depends if the cost predicts kernels. `ablation` takes back rewrites
that gain nothing, and `contest` measures different candidates end to end. `delivery` compares the best candidates with
the original (`validate`), leaves out rewrites at fault (`repair`) and measures the candidates. `choice` decides which
candidate is delivered. This is the candidate with the lowest estimate among the checked candidates that are equal to
the original and measured faster. If no candidate is faster, the original is delivered in most cases (`choice` lists the
exceptions). `receipt` records the result so that anyone can replay it. `quantised` and `session_options` measure two
alternatives for the user: float32 for a quantised model, and other options of ONNX Runtime.

The command `validate` runs the same checks as the delivery.
"""
