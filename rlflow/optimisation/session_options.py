"""Session options of ONNX Runtime that make a given file faster on this machine, measured in turns.

The contenders are sessions of one file: fewer threads, no spinning, parallel branches, no memory pattern, no arena,
fewer optimisations, and single optimisations switched off. They are ranked by successive halving, as files are in a
contest. The options that gained alone are then tried together. The winner is measured against ONNX Runtime's defaults,
and only a winner that is measured to be faster counts. Its gain is not part of the gain of the file.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.costs.measured import MARGIN, measure, ratios_in_turns
from rlflow.graph.feeds import Feeds
from rlflow.graph.onnx_runtime import LEVELS, Setup, run, session
from rlflow.graph.session_file import write_setup
from rlflow.optimisation.choice import is_faster
from rlflow.optimisation.contest import DRAW_SECONDS, affordable_contenders, halve
from rlflow.optimisation.validate.numerics import relative_error
from rlflow.optimisation.validate.onnx_model import Model, is_low

# Share for the ranking of the seconds of `best_session`; the rest is for the measurement of the winner.
RANKING = 2 / 3
# Optimisations of ONNX Runtime whose result can be slower than its input.
OPTIMISATIONS = ("SkipLayerNormFusion", "MatMulAddFusion", "NchwcTransformer")


def contenders(threads: int, low: bool) -> list[Setup]:
    """Return session options to try, each with one change of ONNX Runtime's defaults, most promising first.

    Args:
      threads: the number of threads of the defaults.
      low: True for a model of low precision, whose rounding depends on the optimisations. For such a model no
        optimisation is switched off.
    """
    optimisations = [Setup(without=(name,)) for name in OPTIMISATIONS] + [Setup(level=level) for level in LEVELS]
    result = [] if low else [setup for setup in optimisations if setup != Setup()]
    if threads > 1:
        result += [Setup(threads=threads // 2), Setup(spinning=False), Setup(parallel=True)]
        result += [Setup(threads=1)] if threads > 3 else []
    return [*result, Setup(pattern=False), Setup(arena=False)]


def best_session(
    path: Path, feeds: Feeds, sizes: Mapping[str, Mapping], threads: int, seed: int, tolerance: float, seconds: float
) -> dict:
    """Return the session options with which a file is measured to be fastest.

    Args:
      path: the file.
      feeds: the inputs of the model.
      sizes: name of a typical size → input shapes, see `rlflow.costs.measured.measure`.
      threads: the number of threads of the defaults.
      seed: the seed of the random inputs and of the bootstrap.
      tolerance: the largest accepted relative error of an output, compared with the defaults.
      seconds: the time limit.

    Returns:
      A JSON-able dictionary: `setup`, the changed fields of `Setup` (empty if no option gains), `measured`, the
      comparison with the defaults by `rlflow.costs.measured.measure` (None if no option seemed to gain), and `tried`,
      the number of sets of options.
    """
    end = time.monotonic() + RANKING * seconds
    inputs = list(feeds.at(sizes, seed).values())
    tried = contenders(threads, is_low(Model.read(path).proto))[: affordable_contenders(path, inputs, threads, end)]
    try:
        best = _fastest(path, tried, inputs, threads, tolerance, end)
    except RLFlowError:
        tried = [setup for setup in tried if _is_accepted(path, setup, threads)]
        best = _fastest(path, tried, inputs, threads, tolerance, end)
    if best is None:
        return {"setup": {}, "measured": None, "tried": len(tried)}
    measured = measure(
        path, path, threads, (1 - RANKING) * seconds, seed=seed, sizes=sizes, memory=False, setups=(Setup(), best),
        feeds=feeds, whole_seconds=(1 - RANKING) * seconds,
    )  # fmt: skip
    best = best if best.threads else best._replace(threads=threads)
    return {"setup": best.changes() if is_faster(measured) else {}, "measured": measured, "tried": len(tried)}


def put_session(outcome: dict, out: Path) -> None:
    """Write the session options of a delivered file beside its copy, if there are options.

    Args:
      outcome: the result of `rlflow.optimisation.delivery.deliver`, with the result of `best_session` as `session`.
      out: the path of the copy.
    """
    chosen = outcome.get("session")
    if chosen and chosen["setup"]:
        write_setup(out, Setup.of(chosen["setup"]), chosen["measured"])


def _fastest(
    path: Path, tried: Sequence[Setup], inputs: list[dict], threads: int, tolerance: float, end: float
) -> Setup | None:
    """Return the fastest options that give equal outputs; None if no options seem faster than the defaults.

    Args:
      path: the file.
      tried: the options; options that gain alone are also tried together.
      inputs: for each size, the input arrays by name.
      threads: the number of threads of the defaults.
      tolerance: the largest accepted relative error of an output.
      end: the value of time.monotonic() at the end of the ranking.
    """
    draws = 0

    def ranked(setups: Sequence[Setup], until: float) -> list[tuple[Setup, float]]:
        def draw(left: list[int]) -> list[float]:
            nonlocal draws
            draws += 1
            chosen = [setups[k] for k in left]
            each = DRAW_SECONDS * (len(left) + 1)
            return ratios_in_turns(path, [path] * len(left), inputs, threads, each, draws, chosen)

        order, ratios = halve(len(setups), draw, until)
        return [(setups[k], float(np.median(ratios[k]))) for k in order if ratios[k]]

    first = ranked(tried, (time.monotonic() + 2 * end) / 3) if tried else []
    gaining = [setup for setup, ratio in first if ratio < 1 - MARGIN]
    gaining = [setup for setup in gaining if _is_equal(path, setup, inputs, threads, tolerance)]
    if len(gaining) < 2:
        return gaining[0] if gaining else None
    together = Setup()
    for setup in reversed(gaining):  # of two values of one field the better one stays
        fields = setup.changes()
        without = dict.fromkeys((*together.without, *fields.pop("without", ())))
        together = together._replace(**fields, without=tuple(without))
    if not _is_equal(path, together, inputs, threads, tolerance):
        return gaining[0]
    last = ranked([gaining[0], together], end)
    return last[0][0] if last else gaining[0]


def _is_accepted(path: Path, setup: Setup, threads: int) -> bool:
    """Return whether ONNX Runtime opens a file with some session options."""
    try:
        session(path, threads, setup=setup)
    except RLFlowError:
        return False
    return True


def _is_equal(path: Path, setup: Setup, inputs: list[dict], threads: int, tolerance: float) -> bool:
    """Return whether a file gives equal outputs with some session options and with ONNX Runtime's defaults.

    Float outputs may differ by the relative error `tolerance`. Return False if ONNX Runtime refuses the options.
    """
    try:
        usual, other = session(path, threads), session(path, threads, setup=setup)
        pairs = [pair for one in inputs for pair in zip(run(usual, one), run(other, one), strict=True)]
    except RLFlowError:
        return False
    return all(
        relative_error(a, b) <= tolerance if getattr(a, "dtype", None) in (np.float32, np.float64, np.float16)
        else np.array_equal(a, b)
        for a, b in pairs
    )  # fmt: skip
