"""Models as people export them: a corpus, what is made of each file, and by which other tools.

`corpus.py` declares the files and their halves, `make.py` makes them in an environment of its own, `networks.py` and
`torch_exporters.py` for torch; `dynamic.py` declares those with symbolic sizes. `jobs.py` has each file optimised, by
us (`optimised.py`) and by others (`peers.py`), and measured (`together.py`, `running.py`); `results.py` judges it.
"""

from benchmarks.judged import ENGINE

JUDGES = (
    *ENGINE, "rlflow/graph", "rlflow/rules/locations.py", "rlflow/env", "rlflow/deliver", "rlflow/search",
    "rlflow/costs",
    "benchmarks/exports", "benchmarks/keras_models.py",
)  # fmt: skip


def __getattr__(name: str):
    """The command and the tables, which whoever only exports need not be able to import."""
    if name == "main":
        from benchmarks.exports.__main__ import main

        return main
    if not name.endswith("table"):
        raise AttributeError(name)
    from benchmarks.exports import results

    return getattr(results, name)
