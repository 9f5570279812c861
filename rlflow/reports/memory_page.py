"""The HTML page of the command `memory`.

The page shows a chart of the memory in use while each node runs, in the original and in the new order of the nodes, and
a table of all sizes in MB.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlflow.common.files import write_text
from rlflow.reports import charts
from rlflow.reports.markup import page, short, table, tag

MB = 1e6
ABOUT = (
    "Peak of activations: the memory that an ideal allocator needs. Planned: the block that a session with the "
    "defaults lays out, plus the outputs. Resident: the measured memory that runs add to a fresh process, with the "
    "named session options. Latency: relative to the original model with the defaults, measured only for options that "
    "need less memory than all options above."
)


def write_page(path: Path, results: dict, usage: Sequence[np.ndarray], code: str) -> None:
    """Write one HTML file that needs no other file.

    Args:
      path: the file to write.
      results: the result of the command `memory`.
      usage: two arrays, int64 [n]: the bytes in use while each node runs, in the original and in the new order.
      code: Python code that loads the optimised model.
    """
    names = names_of(results)
    series = {name: stretches(one) for name, one in zip(names, usage, strict=True)}
    drawn = charts.svg(charts.lines(series, "nodes run", "live activations, MB"), "live", "live memory over time")
    head = ("what", *(f"{name}, MB" for name in names), "latency")
    sections = [
        tag("h1", short(results["model"])),
        tag("p", f"{results['gain_percent']:.1f} % less memory at the peak", class_="answer good"),
        tag("h2", "Live memory while nodes run"), tag("figure", drawn),
        tag("h2", "Figures"), table(head, figures(results), numbers=(1, 2, 3)), tag("p", ABOUT, class_="faint"),
        tag("h2", "How to load the file"), tag("pre", tag("code", code)),
    ]  # fmt: skip
    write_text(path, page(f"Memory of {results['model']}", *sections))


def names_of(results: Mapping) -> tuple[str, str]:
    """Return the names of the original and of the optimised model, as the page shows them."""
    return "as it is", "rewritten" if results["rewritten"] else "best order"


def stretches(usage: np.ndarray) -> list[tuple[float, float]]:
    """Return at most POINTS points (number of nodes run before, MB) for a chart of memory in use.

    Each point is the maximum over a number of successive nodes.

    Args:
      usage: int64 [n], the bytes in use while each node runs.
    """
    size = -(-len(usage) // charts.POINTS)
    return [(first, float(usage[first : first + size].max()) / MB) for first in range(0, len(usage), size)]


def figures(results: Mapping) -> list[tuple[str, str, str, str]]:
    """Return the rows of the table of sizes, as texts.

    Returns:
      (name of the quantity, MB of the original, MB of the optimised model, latency relative to the original), in which
        an unknown size is "not known" and a latency that was not measured is empty.
    """
    sizes = results["bytes"]
    result = [
        ("peak of activations", _megabytes(sizes["usual_peak"]), _megabytes(sizes["peak"]), ""),
        ("planned by a session", _megabytes(sizes["usual_block"]), _megabytes(sizes["block"]), ""),
    ]
    if results["rewritten"]:
        ordered = results["rewritten"]["best_order"]
        result.insert(1, ("the same, best order alone", "", _megabytes(ordered), ""))
    for row in results["rows"]:
        what = f"resident, {row['setup']}"
        latency = f"{row['latency']['ratio']:.3f}" if row["latency"] else ""
        result.append((what, _megabytes(row["usual_bytes"]), _megabytes(row["bytes"]), latency))
    return result


def _megabytes(size: int | None) -> str:
    return "not known" if size is None else f"{size / MB:.3f}"
