from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from worldmodel.monitor import EventWriter


def test_what_is_written_can_be_read(tmp_path):
    with EventWriter(tmp_path) as writer:
        for step in (0, 10):
            writer.scalars(step, {"loss": step / 2, "rate": 0.1})
    events = EventAccumulator(str(tmp_path)).Reload()
    tensors = events.Tensors("loss")
    assert [event.step for event in tensors] == [0, 10]
    assert [make_ndarray(event.tensor_proto) for event in tensors] == [0, 5]
