"""Curves of a run, read back from its TensorBoard events without TensorFlow."""

from pathlib import Path

Curve = list[tuple[int, float]]  # (step, value), steps ascending


def read_curves(folder: Path) -> dict[str, dict[str, Curve]]:
    """Every scalar of every folder below `folder`: path below it → tag → curve.

    What a kill left half written ends its file.
    """
    result: dict[str, dict[str, dict[int, float]]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        tags = result.setdefault(str(path.parent.relative_to(folder)), {})
        for step, tag, value in _scalars(path):
            tags.setdefault(tag, {})[step] = value  # a restart repeats steps: the last one counts
    return {name: {tag: sorted(curve.items()) for tag, curve in sorted(tags.items())} for name, tags in result.items()}


def _scalars(path: Path):
    """Yields (step, tag, value)."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    reader = PyRecordReader_New(str(path))
    while True:
        try:
            reader.GetNext()
        except (OutOfRangeError, DataLossError):
            return
        event = Event.FromString(reader.record())
        for value in event.summary.value:
            if value.HasField("simple_value"):  # else it is a text
                yield event.step, value.tag, value.simple_value
