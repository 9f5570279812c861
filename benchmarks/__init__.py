"""Benchmarks: each module makes one page of docs/results, and `make results` makes all of them.

    python -m benchmarks                    all pages, one after the other; resumable
    python -m benchmarks.optimise           one page
    python -m benchmarks.optimise --draft   a try: uncommitted code is accepted, and no page changes

`record.py` says what a record states and how its parts are kept. A new page is a module with `main`, which ends in
`Record.publish`, and an entry in PAGES of `record.py`. `random_models` is the generator of random graphs that tests and
nightly checks use.
"""
