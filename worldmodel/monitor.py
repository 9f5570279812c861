"""TensorBoard events."""

from pathlib import Path
from typing import Self

import tensorflow as tf


class EventWriter:
    """Writes scalars to an event file in the folder. A context manager."""

    def __init__(self, folder: Path | str):
        self._writer = tf.summary.create_file_writer(str(folder))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self.close()
