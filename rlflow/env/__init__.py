"""The real environment: states and their successors, rewards, graphs as arrays, and Gymnasium's interface to them.

A step costs what it changes: matches (rlflow/rules/locations.py), cost and observation are updated for the nodes that a
rewrite changed or touched. What remains in proportion to the graph are copies of dictionaries. No step reads or copies
a weight.
"""
