"""RLFlow as a library: `rlflow.optimise` makes a model faster, and `rlflow.load_task` opens a model for rewriting."""

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
from rlflow.common.files import read_json, write_arrays, write_bytes
from rlflow.common.messages import say, say_lines, silence
from rlflow.common.options import plain_number, plain_shapes, setting
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.env.state import Task
from rlflow.graph import custom_ops as custom_operators
from rlflow.graph.onnx_writer import check_apart, serialised
from rlflow.optimisation.delivery import copy_with_receipt
from rlflow.optimisation.pipeline import search_and_deliver
from rlflow.optimisation.session_options import put_session
from rlflow.reports.sentences import at_sizes_text
from rlflow.runs.config import asks_to_learn
from rlflow.runs.folder import RunFolder
from worldmodel.run_pages import pages

Model = str | PathLike[str] | onnx.ModelProto
PAGE = Path("eval", "report.html")  # path of the HTML report in a run folder
Shapes = Mapping[str, int | Sequence[int]]
Inputs = Mapping[str, np.ndarray] | str | PathLike[str]


class Optimised:
    """The result of `rlflow.optimise`.

    Attributes:
      delivered: the name of the search or controller that found the model, or "original" if nothing better was found.
      reason: the reason for this choice, as text.
      source: the file of the original.
      path: the file of the optimised model in the run folder; the file of the original if nothing better was found.
      run: the run folder.
      outcome: the results of the stage `eval` for all candidates, see `rlflow.optimisation.delivery.deliver`.
        `rlflow optimise --json` writes this dictionary under "eval".
    """

    def __init__(self, source: Path, run: Path, outcome: dict):
        self.source, self.run = source.absolute(), run  # the caller may change the working directory later
        self.outcome = outcome | {"optimised": str(Path(outcome["optimised"]).absolute())}
        self.delivered: str = outcome["delivered"]
        self.reason: str = outcome["reason"]
        self.path = Path(self.outcome["optimised"])

    @property
    def is_original(self) -> bool:
        """True if the result is the original, because no better model was found."""
        return self.delivered == "original"

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The optimised model, or the original, with all its weights in memory."""
        return onnx.load(self.path)

    @cached_property
    def receipt(self) -> dict | None:
        """The receipt from which `rlflow replay` makes the same file again; None if the result is the original."""
        return None if self.is_original else read_json(self.path.with_name("receipt.json"))

    @property
    def report(self) -> Path | None:
        """The path of the HTML report of the run; None if the report was not written."""
        page = self.run / PAGE
        return page if page.exists() else None

    @property
    def estimated_gain_percent(self) -> float:
        """The decrease of the estimated latency in percent of the original's; 0 if the result is the original."""
        return 0.0 if self.is_original else self._chosen["estimated_improvement_percent"]

    @property
    def measured(self) -> dict | None:
        """The comparison with the original by `rlflow.costs.measured.measure`, as a dictionary.

        None if the result is the original, or if nothing was measured.
        """
        return None if self.is_original else self._chosen["measured"]

    @property
    def ratio(self) -> float | None:
        """The measured latency divided by the original's, below 1 for a faster model; None without a measurement."""
        return self.measured and self.measured["ratio"]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval (low, high) of `ratio`; None without a measurement."""
        return self.measured and tuple(self.measured["interval"])

    @property
    def verdict(self) -> str:
        """The verdict of the measurement: "faster", "no difference shown", "slower" or "not measured"."""
        return self.measured["verdict"] if self.measured else "not measured"

    @property
    def session(self) -> dict | None:
        """The session options that were measured: `setup`, `measured` and `tried`; None without `session=True`.

        `setup` is empty if no option gained. `save` writes a setup beside the model, for `rlflow.session`.
        """
        return self.outcome.get("session")

    @property
    def _chosen(self) -> dict:
        return self.outcome["candidates"][self.delivered]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to `path`, for example m.onnx, and its receipt to m.receipt.json in the same folder.

        Session options that were measured to be faster go to m.session.json.

        If rewrites at fault were left out, m.fault-report.md lists them. The weights of a model above 2 GB go to
        m.onnx.data.

        Args:
          path: the file to write.

        Raises:
          RLFlowError: the file cannot be written, or `path` is the file of the original.
        """
        check_apart(self.source, path, "save")
        copy_with_receipt(self.outcome, Path(path))
        put_session(self.outcome, Path(path))

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
    inputs: Inputs | Sequence[Inputs] = (),
    fix: bool = False,
    exact: bool = False,
    standard_operators_only: bool = False,
    custom_ops: Sequence[str | PathLike[str]] = (),
    receipt: str | PathLike[str] | None = None,
    controller: str | PathLike[str] | None = None,
    learn: bool = False,
    accept: str | None = None,
    session: bool = False,
    seed: int | None = None,
    run: str | PathLike[str] | None = None,
    options: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> Optimised:
    """Make a model faster, as the command `rlflow optimise` does.

    The function searches for a graph with a lower estimated latency, checks that it computes the same as the original,
    and measures both. It returns a model that is shown to be faster, or else the original (see `accept`). Ctrl-C stops
    the search; the best result so far is then checked and measured briefly. Outside the main thread, Ctrl-C does not
    stop the search, and the time limit does not stop training.

    Args:
      model: the path of an ONNX file, a zoo name (`rlflow zoo` lists them), or a model in memory, which is not changed.
      seconds: the time limit of the whole call in seconds; 120 by default, 900 with `learn`. A check that has begun is
        finished.
      threads: the number of threads of ONNX Runtime within an operator, for estimates and measurements. By default
        ONNX Runtime's own choice, limited to the cores that this process may use.
      shapes: the typical sizes of symbolic dimensions, at which the model is estimated and measured. The values are a
        size {"seq": 128}, several sizes {"seq": (16, 128)}, or the sizes of all axes of an input
        {"input_ids": (1, 128)}. By default 1 for a batch, 224 for the sides of an image and 128 otherwise. The
        result accepts every size that the model accepts.
      inputs: inputs of your own, on which the models are checked and measured before drawn ones: a dictionary
        input name → array, the path of an .npz file or of a folder (of .npz files, or of test_data_set_* of ONNX), or a
        list of these. Sizes that `shapes` does not name are taken from the first set.
      fix: True to freeze the sizes in `shapes`. More rules apply then, but the result may accept no other sizes.
      exact: True to use only rules that keep every bit of the outputs.
      standard_operators_only: True to use no operators of ONNX Runtime's own domains, so that the model stays portable.
      custom_ops: the libraries of the custom operators that the model uses. Their native code runs in this process.
      receipt: the receipt file of an earlier result, for this model at another size or with other weights. Its rewrites
        are applied before the searches; rewrites that no longer match are left out.
      controller: the folder of a controller that was trained on other models, such as RUN/controller/xrlflow-real. The
        controller acts on this model before the searches. Needs the extra `learn`.
      learn: True to train, after the searches, a world model on random episodes and a controller in its dream. Neural
        world models and controllers need the extra `learn` (pip install 'rlflow[learn]').
      accept: "faster" (the default) accepts a result that is shown to be faster, or else to need less memory or a
        smaller file; "equal" also accepts a result without a measured difference. A slower result is never accepted.
        "dequantised" computes a quantised model in float32, without the rounding of activations.
      session: True to measure, in a sixth of the seconds, which session options of ONNX Runtime make the result faster.
      seed: the seed of all random choices; 0 by default.
      run: a folder for the report and all other files of the run. A second call with the same folder continues the
        run. By default a temporary folder, which is deleted together with the result.
      options: further options by their names in configs/default.yaml: {"search.beam.width": 4}.
      quiet: True to print no progress to standard error.

    Returns:
      The result: the model, its receipt and its measurements.

    Raises:
      RLFlowError: the model, an option or the folder is not valid; the message is one line.
    """
    started, folder = time.monotonic(), Path(run or tempfile.mkdtemp(prefix="rlflow-")).absolute()
    is_new = run is not None and not folder.exists()
    overrides = [setting(key, value) for key, value in (options or {}).items()]
    chosen = {
        "optimise.seconds": seconds, "cost.threads": threads, "optimise.receipt": receipt,
        "optimise.controller": controller, "optimise.learn": learn or asks_to_learn((), overrides) or None,
        "eval.accept": accept, "optimise.session": session or None, "env.exact": exact or None,
        "env.standard_operators_only": standard_operators_only or None, "fix": fix or None,
        "custom_ops": [Path(path).absolute() for path in custom_ops] or None,
    }  # fmt: skip
    overrides += [setting(key, value) for key, value in chosen.items() if value is not None]
    try:
        if given := _paths(inputs, folder):
            overrides.append(setting("inputs", given))
        with custom_operators.restored(), silence() if quiet else nullcontext():
            custom_operators.load(custom_ops)
            opened = RunFolder.open(
                folder, _name(model, folder), (), overrides, plain_shapes(shapes),
                plain_number(seed), check_names,
            )  # fmt: skip
            with opened.working(is_new):
                results, _ = search_and_deliver(opened, None, started, acted, learn_in_stages)
            result = Optimised(opened.source, folder, results["eval"])
            _say(opened, results["eval"], with_files=run is not None)
    except BaseException:
        if run is None or (is_new and not (folder / "model.json").exists()):  # a refused call leaves nothing behind
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if run is None:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


optimize = optimise  # the American spelling


def load_task(model: Model, *, cost: str | None = None, shapes: Shapes | None = None, **options) -> Task:
    """Open a model as a rewriting task, the start of searches and environments of your own.

        state = rlflow.load_task("tiny_resnet18", cost="analytic").initial
        match = state.matches[0]             # a place at which the rule state.task.rules[match.xfer_id] applies
        state = state.follow(match)          # the state after the rewrite; the previous state is unchanged
        state.runtime_ms, state.graph        # the estimate; rlflow.graph.onnx_writer.save_graph writes the graph

    Args:
      model: see `optimise`.
      shapes: see `optimise`.
      cost: the name of a cost model: predicted (operators timed or predicted for this machine; the default), profiled
        (all timed), analytic (the same on every machine), roofline, or memory (bytes at the peak).
      **options: further attributes of `rlflow.env.graph_rewrite.EnvSpec`, such as rules=("fusion",), exact=True,
        threads=2, fix=True, custom_ops=("libmyops.so",).

    Raises:
      RLFlowError: the model or the cost is not valid; the message is one line.
    """
    if cost is not None:
        options["cost"] = cost
    given = model if isinstance(model, onnx.ModelProto) else None
    spec = EnvSpec.of_keywords(model if given is None else "", shapes, options)
    task = spec.make_task() if given is None else spec.open(given)
    spec.try_out(task, given)
    return task


def _say(run, outcome: dict, with_files: bool) -> None:
    """Write the report and print the result. A failure to write the report does not affect the delivered file.

    Args:
      run: the run folder.
      outcome: the results of the stage `eval`.
      with_files: True to print the paths of files; False for a temporary folder, which is deleted later.
    """
    try:
        lines = pages(run, outcome)
    except (Exception, KeyboardInterrupt) as error:
        say(f"there is no report: {first_line(error)}")
        (run.path / PAGE).unlink(missing_ok=True)  # of an earlier call
        return
    say_lines(lines if with_files else {name: lines[name] for name in ("result", "sure") if name in lines})


def _paths(inputs: Inputs | Sequence[Inputs], folder: Path) -> list[Path]:
    """Return the files and folders of the argument `inputs`; arrays are first written to files in the folder."""
    result = []
    for one in [inputs] if isinstance(inputs, Mapping | str | PathLike) else inputs:
        if isinstance(one, str | PathLike):
            result.append(Path(one).absolute())
            continue
        if not isinstance(one, Mapping):
            raise RLFlowError(f"inputs are dictionaries of arrays, or paths, not {type(one).__name__}")
        arrays = {}
        for name, value in one.items():  # the elements of a sequence are NAME.0, NAME.1, …
            elements = {f"{name}.{k}": e for k, e in enumerate(value)} if isinstance(value, list) else {name: value}
            arrays |= {str(key): np.asarray(element) for key, element in elements.items()}
        texts = {key: array.astype(str) for key, array in arrays.items() if array.dtype.kind == "O"}
        path = folder / f"given-{len(result)}.npz"
        write_arrays(path, arrays | texts)
        result.append(path)
    return result


def _name(model: Model, folder: Path) -> str:
    """Return the value of the option `model` for a model: a path or a zoo name.

    A model in memory is first written to a file in the folder, whose name contains a hash of the model.
    """
    if isinstance(model, str | PathLike):
        return str(model)
    if not isinstance(model, onnx.ModelProto):
        raise RLFlowError(f"a model is a path, a zoo name or an onnx.ModelProto, not a {type(model).__name__}")
    content = serialised(model)
    path = folder / f"given-{sha256(content).hexdigest()[:8]}.onnx"
    write_bytes(path, content)
    return str(path)
