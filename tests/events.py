"""What a run shows in TensorBoard, as the tests look at it."""

from pathlib import Path

from worldmodel.boards import BOARDS, read_curves, tag_of

OF_GRADIENTS = ("loss", "held_out_loss")  # not of a world model that descends none


def tags_of(folder: Path) -> set[str]:
    return {tag for curves in read_curves(folder).values() for tag in curves}


def always(*stages: str) -> set[str]:
    """The tags that these stages (by default the four) show first, whichever controller and world model they run."""
    stages = stages or ("collect", "train-wm", "train-controller", "eval")
    return {tag_of(stage, name) for stage in stages for name in BOARDS[stage].first if name not in OF_GRADIENTS}
