"""The population of EGRL: networks and Boltzmann chromosomes (Khadka et al. 2021, Algorithm 2 and appendix E).

A chromosome has a prior and a temperature for each decision, and draws decisions from softmax(prior / temperature).
"""

from typing import NamedTuple

import numpy as np

from controllers.controller_options import EGRLConfig

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 10.0


class Population(NamedTuple):
    """G networks and K chromosomes; individual k is network k, or chromosome k − G.

    Attributes:
      networks: float32 [G, P], flat parameter vectors.
      priors: float32 [K, n, 2, M], logits of the memories of weights and activations.
      temperatures: float32 [K, n, 2].
    """

    networks: np.ndarray
    priors: np.ndarray
    temperatures: np.ndarray

    @property
    def size(self) -> int:
        return len(self.networks) + len(self.priors)

    def sampled(self, rng: np.random.Generator) -> np.ndarray:
        """Draw one placement from each chromosome, int64 [K, n, 2]: the memories of weights and activations."""
        noise = rng.gumbel(size=self.priors.shape)
        return (self.priors / self.temperatures[..., None] + noise).argmax(axis=-1)


def first_population(
    networks: np.ndarray, chromosomes: int, shape: tuple[int, int, int], slowest: float, rng: np.random.Generator
) -> Population:
    """Return the initial population.

    Args:
      networks: float32 [G, P].
      chromosomes: K.
      shape: (n, 2, M).
      slowest: the mean of the prior of the last memory; the others have mean 0, all have standard deviation 1.
      rng: the random generator.
    """
    priors = rng.standard_normal((chromosomes, *shape))
    priors[..., -1] += slowest
    temperatures = np.exp(rng.uniform(np.log(0.3), 0.0, (chromosomes, *shape[:2])))
    return Population(networks, priors.astype(np.float32), temperatures.astype(np.float32))


def next_population(
    before: Population, fitness: np.ndarray, logits: np.ndarray, actor: np.ndarray | None, config: EGRLConfig,
    rng: np.random.Generator,
) -> Population:  # fmt: skip
    """Return the next generation: elites, children of tournament winners, and the actor, which replaces a network.

    The actor takes the place of the network with the lowest fitness that is no elite.

    Args:
      before: the population.
      fitness: float [G + K].
      logits: float32 [G, n, 2, M], the networks' logits, which seed priors.
      actor: float32 [P], the network learnt by gradients; None without migration.
      config: the options of evolution.
      rng: the random generator.
    """
    networks, priors, temperatures = (array.copy() for array in before)
    count, order = len(networks), np.argsort(-fitness, kind="stable")
    elites = order[: config.elites]
    for slot in range(before.size):
        if slot in elites:
            continue
        is_network = slot < count
        rivals = rng.integers(*((0, count) if is_network else (count, before.size)), size=config.tournament)
        parent, elite = int(rivals[fitness[rivals].argmax()]), int(rng.choice(elites))
        crosses, mutates = rng.random(2) < (config.crossover, config.mutation)
        if is_network:
            child = before.networks[parent].copy()
            if crosses and elite < count:
                cut = rng.integers(len(child))
                child[:cut] = before.networks[elite, :cut]
            networks[slot] = _mutated(child, config, config.mutation_sigma, rng) if mutates else child
            continue
        prior, temperature = before.priors[parent - count].copy(), before.temperatures[parent - count].copy()
        if crosses and elite < count:  # The elite network's posterior seeds the prior.
            prior = logits[elite] - np.logaddexp.reduce(logits[elite], axis=-1, keepdims=True)
        elif crosses:
            cut = rng.integers(len(prior))
            prior[:cut] = before.priors[elite - count, :cut]
            temperature[:cut] = before.temperatures[elite - count, :cut]
        if mutates:
            prior = _mutated(prior, config, config.prior_sigma, rng)
            temperature = np.exp(_mutated(np.log(temperature), config, config.prior_sigma, rng))
        priors[slot - count], temperatures[slot - count] = prior, temperature.clip(MIN_TEMPERATURE, MAX_TEMPERATURE)
    weakest = [int(k) for k in order[::-1] if k < count and k not in elites]
    if actor is not None and weakest:
        networks[weakest[0]] = actor
    return Population(networks, priors, temperatures)


def _mutated(array: np.ndarray, config: EGRLConfig, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Return a copy with Gaussian noise on a random share of the entries (a few of them are drawn twice)."""
    result = array.astype(np.float32, copy=True)
    places = rng.integers(result.size, size=max(1, round(config.mutation_share * result.size)))
    result.reshape(-1)[places] += rng.normal(0.0, sigma, len(places)).astype(np.float32)
    return result
