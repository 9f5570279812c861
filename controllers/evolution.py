"""CMA-ES by the package `cma`, started anew with twice as many individuals when it has converged.

(IPOP; Auger & Hansen 2005.) A generation then counts as two. Up to 100 weights all covariances are learnt, of more the
variances alone.

It is a function of its seed and of the fitness that it was told. A checkpoint is therefore the table of fitness values.
"""

import cma
import numpy as np


class Evolution:
    """The ask-and-tell search, maximising.

    Attributes:
      stop: the criteria of `cma` that are met; if any, the next generation is of a new start.
      size: individuals of the next generation.
    """

    def __init__(self, start: np.ndarray, sigma0: float, popsize: int, full_covariance: int, patience: int, seed: int):
        """start: float64 [D], the first mean. See CMAESConfig for the others."""
        self.start, self.sigma0, self.popsize, self.seed = start, sigma0, popsize, seed
        self.starts, self.stop = 0, []
        self.options = {
            "CMA_diagonal": len(start) > full_covariance,
            "seed": np.nan,  # leaves NumPy's global generator alone
            "tolflatfitness": patience,
            "tolfun": 0,  # returns are often equal for many different weights: that is no convergence
            "tolfunhist": 0,
            "verbose": -9,
            "verb_disp": 0,
            "verb_log": 0,
            "signals_filename": "",
        }
        self.begin()

    @property
    def size(self) -> int:
        return self.popsize << (self.starts - 1 + bool(self.stop))

    @property
    def mean(self) -> np.ndarray:
        """float64 [D]."""
        return self.strategy.mean

    @property
    def scalars(self) -> dict[str, float]:
        """What to log of it."""
        return {"sigma": self.strategy.sigma, "starts": self.starts}

    def begin(self) -> None:
        rng, size = np.random.default_rng([self.seed, self.starts]), self.popsize << self.starts
        self.strategy = cma.CMAEvolutionStrategy(
            self.start,
            self.sigma0,
            {**self.options, "popsize": size, "randn": lambda *shape: rng.standard_normal(shape)},
        )
        self.starts, self.stop = self.starts + 1, []

    def ask(self) -> np.ndarray:
        """float64 [size, D]."""
        if self.stop:
            self.begin()
        self.individuals = self.strategy.ask()
        return np.stack(self.individuals)

    def tell(self, fitness: np.ndarray) -> None:
        """float64 [size], of those that were asked for last."""
        self.strategy.tell(self.individuals, (-fitness).tolist())
        self.stop = list(self.strategy.stop())  # counts flat generations, so it is asked once in each


class Widened:
    """A search through the last few weights alone, for so many individuals, and then through all from its mean on.

    It is asked and told as an Evolution is.
    """

    def __init__(self, start: np.ndarray, few: int, individuals: int, **options):
        """start: float64 [D], the first mean. few: weights of the first search. options: those of both."""
        self.start, self.left, self.options = start, individuals, options
        self.search = Evolution(start[-few:] if individuals else start, **options)

    @property
    def size(self) -> int:
        return self.search.size

    @property
    def stop(self) -> list[str]:
        return self.search.stop

    @property
    def scalars(self) -> dict[str, float]:
        return self.search.scalars

    @property
    def mean(self) -> np.ndarray:
        """float64 [D]."""
        return self.completed(self.search.mean[None])[0]

    def completed(self, last: np.ndarray) -> np.ndarray:
        """float64 [P, D] of [P, ≤ D]: those that are not searched through are what they were at first."""
        others = self.start[: len(self.start) - last.shape[1]]
        return np.concatenate([np.broadcast_to(others, (len(last), len(others))), last], axis=1)

    def ask(self) -> np.ndarray:
        """float64 [size, D]."""
        return self.completed(self.search.ask())

    def tell(self, fitness: np.ndarray) -> None:
        """float64 [size], of those that were asked for last."""
        self.search.tell(fitness)
        self.left -= len(fitness)
        if self.left <= 0 and len(self.search.start) < len(self.start):
            self.search = Evolution(self.mean, **self.options)
