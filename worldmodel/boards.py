"""TensorBoard without TensorFlow: the curves of each stage, their tags and meanings, and the event files.

A learner logs each curve under a plain name ("return", "entropy"). The table BOARDS defines the names of each stage and
their tags; any other name raises an error. All controllers therefore use the same names, and so do all world models.

TensorBoard sorts groups of tags by name and unfolds the first two. The names of the important groups therefore start
with a number, and the groups of diagnostics have none. A chart has one line for every folder of events that contains
its tag. Curves to be compared, such as dream and reality, therefore have the same tag in different folders.

The page in TensorBoard's Text dashboard and the charts under "Custom Scalars" are generated from BOARDS.
"""

import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple, Self

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalars
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text import metadata as texts
from tensorboard.summary.writer.record_writer import RecordWriter

from rlflow.common.errors import RLFlowError

Curve = list[tuple[int, float]]  # (step, value) pairs in ascending order of the step


def read_curves(folder: Path) -> dict[str, dict[str, Curve]]:
    """Read every scalar from the event files in a folder and its subfolders.

    The rest of a file after an incomplete record, which an interrupted process left, is ignored.

    Returns:
      {path of a subfolder, relative to `folder`: {tag: curve}}.
    """
    result: dict[str, dict[str, dict[int, float]]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        tags = result.setdefault(str(path.parent.relative_to(folder)), {})
        for event in _events(path):
            # A training that goes on from an earlier step repeats this step and later ones: drop the old values.
            if event.HasField("session_log"):
                for curve in tags.values():
                    for step in [step for step in curve if step >= event.step]:
                        del curve[step]
            for value in event.summary.value:
                if value.HasField("simple_value"):  # otherwise the value is a text
                    tags.setdefault(value.tag, {})[event.step] = value.simple_value
    return {name: {tag: sorted(curve.items()) for tag, curve in sorted(tags.items())} for name, tags in result.items()}


def _events(path: Path) -> Iterator[Event]:
    """Yield the events of a file in their order."""
    from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    reader = PyRecordReader_New(str(path))
    while True:
        try:
            reader.GetNext()
        except (OutOfRangeError, DataLossError):
            return
        yield Event.FromString(reader.record())


_FILES = count()  # part of file names, so that files opened in the same second have different, ordered names


class EventWriter:
    """A writer of scalars, texts and other TensorBoard data to a new event file in a folder; a context manager.

    The file is created with the first data. Its first scalars replace all scalars of earlier files in the folder at the
    same and later steps, so that a training that goes on from a checkpoint has each point once.

    Args:
      folder: the folder.
      anew: True to delete the folder before the file is created.
    """

    def __init__(self, folder: Path | str, anew: bool = False):
        self._folder, self._anew = Path(folder), anew
        self._records: RecordWriter | None = None
        self._begun = False  # True after the first scalars

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point of each of several curves.

        Args:
          step: the position of the points on the horizontal axis.
          values: {tag of a curve: value}.
        """
        if not self._begun:
            self._write(step=step, session_log=SessionLog(status=SessionLog.START))
            self._begun = True
        entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=entries))

    def parameters(self, name: str, values: Mapping[str, object]) -> None:
        """Write hyperparameter values for TensorBoard's HParams dashboard.

        Args:
          name: the name of the session group (one configuration) in the dashboard.
          values: {name of a hyperparameter: value}; None is written as "null".
        """
        info = SessionStartInfo(group_name=name, start_time_secs=time.time())
        for key, value in values.items():
            field = "bool" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "string"
            setattr(info.hparams[key], f"{field}_value", "null" if value is None else value)
        session = metadata.create_summary_metadata(HParamsPluginData(session_start_info=info))
        entry = Summary.Value(tag=metadata.SESSION_START_INFO_TAG, metadata=session, tensor=metadata.NULL_TENSOR)
        self._write(summary=Summary(value=[entry]))

    def status(self, is_good: bool) -> None:
        """Write the status of the session for TensorBoard's HParams dashboard: success or failure."""
        status = Status.STATUS_SUCCESS if is_good else Status.STATUS_FAILURE
        info = SessionEndInfo(status=status, end_time_secs=time.time())
        session = metadata.create_summary_metadata(HParamsPluginData(session_end_info=info))
        entry = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=session, tensor=metadata.NULL_TENSOR)
        self._write(summary=Summary(value=[entry]))

    def text(self, tag: str, markdown: str) -> None:
        """Write a Markdown page for TensorBoard's Text dashboard under this tag."""
        self._string(tag, markdown.encode(), texts.create_summary_metadata(tag, ""))

    def layout(self, charts: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        """Write the layout of TensorBoard's Custom Scalars dashboard.

        Args:
          charts: (title of a category, [(title of a chart, regular expression for its tags), …]) pairs.
        """
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

    def _open(self) -> RecordWriter:
        if self._anew:
            rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_FILES):06d}"
        records = RecordWriter(open(self._folder / name, "wb"))
        records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        return records

    def _write(self, **content) -> None:
        if self._records is None:
            self._records = self._open()
        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()

    def close(self) -> None:
        if self._records is not None:
            self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


PAGE, PAGE_FOLDER = "read me first", "about"  # the tag of the explaining page, and the folder of its event file


class Meaning(NamedTuple):
    """The description of a main curve.

    Attributes:
      along: the quantity on the horizontal axis.
      unit: the unit of the values.
      better: "higher" or "lower", the direction in which values are better; "" if neither is better.
      text: one or two sentences about the curve.
    """

    along: str
    unit: str
    better: str
    text: str


class Board(NamedTuple):
    """The curves of one stage.

    Attributes:
      group: the TensorBoard group of the main curves: their tags are `group/name`.
      about: Markdown text about the folders of events and how to read the curves.
      first: {name of a main curve: its meaning}.
      diagnostics: {name of a curve that helps to explain a problem: a phrase that describes the curve}.
    """

    group: str
    about: str
    first: dict[str, Meaning]
    diagnostics: dict[str, str]


BOARDS = {
    "eval": Board(
        "1 dream and reality",
        "The greedy episode of one controller, twice: `eval-dream-NAME` is the dreamt return of the controller NAME, "
        "`eval-real-NAME` its return on the real graph. **Good:** both lines rise and stay close together. **Bad:** "
        "the dreamt return exceeds the real one: the world model predicts rewards that do not exist. Look at its "
        "errors by horizon, collect more episodes, or learn in iterations. Both flat: the controller has learnt "
        "nothing. `eval-controller`, `eval-greedy`, `eval-random` … show the estimated runtime of the candidates.",
        {
            "return": Meaning("step of the episode", "reward", "higher", "Reward so far, dreamt and real."),
            "runtime_estimated_ms": Meaning(
                "rewrite", "ms", "lower", "Estimated runtime of every candidate after this number of rewrites."
            ),
        },
        {},
    ),
    "train-wm": Board(
        "2 world model",
        "Held-out episodes are predicted from one graph and the actions alone, for more and more steps "
        "ahead. `fidelity-model` is the world model; `fidelity-no-change` expects that nothing happens, "
        "`fidelity-rule-mean` of each rule its mean reward. **Good:** the model lies far below both baselines in error "
        "and above them in masks, and hardly gets worse with the horizon. **Bad:** it meets a baseline at a horizon: "
        "longer dreams are useless. `train-wm` has the losses, of models that descend gradients: a "
        "held-out loss that rises while the loss falls says that there are too few episodes.",
        {
            "error_by_horizon": Meaning(
                "steps ahead", "units of the mean real sum", "lower",
                "Error of the reward summed over this number of steps. 1 is the error of expecting no reward.",
            ),
            "masks_exact_by_horizon": Meaning(
                "steps ahead", "a share of the states", "higher",
                "Share of states with an exact mask of valid rules after this number of steps.",
            ),
            "loss": Meaning(
                "training step", "the sum of its parts", "lower", "Loss of the dynamics on training episodes."
            ),
            "held_out_loss": Meaning(
                "training step", "the sum of its parts", "lower", "Loss of the dynamics on held-out episodes."
            ),
        },
        {
            "loss": "of the encoder, of a further member of the ensemble, or of a network of `graph-mdn`",
            "z": "part of the loss: negative log-likelihood of the next latent",
            "reward": "part of the loss: squared error of the standardised reward, or its negative log-density",
            "termination": "part of the loss: cross-entropy of the end of an episode",
            "counts": "part of the loss: how many locations each rule has",
            "xfer_mask": "part of the loss: which rules are valid",
            "costs": "part of the encoder's loss: the graph's costs",
            "operators": "part of the encoder's loss: how often each operator occurs",
            "gradient_norm": "before it is clipped",
            "learning_rate": "as it decays",
            "applies": "part of the match network's loss: where rules applied",
            "refuted": "part of it: where they did not",
            "structure": "part of it: which nodes go and come",
            "slot": "part of it: what these nodes and their tensors are",
            "error": "mean error of the node network's logarithms of costs",
            "locations": "part of the loss of the latent state: how many locations each rule has gained",
            "cost": "part of it: how much cheaper the graph has become",
            "further": "part of it: how much cheaper the graph still becomes in its episode",
            "wrong": "part of the loss of the recurrent state: whether predicted rule masks are wrong",
            "ends": "part of it: where episodes end",
            "diverged": "1 at the step at which the training ended because a loss was not finite",
            "interactions": "real steps that the model learnt from, those held out included",
            "patterns": "match patterns that `edits` learnt",
            "signatures": "signatures with which these patterns apply",
            "effects": "signatures of which the effect is known",
        },
    ),
    "train-controller": Board(
        "3 controller",
        "One folder a training: `ppo-1` learnt in dreams of temperature 1, `ppo-real` on the real graph. **Good:** "
        "`best_return` rises early and then levels off. **Bad:** it stays where random play (`5 random play`) is, or "
        "still rises steeply at the end: more updates, generations or steps. Only "
        "`1 dream and reality` shows its real return.",
        {
            "return": Meaning(
                "environment steps", "reward", "higher",
                "Mean return of the controller as it now is: a greedy policy, the mean of CMA-ES's search, the "
                "plan that the planner's last search found. Of one-shot tasks percent below the control.",
            ),
            "best_return": Meaning(
                "environment steps", "reward", "higher", "Return of the best controller so far, which is saved."
            ),
        },
        {
            "episode_length": "steps of the episodes that ended",
            "loss": "Huber loss of the value of A*, in mean gains",
            "success": "mean share of the searches of A* that found the lowest known objective of their problem",
            "measurement_seconds": "of all measurements so far, each graph once, where rewards are measured",
            "candidates": "valid actions of a state in the mean, as a controller sees them that sees candidates",
            "sampled_return": "mean return of the episodes that ended, whose actions were sampled",
            "imitated_return": "highest return of an episode whose actions were sampled; PPO imitates this episode",
            "imitation_loss": "mean negative log-probability of its actions, in nats",
            "policy_loss": "PPO's clipped objective, negated; Topoformer's REINFORCE loss; EGRL's actor loss",
            "valid": "share of a generation's placements that needed no repair",
            "spread": "standard deviation of what sampled orders need, in percent of the baseline",
            "value_loss": "squared error of the predicted returns, in scaled rewards (EGRL: of both critics)",
            "entropy": "of the policy, in nats; near 0 it explores no more",
            "approx_kl": "how far an update moved the policy; above about 0.05 it moves too fast",
            "clipfrac": "share of the actions at which the update was clipped",
            "gradient_norm": "before it is clipped",
            "diverged": "1 where the training ended because its gradients were not finite",
            "explained_variance": "share of the variance of returns that is predicted; 1 is all, 0 none",
            "learning_rate": "as it decays",
            "reward_scale": "what rewards are divided by",
            "best_individual": "highest return of a generation",
            "population_return": "mean return of a generation",
            "sigma": "step size of the search; it shrinks as the search converges",
            "starts": "how often the search began",
            "generation": "generations so far, in units of popsize individuals",
            "best_runtime_ms": "predicted runtime of the best dreamt graph so far, as a search finds it",
        },
    ),
    "iterations": Board(
        "4 iterations",
        "For `train-wm --iterations N`. `iterations-dream` is the dreamt return of the controller of an iteration, "
        "`iterations-real` the return of its greedy episode. `iterations-before` is the world model of its training, "
        "`iterations-after` the next one, which also learned from its episodes. **Good:** dream and reality "
        "approach each other, and the error falls. **Bad:** every new controller finds another way to fool the "
        "model: more interactions, or an uncertainty limit in the dream.",
        {
            "return": Meaning("iteration", "reward", "higher", "Dreamt return, and real return of the greedy episode."),
            "world_model_error": Meaning(
                "iteration", "units of the mean real gain", "lower",
                "Error of the predicted gain of the controller's whole episodes.",
            ),
        },
        {},
    ),
    "collect": Board(
        "5 random play",
        "Episodes of random play (`collect`). **Good:** episodes that gain something, and episodes that lose. **Bad:** "
        "all returns alike: there is little to learn from; let episodes be longer, or allow more rules.",
        {
            "return": Meaning("episode", "reward", "higher", "Return of the episode."),
            "best_gain": Meaning(
                "episode", "percent of the first cost", "higher", "Estimated gain of the best graph met so far."
            ),
            "episode_length": Meaning("episode", "steps", "", "Short ones ended by NO-OP, or where no rule applied."),
        },
        {"interactions": "real steps so far"},
    ),
}  # fmt: skip


def tag_of(stage: str, name: str) -> str:
    """Return the TensorBoard tag of a curve.

    Args:
      stage: a key of BOARDS.
      name: the name of the curve. The name of a diagnostic may have a prefix for a part of the model: "encoder/loss".

    Raises:
      RLFlowError: BOARDS defines no such curve for the stage.
    """
    board = BOARDS[stage]
    if name in board.first:
        return f"{board.group}/{name}"
    if name.rpartition("/")[2] in board.diagnostics:
        return f"diagnostics of {stage}/{name}"
    raise RLFlowError(f"'{name}' is no curve of the stage '{stage}': declare it in worldmodel/boards.py")


class StageWriter(EventWriter):
    """An EventWriter for one stage; `scalars` takes names of curves and writes each value under the curve's tag."""

    def __init__(self, folder: Path | str, stage: str, anew: bool = False):
        super().__init__(folder, anew)
        self.stage = stage

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point of each of several curves.

        Args:
          step: the position of the points on the horizontal axis.
          values: {name of a curve in BOARDS: value}.

        Raises:
          RLFlowError: BOARDS defines no such curve for the stage.
        """
        super().scalars(step, {tag_of(self.stage, name): value for name, value in values.items()})


def draw(folder: Path | str, stage: str, curves: Mapping[str, Curve]) -> None:
    """Delete a folder of events and write complete curves to it.

    Args:
      folder: the folder of events.
      stage: a key of BOARDS.
      curves: {name of a curve: curve}.
    """
    rmtree(folder, ignore_errors=True)
    with StageWriter(folder, stage) as writer:
        for name, curve in curves.items():
            for step, value in curve:
                writer.scalars(step, {name: value})


def training_curves(folder: Path) -> dict[str, dict[str, Curve]]:
    """Read the main curves of the stages train-wm and train-controller from a folder and its subfolders, for reports.

    Returns:
      {path of a subfolder, relative to `folder`: {"name (unit) by horizontal axis": curve}}.
    """
    titles = {}
    for stage in ("train-wm", "train-controller"):
        for name, meaning in BOARDS[stage].first.items():
            titles[tag_of(stage, name)] = f"{name} ({meaning.unit}) by {meaning.along}"
    result = {}
    for name, curves in read_curves(folder).items():
        if shown := {titles[tag]: curve for tag, curve in curves.items() if tag in titles}:
            result[name] = shown
    return result


# -- the page and the charts -----------------------------------------------------------------------


def explain(folder: Path | str) -> None:
    """Write the page that explains the curves and the layout of the charts, unless they exist.

    Args:
      folder: the folder that contains the run's folders of events.
    """
    about = Path(folder) / PAGE_FOLDER
    if about.exists():
        return
    charts = []  # one category per stage
    for stage, board in BOARDS.items():
        shown = []
        for name, meaning in board.first.items():
            shown.append((f"{name} ({meaning.unit})", f"^{re.escape(tag_of(stage, name))}$"))
        charts.append((f"{board.group}: {stage}", shown))
    with EventWriter(about) as writer:
        writer.text(PAGE, page())
        writer.layout(charts)


def page() -> str:
    """Return the Markdown page that explains all curves: main curves with good and bad signs, then diagnostics."""
    parts = [
        "# Which curves to look at first",
        "Groups with a number hold them, the most telling group first; *Custom Scalars* shows them alone. Diagnostics "
        "help to find out why a training is bad. All controllers, and all world models, use the same names. "
        "Most curves are short: set *Smoothing* to 0.",
    ]
    for stage, board in BOARDS.items():
        rows = ["| curve | along | what it says |", "| --- | --- | --- |"]
        for name, meaning in board.first.items():
            scale = f"In {meaning.unit}" + (f"; {meaning.better} is better." if meaning.better else ".")
            rows.append(f"| `{tag_of(stage, name)}` | {meaning.along} | {meaning.text} {scale} |")
        parts += [f"## {stage}", board.about, "\n".join(rows)]
    parts.append("# Diagnostics")
    for stage, board in BOARDS.items():
        if board.diagnostics:
            lines = [f"- `{name}`: {text}" for name, text in board.diagnostics.items()]
            parts += [f"## diagnostics of {stage}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"
