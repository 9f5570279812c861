"""Successive halving: all are measured in a short heat, the worse half is dropped, until one is left.

So most of the time goes to those that are hard to tell apart. A heat has as much time as is left for each of the
heats after it, and consists of draws: each draw measures all that are left, side by side, and what counts of a
contender is the median of its draws so far.
"""

import time
from collections.abc import Callable

import numpy as np

MOST_DRAWS = 8  # a heat: more would be surer than a whole measurement is


def halve(count: int, draw: Callable[[list[int]], list[float]], end: float) -> tuple[list[int], list[list[float]]]:
    """(contenders, the best first; of each what its draws gave).

    Args:
      count: of contenders, which are numbered from 0; those that are equally good stay in this order.
      draw: measures some of them and the original: what is lower is better.
      end: the clock (time.monotonic()) by which all is over; no draw begins later, nor, but for the first, one that
        would last longer.
    """
    results: list[list[float]] = [[] for _ in range(count)]
    left, dropped, side = list(range(count)), [], 0.0
    for later in reversed(range((count - 1).bit_length())):
        now = time.monotonic()
        until = now + (end - now) / (later + 1)
        for number in range(MOST_DRAWS):
            began, sides = time.monotonic(), len(left) + 1
            if began + side * sides > (until if number else end):
                break
            for index, result in zip(left, draw(left), strict=True):
                results[index].append(result)
            side = (time.monotonic() - began) / sides
        if results[left[0]]:
            left.sort(key=lambda index: np.median(results[index]))
        half = (len(left) + 1) // 2
        left, dropped = left[:half], left[half:] + dropped
    return left + dropped, results
