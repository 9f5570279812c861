"""Synthetic measurements of graphs, of which the factors of every kind of operator are known."""

import numpy as np

from rlflow.costs.corrected import Measurement

FACTORS, OVERHEAD = {"Conv": 1.2, "MatMul": 0.9, "Relu": 2.0}, 2e6


def measurements(models: int = 6, variants: int = 8, noise: float = 0.0, seed: int = 0) -> list[Measurement]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(models):
        base = {kind: 1e9 * rng.uniform(1, 10) for kind in FACTORS}
        for _ in range(variants):
            parts_ps = {kind: int(ps * rng.uniform(0.5, 1.5)) for kind, ps in base.items()}
            launches = int(rng.integers(500, 3000))
            truth = sum(FACTORS[kind] * ps for kind, ps in parts_ps.items()) + OVERHEAD * launches
            made.append(Measurement(f"m{number}", parts_ps, launches, truth / 1e9 * np.exp(rng.normal(0, noise))))
    return made
