"""TensorBoard events, written without TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Self

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo
from tensorboard.summary.writer.record_writer import RecordWriter

_FILES = count()  # of this process: two opened in one second must not have one name


class EventWriter:
    """Writes scalars to a new event file in the folder. A context manager."""

    def __init__(self, folder: Path | str):
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_FILES)}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._records = RecordWriter(open(Path(folder) / name, "wb"))
        self._write(file_version="brain.Event:2")

    def scalars(self, step: int, values: dict[str, float]) -> None:
        entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=entries))

    def parameters(self, name: str, values: Mapping[str, object]) -> None:
        """What TensorBoard's HParams view shows of this folder as one session, beside the scalars; None is "null"."""
        info = SessionStartInfo(group_name=name, start_time_secs=time.time())
        for key, value in values.items():
            field = "bool" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "string"
            setattr(info.hparams[key], f"{field}_value", "null" if value is None else value)
        session = metadata.create_summary_metadata(HParamsPluginData(session_start_info=info))
        entry = Summary.Value(tag=metadata.SESSION_START_INFO_TAG, metadata=session, tensor=metadata.NULL_TENSOR)
        self._write(summary=Summary(value=[entry]))

    def _write(self, **content) -> None:
        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()

    def close(self) -> None:
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self.close()
