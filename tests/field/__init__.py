"""Small models that fail in many tools, one module for each kind of complaint, and what `optimise` must do with them.

The kinds come from public complaints about ONNX tools. Each module has a dictionary CASES: name → `Case`. The keys of
the first cases are the letters of the scripts from which the kind was collected; the others are variants.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx


class Case(NamedTuple):
    """A model and the documented end of `rlflow optimise MODEL OPTIONS`.

    Attributes:
      make: function that builds the model.
      status: exit status.
      says: regular expression that the line `result:` (status 0) or `error:` (status 1) must contain.
      inputs: values for `--inputs`, input name → array; None to run without.
      options: further arguments of the command.
      custom_ops: libraries of custom operators, for `--custom-ops`.
    """

    make: Callable[[], onnx.ModelProto]
    status: int = 0
    says: str = ""
    inputs: dict[str, np.ndarray] | None = None
    options: tuple[str, ...] = ()
    custom_ops: tuple[str, ...] = ()


def kinds() -> dict[str, dict[str, Case]]:
    """Return the cases of all modules of this package: name of the module → CASES."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("test_"))
    return {name: importlib.import_module(f"{__name__}.{name}").CASES for name in names}
