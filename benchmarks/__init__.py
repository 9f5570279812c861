"""Benchmarks whose tables are published in docs/results; `make results` runs all of them.

    python -m benchmarks                    all pages, one after the other; resumable.
    python -m benchmarks.optimise           one page.
    python -m benchmarks.optimise --draft   one page as a draft: accept uncommitted code and change no page.

The docstring of `record.py` states the content of a record and how the parts of a benchmark are kept. A new page needs
a module whose `main` ends with `Record.publish`, and an entry in PAGES of `record.py`. The package `random_models`
generates the random graphs of the tests and nightly checks.
"""
