"""What the numbers in docs/ were measured with.

A benchmark is a module NAME of this package that runs as `python -m benchmarks.NAME [--json FILE] [--seed N]`:

- `JUDGES`: the code that it measures (`benchmarks.judged` says what belongs there);
- `main`, which ends in `harness.finish(NAME, arguments, figures, bars)`;
- `table`, and others named `…_table`: figures → Markdown.

Its results are kept as docs/results/*.json; `make docs` makes docs/results/NAME.md of them, from a template where that
page does not exist, and adds their bars to docs/RESULTS.md. What one wants to say of a result is written into its page,
outside the marks.
"""
