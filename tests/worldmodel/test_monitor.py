from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from worldmodel.boards import EventWriter


def test_an_event_file_can_be_read_while_it_is_written(tmp_path):
    with EventWriter(tmp_path) as writer:
        for step in (0, 10):
            writer.scalars(step, {"loss": step / 2, "rate": 0.1})
        events = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
        assert [(event.step, event.value) for event in events] == [(0, 0), (10, 5)]


def test_every_writer_has_a_file_of_its_own(tmp_path):
    for step in range(3):
        with EventWriter(tmp_path) as writer:
            writer.scalars(step, {"loss": 1})
    assert len(list(tmp_path.iterdir())) == 3
    assert [event.step for event in EventAccumulator(str(tmp_path)).Reload().Scalars("loss")] == [0, 1, 2]
