"""TensorBoard events, written without TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Self

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalars
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo
from tensorboard.plugins.text import metadata as texts
from tensorboard.summary.writer.record_writer import RecordWriter

_FILES = count()  # of this process: those opened in one second have names of their own, in order


class EventWriter:
    """Writes scalars, texts and what else TensorBoard shows to a new event file in the folder. A context manager."""

    def __init__(self, folder: Path | str):
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_FILES):06d}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._records = RecordWriter(open(Path(folder) / name, "wb"))
        self._write(file_version="brain.Event:2")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
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

    def text(self, tag: str, markdown: str) -> None:
        """A page of TensorBoard's Text dashboard."""
        self._string(tag, markdown.encode(), texts.create_summary_metadata(tag, ""))

    def layout(self, charts: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        """What the Custom Scalars dashboard shows: (title, [(title of a chart, pattern of its tags)])."""
        layout = layout_pb2.Layout()
        for title, shown in charts:
            category = layout.category.add(title=title)
            for name, pattern in shown:
                category.chart.add(title=name, multiline=layout_pb2.MultilineChartContent(tag=[pattern]))
        content = layout.SerializeToString()
        self._string(custom_scalars.CONFIG_SUMMARY_TAG, content, custom_scalars.create_summary_metadata())

    def _string(self, tag: str, content: bytes, metadata: SummaryMetadata) -> None:
        tensor = TensorProto(dtype=DT_STRING, tensor_shape={}, string_val=[content])
        self._write(summary=Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]))

    def _write(self, **content) -> None:
        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()

    def close(self) -> None:
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self.close()
