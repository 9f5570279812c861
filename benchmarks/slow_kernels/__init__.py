"""Catalogue of slow kernels of ONNX Runtime and their equal forms, for docs/SLOW_KERNELS.md.

`form.py` builds the small models, `convolutions.py`, `reductions.py` and `others.py` list the operators, and
`__main__.py` measures them and makes the record.
"""

from benchmarks.slow_kernels import convolutions, others, reductions  # noqa: F401  (fills the catalogue)
from benchmarks.slow_kernels.form import CATALOGUE, TINY, USUAL, Entry, Kernel  # noqa: F401
