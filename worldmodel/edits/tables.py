"""Arrays of a file, of the kind and shape that they should have."""

import numpy as np


def table(arrays: dict[str, np.ndarray], name: str, dtype: type, *shape: int | None) -> np.ndarray:
    """The array of that name; None in the shape: any size. Raises KeyError or ValueError if there is none such."""
    found = arrays[name]
    fits = found.dtype == dtype and found.ndim == len(shape)
    if not fits or any(wanted not in (None, size) for wanted, size in zip(shape, found.shape, strict=True)):
        raise ValueError(f"'{name}' is an array {list(found.shape)} of {found.dtype}")
    return found
