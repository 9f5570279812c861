"""RLFlow as a library: `rlflow.optimise` and `rlflow.load_task`. `optimise` does what the command `optimise` does."""

import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from hashlib import sha256
from os import PathLike
from pathlib import Path

import numpy as np
import onnx

from controllers.stages.acting import acted
from controllers.stages.learn import learn as learn_in_stages
from controllers.stages.parts import check_names
from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.files import read_json, write_bytes
from rlflow.common.messages import say, say_lines, silence
from rlflow.common.options import setting
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import Task
from rlflow.graph.onnx_writer import check_apart, serialised
from rlflow.optimisation.delivery import copy_with_receipt
from rlflow.optimisation.pipeline import search_and_deliver
from rlflow.reports.markdown import at_sizes_text
from rlflow.runs.config import asks_to_learn, is_shape
from rlflow.runs.folder import RunFolder
from worldmodel.run_pages import pages

Model = str | PathLike[str] | onnx.ModelProto
PAGE = Path("eval", "report.html")  # in the folder of a run
Shapes = Mapping[str, int | Sequence[int]]


class Optimised:
    """What `rlflow.optimise` came to.

    Attributes:
      delivered: who came to the model: the name of a search, "controller", or "original": nothing better was found.
      reason: why this one, in words.
      path: its file: in the folder of the run, or the original's own.  run: that folder.
      outcome: all that is known of all candidates: what `rlflow optimise --json` writes under "eval".
    """

    def __init__(self, source: Path, run: Path, outcome: dict):
        self.source, self.run = source.absolute(), run  # in whichever folder the caller works later
        self.outcome = outcome | {"optimised": str(Path(outcome["optimised"]).absolute())}
        self.delivered: str = outcome["delivered"]
        self.reason: str = outcome["reason"]
        self.path = Path(self.outcome["optimised"])

    @property
    def is_original(self) -> bool:
        """Whether the model is the original, since nothing better was found."""
        return self.delivered == "original"

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model, with all its weights."""
        return onnx.load(self.path)

    @cached_property
    def receipt(self) -> dict | None:
        """From which `rlflow replay` makes the same file again; None for the original."""
        return None if self.is_original else read_json(self.path.with_name("receipt.json"))

    @property
    def report(self) -> Path | None:
        """The HTML page about the run; None where it could not be written, or there was nothing to say."""
        page = self.run / PAGE
        return page if page.exists() else None

    @property
    def estimated_gain_percent(self) -> float:
        """Percent by which the estimated latency is below the original's."""
        return 0.0 if self.is_original else self._chosen["estimated_improvement_percent"]

    @property
    def measured(self) -> dict | None:
        """All of the measurement (`rlflow.costs.measured.measure`); None for the original, or if none was wanted."""
        return None if self.is_original else self._chosen["measured"]

    @property
    def ratio(self) -> float | None:
        """Measured latency as a share of the original's: below 1 is faster."""
        return self.measured and self.measured["ratio"]

    @property
    def interval(self) -> tuple[float, float] | None:
        """In which the ratio lies with 95 % confidence."""
        return self.measured and tuple(self.measured["interval"])

    @property
    def verdict(self) -> str:
        """What the interval says: "faster", "no difference shown" or "slower"; "not measured"."""
        return self.measured["verdict"] if self.measured else "not measured"

    @property
    def _chosen(self) -> dict:
        return self.outcome["candidates"][self.delivered]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the model to `path`; beside it FILE.receipt.json, and FILE.fault-report.md if rewrites were left out.

        Weights above 2 GB lie in FILE.onnx.data. Raises RLFlowError where that cannot be written, or the original lies.
        """
        check_apart(self.source, path, "save")
        copy_with_receipt(self.outcome, Path(path))

    def __str__(self) -> str:
        if self.is_original:
            return f"the original: {self.reason}"
        measured = "not measured"
        if self.measured:
            low, high = self.interval
            ratio = f"{self.ratio:.3f} of the original's latency{at_sizes_text(self.measured)}"
            measured = f"measured {ratio} ({low:.3f} to {high:.3f}): {self.verdict}"
        rewrites = f"{self._chosen['substitutions']} rewrites by {self.delivered}"
        return f"{measured}; estimated {self.estimated_gain_percent:.2f} % lower\n{rewrites}: {self.reason}"

    def __repr__(self) -> str:
        return f"<Optimised {self.path}: {str(self).splitlines()[0]}>"


def optimise(
    model: Model,
    *,
    seconds: float | None = None,
    threads: int | None = None,
    shapes: Shapes | None = None,
    fix: bool = False,
    exact: bool = False,
    standard_operators_only: bool = False,
    receipt: str | PathLike[str] | None = None,
    controller: str | PathLike[str] | None = None,
    learn: bool = False,
    accept: str | None = None,
    seed: int | None = None,
    run: str | PathLike[str] | None = None,
    options: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> Optimised:
    """Makes a model faster: what the command `rlflow optimise` does.

    Searches for a cheaper graph, checks that it computes the same, measures it against the original and gives what is
    shown to be faster; the original, where nothing is shown. Ctrl-C ends it with the best so far, checked and measured
    in short. In another thread than the main one it cannot be ended, neither by Ctrl-C nor, where it learns,
    by the seconds.

    Args:
      model: the path of an ONNX file, a zoo name (`rlflow zoo` lists them) or a model in memory, which stays as it is.
      seconds: for all of it; by default 120, and 900 where it learns. A check that has begun is finished.
      threads: of ONNX Runtime inside one operator, in estimates and measurements; by default as many as it takes by
        itself, of the cores that this process may use.
      shapes: typical sizes of symbolic dimensions, at which the model is measured: {"seq": 128}, or several
        {"seq": (16, 128)}, to be slower at none; or those of an input's axes {"input_ids": (1, 128)}. By default 1 of
        each first axis, 224 of the sides of images, 128 of all else. The result takes every size that the model takes.
      fix: freezes these sizes: the result may take no others then, and more rules apply.
      exact: only rules that change no rounding, so that the result is equal bit for bit.
      standard_operators_only: no operators of ONNX Runtime's own, so that the model stays portable.
      receipt: the file of one of the same model at another size, or with other weights: its rewrites are carried out
        before the searches, those that have no place here left out.
      controller: the folder of a controller that learnt on other models: before the searches it acts on this one.
        Needs the extra `learn`.
      learn: after the searches a world model learns from random episodes, and a controller in its dream. Those that
        are neural networks need the extra `learn` (pip install 'rlflow[learn]').
      accept: "faster", the default: what is shown to be faster, or else to need less memory or a smaller file; "equal":
        also that of which no difference in speed is shown. Never what is measured to be slower.
      seed: decides every random choice; by default 0.
      run: a folder for all that is known of the run, its report among it; called again with it, the run goes on.
        By default a temporary one, which lives as long as the result.
      options: further options by their names in configs/default.yaml: {"search.beam.width": 4}.
      quiet: shows no progress, which otherwise goes to standard error.

    Raises:
      RLFlowError: in one line, what is wrong with the model, an option or the folder.
    """
    started, folder = time.monotonic(), Path(run or tempfile.mkdtemp(prefix="rlflow-")).absolute()
    overrides = [setting(key, value) for key, value in (options or {}).items()]
    chosen = {
        "optimise.seconds": seconds, "cost.threads": threads, "optimise.receipt": receipt,
        "optimise.controller": controller, "optimise.learn": learn or asks_to_learn((), overrides) or None,
        "eval.accept": accept, "env.exact": exact or None,
        "env.standard_operators_only": standard_operators_only or None, "fix": fix or None,
    }  # fmt: skip
    overrides += [setting(key, value) for key, value in chosen.items() if value is not None]
    try:
        with silence() if quiet else nullcontext():
            opened = RunFolder.open(
                folder, _name(model, folder), (), overrides, _plain(shapes),
                _number(seed), check_names,
            )  # fmt: skip
            results, _ = search_and_deliver(opened, None, started, acted, learn_in_stages)
            result = Optimised(opened.source, folder, results["eval"])
            _say(opened, results["eval"], with_files=run is not None)
    except BaseException:
        if run is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if run is None:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


def load_task(model: Model, *, cost: str | None = None, shapes: Shapes | None = None, **options) -> Task:
    """A model as a rewriting task, opened.

        state = rlflow.load_task("tiny_resnet18", cost="analytic").initial
        match = state.matches[0]             # where a rule applies: state.task.rules[match.xfer_id]
        state = state.follow(match)          # the state after it; the one before stays as it was
        state.runtime_ms, state.graph        # its estimate; rlflow.graph.onnx_writer.save_graph writes it

    Args:
      model, shapes: see `optimise`.
      cost: analytic (the same everywhere), roofline, profiled (operators timed on this machine; the default),
        learned, or memory (bytes at the peak).
      options: of `rlflow.env.graph_rewrite.EnvSpec`, e.g. rules=("fusion",), exact=True, threads=2, fix=True.

    Raises:
      RLFlowError: in one line, what is wrong with the model or the cost.
    """
    if cost is not None:
        options["cost"] = cost
    sizes = tuple(_plain(shapes).items())
    if isinstance(model, onnx.ModelProto):
        return EnvSpec("", sizes, **options).open(model)
    return EnvSpec(str(model), sizes, **options).make_task()


def _say(run, outcome: dict, with_files: bool) -> None:
    """Writes the pages and says the result. What goes wrong with them takes nothing from what is delivered.

    with_files: whether to say where files lie; a temporary folder is soon gone.
    """
    try:
        lines = pages(run, outcome)
    except (Exception, KeyboardInterrupt) as error:
        say(f"there is no report: {first_line(error)}")
        (run.path / PAGE).unlink(missing_ok=True)  # of an earlier call
        return
    say_lines(lines if with_files else {name: lines[name] for name in ("result", "sure") if name in lines})


def _plain(shapes: Shapes | None) -> dict[str, int | list[int]]:
    """As a config says it. Raises RLFlowError for what is no size."""
    if not isinstance(shapes or {}, Mapping):
        raise RLFlowError(f"shapes map names to sizes, such as {{'batch': 1}}, not {type(shapes).__name__}")
    plain = {}
    for name, given in (shapes or {}).items():
        size = _number(given)
        if isinstance(size, tuple | list):
            size = [_number(n) for n in size]
        if not is_shape(size):
            text = " ".join(repr(given).split())
            raise RLFlowError(f"shapes: '{name}' is a size such as 128 or (1, 128), not {text}")
        plain[str(name)] = size
    return plain


def _number(value):
    """Python's own, where it is one of NumPy's, or an array of them."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _name(model: Model, folder: Path) -> str:
    """What the command line would say. A model in memory is written into the folder, named after its content."""
    if isinstance(model, str | PathLike):
        return str(model)
    if not isinstance(model, onnx.ModelProto):
        raise RLFlowError(f"a model is a path, a zoo name or an onnx.ModelProto, not a {type(model).__name__}")
    content = serialised(model)
    path = folder / f"given-{sha256(content).hexdigest()[:8]}.onnx"
    write_bytes(path, content)
    return str(path)
