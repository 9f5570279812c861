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
    """The result of `rlflow.optimise`.

    Attributes:
      delivered: the name of the search that found the model, "controller", or "original" if nothing better was found.
      reason: why this candidate was chosen, in words.
      path: the file of the model, in the folder of the run, or the file of the original.
      run: the folder of the run.
      outcome: everything that is known of all candidates; `rlflow optimise --json` writes it under "eval".
    """

    def __init__(self, source: Path, run: Path, outcome: dict):
        self.source, self.run = source.absolute(), run  # the caller may change the working directory later
        self.outcome = outcome | {"optimised": str(Path(outcome["optimised"]).absolute())}
        self.delivered: str = outcome["delivered"]
        self.reason: str = outcome["reason"]
        self.path = Path(self.outcome["optimised"])

    @property
    def is_original(self) -> bool:
        """True if nothing better than the original was found."""
        return self.delivered == "original"

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model with all its weights."""
        return onnx.load(self.path)

    @cached_property
    def receipt(self) -> dict | None:
        """The receipt from which `rlflow replay` makes the same file again; None for the original."""
        return None if self.is_original else read_json(self.path.with_name("receipt.json"))

    @property
    def report(self) -> Path | None:
        """The path of the HTML report; None if there is no report."""
        page = self.run / PAGE
        return page if page.exists() else None

    @property
    def estimated_gain_percent(self) -> float:
        """The estimated gain in percent of the original's estimated latency."""
        return 0.0 if self.is_original else self._chosen["estimated_improvement_percent"]

    @property
    def measured(self) -> dict | None:
        """The result of `rlflow.costs.measured.measure`; None for the original or without a measurement."""
        return None if self.is_original else self._chosen["measured"]

    @property
    def ratio(self) -> float | None:
        """The measured latency relative to the original; below 1 is faster."""
        return self.measured and self.measured["ratio"]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the ratio."""
        return self.measured and tuple(self.measured["interval"])

    @property
    def verdict(self) -> str:
        """The verdict of the interval: "faster", "no difference shown", "slower" or "not measured"."""
        return self.measured["verdict"] if self.measured else "not measured"

    @property
    def _chosen(self) -> dict:
        return self.outcome["candidates"][self.delivered]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to `path`, and its receipt to FILE.receipt.json in the same folder.

        If rewrites were left out, FILE.fault-report.md says which. Weights above 2 GB go to FILE.onnx.data.

        Raises:
          RLFlowError: the file cannot be written, or `path` is the file of the original.
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
    """Make a model faster, as the command `rlflow optimise` does.

    The function searches for a cheaper graph, checks that the graph computes the same, and measures it against the
    original. It returns a model that is shown to be faster, or else the original. Ctrl-C stops the search; the best
    result so far is then checked and measured briefly. Outside the main thread, Ctrl-C does not stop the search, and
    the time limit does not stop training.

    Args:
      model: the path of an ONNX file, a zoo name (`rlflow zoo` lists them), or a model in memory, which is not changed.
      seconds: the time limit of the whole call; 120 by default, 900 with `learn`. A check that has begun is finished.
      threads: threads of ONNX Runtime within an operator, for estimates and measurements. The default is the number
        that ONNX Runtime would choose, limited to the cores that this process may use.
      shapes: typical sizes of symbolic dimensions at which the model is measured: {"seq": 128}, several sizes
        {"seq": (16, 128)}, or the sizes of an input's axes {"input_ids": (1, 128)}. By default 1 for a first axis, 224
        for the sides of an image and 128 otherwise. The result accepts every size that the model accepts.
      fix: freeze these sizes. More rules apply then, but the result may accept no other sizes.
      exact: use only rules that keep every bit of the outputs.
      standard_operators_only: use no operators of ONNX Runtime's own, so that the model stays portable.
      receipt: the receipt file of an earlier result, for this model at another size or with other weights. Its rewrites
        are carried out before the searches; rewrites that no longer match are left out.
      controller: the folder of a controller that was trained on other models. It acts on this model before the
        searches. Needs the extra `learn`.
      learn: after the searches, train a world model on random episodes and a controller in its dream. Neural world
        models and controllers need the extra `learn` (pip install 'rlflow[learn]').
      accept: "faster" (the default) accepts a result that is shown to be faster, or else to need less memory or a
        smaller file; "equal" also accepts a result without a measured difference. A slower result is never accepted.
      seed: decides every random choice; 0 by default.
      run: a folder for the report and all other files of the run. A second call with the same folder continues the
        run. By default a temporary folder, which is deleted together with the result.
      options: further options by their names in configs/default.yaml: {"search.beam.width": 4}.
      quiet: suppress the progress, which otherwise goes to standard error.

    Returns:
      The result: the model, its receipt and its measurements.

    Raises:
      RLFlowError: the model, an option or the folder is not valid; the message is one line.
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


optimize = optimise  # the American spelling


def load_task(model: Model, *, cost: str | None = None, shapes: Shapes | None = None, **options) -> Task:
    """Open a model as a rewriting task.

        state = rlflow.load_task("tiny_resnet18", cost="analytic").initial
        match = state.matches[0]             # where a rule applies: state.task.rules[match.xfer_id]
        state = state.follow(match)          # the state after the rewrite; the previous state is unchanged
        state.runtime_ms, state.graph        # the estimate; rlflow.graph.onnx_writer.save_graph writes the graph

    Args:
      model: see `optimise`.
      shapes: see `optimise`.
      cost: analytic (the same on every machine), roofline, profiled (operators timed on this machine; the default),
        learned, or memory (bytes at the peak).
      options: of `rlflow.env.graph_rewrite.EnvSpec`, e.g. rules=("fusion",), exact=True, threads=2, fix=True.

    Raises:
      RLFlowError: the model or the cost is not valid; the message is one line.
    """
    if cost is not None:
        options["cost"] = cost
    sizes = tuple(_plain(shapes).items())
    if isinstance(model, onnx.ModelProto):
        return EnvSpec("", sizes, **options).open(model)
    return EnvSpec(str(model), sizes, **options).make_task()


def _say(run, outcome: dict, with_files: bool) -> None:
    """Write the report and print the result. A failure to write the report does not affect the delivered file.

    with_files: whether to print paths; the files of a temporary folder are deleted soon.
    """
    try:
        lines = pages(run, outcome)
    except (Exception, KeyboardInterrupt) as error:
        say(f"there is no report: {first_line(error)}")
        (run.path / PAGE).unlink(missing_ok=True)  # of an earlier call
        return
    say_lines(lines if with_files else {name: lines[name] for name in ("result", "sure") if name in lines})


def _plain(shapes: Shapes | None) -> dict[str, int | list[int]]:
    """Return sizes as a config states them. Raises RLFlowError for a value that is not a size."""
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
    """Return a NumPy number or array as Python numbers, and any other value unchanged."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _name(model: Model, folder: Path) -> str:
    """Return the name of a model for a config. A model in memory is written to a file named by its content."""
    if isinstance(model, str | PathLike):
        return str(model)
    if not isinstance(model, onnx.ModelProto):
        raise RLFlowError(f"a model is a path, a zoo name or an onnx.ModelProto, not a {type(model).__name__}")
    content = serialised(model)
    path = folder / f"given-{sha256(content).hexdigest()[:8]}.onnx"
    write_bytes(path, content)
    return str(path)
