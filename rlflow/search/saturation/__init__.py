"""Equality saturation: many equal graphs at once, and the cheapest of them, or a bound below it."""
