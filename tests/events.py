"""Names of the TensorBoard curves of a run, for the tests."""

from pathlib import Path

from worldmodel.boards import BOARDS, read_curves, tag_of

OF_GRADIENTS = ("loss", "held_out_loss")  # curves that a world model without gradient descent does not have


def tags_of(folder: Path) -> set[str]:
    return {tag for curves in read_curves(folder).values() for tag in curves}


def always(*stages: str) -> set[str]:
    """Return the tags of the first curves of each stage, as far as every controller and world model has them.

    Args:
        stages: names of stages; by default all four.
    """
    stages = stages or ("collect", "train-wm", "train-controller", "eval")
    return {tag_of(stage, name) for stage in stages for name in BOARDS[stage].first if name not in OF_GRADIENTS}
