"""CMA-ES of the package `cma`, restarted with twice the population whenever it converges (IPOP; Auger & Hansen 2005).

If there are more than `full_covariance` weights, only variances are learned, otherwise all covariances.

The search depends on its arguments and on the reported fitness values alone, so a checkpoint needs only these values.
"""

import cma
import numpy as np


class Evolution:
    """A search for the weights with the highest fitness, with the ask-and-tell interface.

    Attributes:
      stop: the names of the stopping criteria of `cma` that are met. If there are any, `ask` restarts the search.
      size: the number of individuals of the next generation.
    """

    def __init__(self, start: np.ndarray, sigma0: float, popsize: int, full_covariance: int, patience: int, seed: int):
        """Begin at the mean `start`, float64 [D], with this seed; `CMAESConfig` describes the other arguments."""
        self.start, self.sigma0, self.popsize, self.seed = start, sigma0, popsize, seed
        self.starts, self.stop = 0, []
        self.options = {
            "CMA_diagonal": len(start) > full_covariance,
            "seed": np.nan,  # keeps `cma` from seeding NumPy's global generator
            "tolflatfitness": patience,
            "tolfun": 0,  # equal returns of different weights are common and do not mean convergence
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
        """The mean of the search distribution, float64 [D]."""
        return self.strategy.mean

    @property
    def scalars(self) -> dict[str, float]:
        """The scalars to log: "sigma" (the step size) and "starts" (1 + the number of restarts)."""
        return {"sigma": self.strategy.sigma, "starts": self.starts}

    def begin(self) -> None:
        """Start the search anew at `start`; each start has twice the individuals of the previous start."""
        rng, size = np.random.default_rng([self.seed, self.starts]), self.popsize << self.starts
        self.strategy = cma.CMAEvolutionStrategy(
            self.start,
            self.sigma0,
            {**self.options, "popsize": size, "randn": lambda *shape: rng.standard_normal(shape)},
        )
        self.starts, self.stop = self.starts + 1, []

    def ask(self) -> np.ndarray:
        """Return the individuals of the next generation, float64 [size, D]."""
        if self.stop:
            self.begin()
        self.individuals = self.strategy.ask()
        return np.stack(self.individuals)

    def tell(self, fitness: np.ndarray) -> None:
        """Report the fitness, float64 [size], of the individuals that the last call of `ask` returned."""
        self.strategy.tell(self.individuals, (-fitness).tolist())
        self.stop = list(self.strategy.stop())  # called once per generation, since each call counts flat generations


class Widened(Evolution):
    """A search that first varies only the last few weights, then all weights from the mean that it has reached."""

    def __init__(self, start: np.ndarray, few: int, individuals: int, **options):
        """Begin at a mean.

        Args:
          start: float64 [D], the initial mean.
          few: the first search varies the last `few` weights only.
          individuals: the number of evaluated individuals at which the first search ends and the search of all weights
            begins; 0 to search all weights from the start.
          **options: the arguments of `Evolution` besides `start`.
        """
        self.all, self.left, self.arguments = start, individuals, options
        super().__init__(start[-few:] if individuals else start, **options)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the search distribution, float64 [D]."""
        return self.completed(super().mean[None])[0]

    def completed(self, last: np.ndarray) -> np.ndarray:
        """Put the initial values of the weights that are not searched yet before `last`; return float64 [P, D].

        last: float64 [P, d], values of the last d weights.
        """
        others = self.all[: len(self.all) - last.shape[1]]
        return np.concatenate([np.broadcast_to(others, (len(last), len(others))), last], axis=1)

    def ask(self) -> np.ndarray:
        """Return the individuals of the next generation, float64 [size, D]."""
        return self.completed(super().ask())

    def tell(self, fitness: np.ndarray) -> None:
        """Report the fitness, float64 [size], of the individuals that the last call of `ask` returned."""
        super().tell(fitness)
        self.left -= len(fitness)
        if self.left <= 0 and len(self.start) < len(self.all):
            super().__init__(self.mean, **self.arguments)  # begins the search of all weights
