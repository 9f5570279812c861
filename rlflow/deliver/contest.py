"""Measured choice: different candidates compete end to end with the original, by successive halving.

The winner is then checked and measured to the full beside the original (`rlflow.deliver.delivery`), by other runs than
those that it won by; the order of the others is that in which they take its place if it is not equal, or not faster.

What a family of rules does, the contest of a candidate with and without it has measured. It is kept with the timings of
this machine and says, the next time, which families are left out first: it never says what is delivered, which is what
was measured to be faster that time.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.progress import say
from rlflow.costs.measured import TOGETHER, Ratio, ratio_of, ratios_in_turns
from rlflow.deliver.candidates import Candidate
from rlflow.deliver.contenders import Contender
from rlflow.deliver.halving import halve
from rlflow.graph.onnx_reader import file_bytes
from rlflow.graph.onnx_runtime import random_inputs
from rlflow.graph.onnx_writer import save_graph

RUNS = 0.1  # seconds of runs of each side of a draw, at each of the sizes
SIDES = 2.5  # so many sides there are for each contender: n + n/2 + …, and the original beside them each time


class Contest(NamedTuple):
    """What a contest came to.

    Attributes:
      ranked: the best first; those that there was no time for last.
      families: family → latency with its rewrites, of that without them.
      measured: those that were in two draws or more, and their share of the original's latency.
      table: JSON-able, of those that competed: name, draws, ratio (of the original's latency).
    """

    ranked: list[Candidate]
    families: dict[str, Ratio]
    measured: list[tuple[Candidate, Ratio]]
    table: list[dict]


def compete(
    source: Path, contenders: Sequence[Contender], sizes: Mapping[str, Mapping], threads: int, seed: int, end: float
) -> Contest:
    """The contenders compete, as many of them as the time allows.

    Args:
      source: the original.  contenders: those first that are worth it most; those without a family are variants of the
        first.  sizes: see `rlflow.costs.measured.measure`.  end: the clock (time.monotonic()) by which all is over.
    """
    inputs = [random_inputs(source, seed, shapes) for shapes in sizes.values()]
    competing = list(contenders)[: _how_many(source, inputs, threads, end)] if len(contenders) > 1 else []
    order, ratios = list(range(len(competing))), [[] for _ in competing]
    if len(competing) > 1:
        try:
            order, ratios = _measured(source, competing, inputs, threads, end)
            order[:2] = _smaller_first(order[:2], competing, ratios, seed)
        except RLFlowError as error:  # the checks say which of them is refused
            say(f"the candidates cannot be compared with one another: {error}")
    ranked = [competing[index].candidate for index in order]
    ranked += [contender.candidate for contender in contenders[len(competing) :]]
    table = [
        {"name": competing[k].candidate.name, "draws": len(ratios[k]), "ratio": float(np.median(ratios[k]))}
        for k in order if ratios[k]
    ]  # fmt: skip
    measured = [
        (one.candidate, ratio_of([[ratio] for ratio in draws], seed))
        for one, draws in zip(competing, ratios, strict=True) if len(draws) > 1
    ]  # fmt: skip
    return Contest(ranked, _families(competing, ratios, seed), measured, table)


def _how_many(source: Path, inputs: list, threads: int, end: float) -> int:
    """Of them the time and the memory are enough for."""
    began = time.monotonic()
    ratios_in_turns(source, [], inputs, threads, 0.0, 0)
    now = time.monotonic()
    side = now - began + RUNS * len(inputs)
    return max(min(int((end - now) / (SIDES * side)), TOGETHER // file_bytes(source) - 1), 0)


def _measured(
    source: Path, competing: Sequence[Contender], inputs: list, threads: int, end: float
) -> tuple[list[int], list[list[float]]]:
    """See `halve`."""
    draws = 0

    def draw(left: list[int]) -> list[float]:
        nonlocal draws
        draws += 1
        return ratios_in_turns(source, [files[k] for k in left], inputs, threads, RUNS * (len(left) + 1), draws)

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.onnx") for number in range(len(competing))]
        for contender, file in zip(competing, files, strict=True):
            save_graph(contender.candidate.state.graph, file)
        return halve(len(competing), draw, end)


def _smaller_first(finalists: list[int], competing: Sequence[Contender], ratios: list, seed: int) -> list[int]:
    """Of the last two that has fewer rewrites, unless the other one is shown to be faster."""
    better, other = finalists
    pairs = [[a / b] for a, b in zip(ratios[better], ratios[other], strict=True)]
    shown = len(pairs) > 1 and ratio_of(pairs, seed).high < 1
    sizes = [len(competing[index].candidate.actions) for index in finalists]
    return [other, better] if sizes[1] < sizes[0] and not shown else finalists


def _families(competing: Sequence[Contender], ratios: list[list[float]], seed: int) -> dict[str, Ratio]:
    """Of those that were in two draws or more, beside the first one."""
    result = {}
    for contender, without in zip(competing, ratios, strict=True):
        pairs = [[a / b] for a, b in zip(ratios[0], without, strict=False)]
        if contender.without is not None and len(pairs) > 1:
            result[contender.without] = ratio_of(pairs, seed)
    return result
