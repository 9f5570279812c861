"""Equality saturation: many equal graphs in one e-graph, the cheapest graph in it, and a lower bound on its cost."""
