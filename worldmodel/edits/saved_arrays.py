"""Arrays of a file, of the dtype and shape that they should have.

What a file says is believed only if it hangs together; lengths in it allocate nothing.
"""

import numpy as np


def checked_array(arrays: dict[str, np.ndarray], name: str, dtype: type, *shape: int | None) -> np.ndarray:
    """The array of that name; None in the shape: any size. Raises KeyError or ValueError if there is none such."""
    result = arrays[name]
    fits = result.dtype == dtype and result.ndim == len(shape)
    if not fits or any(wanted not in (None, size) for wanted, size in zip(shape, result.shape, strict=True)):
        raise ValueError(f"'{name}' is an array {list(result.shape)} of {result.dtype}")
    return result
