"""The task `rewriting`: make an ONNX model faster by proved rewrite rules."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from omegaconf import OmegaConf

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.common.options import read
from rlflow.common.task import STEP_BY_STEP
from rlflow.costs import COSTS, unit_of
from rlflow.costs.measured import MARGIN, ratios_in_turns
from rlflow.costs.target import target_of
from rlflow.env import EnvOptions
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.state import Task
from rlflow.graph.feeds import Feeds
from rlflow.graph.half_precision import is_half
from rlflow.graph.onnx_reader import check_is_file, model_files
from rlflow.graph.onnx_writer import save_graph, save_model
from rlflow.optimisation.choice import DEQUANTISED
from rlflow.optimisation.delivery import DeliveryOptions, check_is_of_time, deliver, sizes_to_measure
from rlflow.optimisation.quantised import is_dequantisable
from rlflow.reports.html import write_html
from rlflow.reports.sentences import certainty_line, dequantised_text, session_text, summary_line
from rlflow.rules.language import load_rules
from rlflow.zoo import ZOO, load, zoo_or_path

WIDEN_SECONDS = 0.5  # seconds of runs at each size in each of the two measurements that decide on `env.widen=null`


class RewritingSpec(EnvSpec):
    """The specification of a rewriting task: an ONNX model, rules, a cost and a reward.

    The methods are described at `rlflow.common.task.TaskSpec`.
    """

    shape: ClassVar[str] = STEP_BY_STEP

    @classmethod
    def fetch(cls, model: str, seed: int, folder: Path) -> Path:
        """Return the path of the model's file. A zoo model is built first and written to the folder.

        Args:
          model: the path of an ONNX file, or a zoo name.
          seed: the seed of a zoo model's weights.
          folder: the folder for the file of a zoo model.

        Raises:
          RLFlowError: there is no such file and no such zoo name, or the path is a folder.
        """
        if model in ZOO:
            source = folder / "model.onnx"
            save_model(load(model, seed), source)
            return source
        source = Path(model)
        if not source.exists() and source.suffix != ".onnx":
            ZOO.get(model)  # raises with the zoo name that was probably meant
        check_is_file(source)
        return source

    @classmethod
    def files(cls, source: Path) -> Sequence[Path]:
        return model_files(source)

    @classmethod
    def settled(cls, config: Mapping, source: Path, begun: Mapping | None = None) -> Mapping:
        """Return the config with the sizes of the given inputs and with the precision in which to compute.

        Symbols that `shapes` does not name get their sizes from the first set of inputs that the user gave.
        `env.widen=null` becomes true if a model in half precision is measured to be no slower in float32, or if the
        user accepts that a quantised model is dequantised; otherwise it becomes false. A run that was begun keeps its
        sizes and its precision.
        """
        if begun is not None:
            widen = begun["env"]["widen"] if config.env.widen is None else config.env.widen
            if config.env.widen == widen and begun["shapes"].keys() <= config.shapes.keys():
                return config
            return OmegaConf.merge({"shapes": begun["shapes"]}, config, {"env": {"widen": widen}})
        if config.inputs:
            sizes = Feeds.of(source, config.inputs).named_sizes(OmegaConf.to_container(config.shapes))
            config = OmegaConf.merge(config, {"shapes": sizes})
        if config.env.widen is None:
            may_widen = not config.env.exact and unit_of(COSTS.get(config.cost.name))[0] == "ms"
            if may_widen and _is_half(source):
                widen = cls.of(config, source).may_be_widened(config.seed)
            else:
                widen = config.eval.accept == DEQUANTISED and is_dequantisable(source)
            config = OmegaConf.merge(config, {"env": {"widen": widen}})
        return config

    def may_be_widened(self, seed: int) -> bool:
        """Return whether the model is measured to be no slower with float32 between its inputs and outputs.

        More rules apply to the widened model. Therefore it suffices that the widened model is not slower before the
        search. Return False if the timings belong to another machine, or if the widened model cannot be measured.

        Args:
          seed: the seed of the random inputs.
        """
        try:
            task = replace(self, widen=True).make_task()
            if target_of(task.cost) is not None:
                return False  # a measurement here says nothing about another machine
            inputs = list(self.feeds.at(sizes_to_measure(task, dict(self.shapes)), seed).values())
            with tempfile.TemporaryDirectory() as folder:
                wide = Path(folder, "widened.onnx")
                save_graph(task.widened, wide)
                ratios = [
                    ratios_in_turns(self.model, [wide], inputs, self.threads, WIDEN_SECONDS, first) for first in (0, 1)
                ]
        except RLFlowError as error:
            say(f"the model computes in half precision as before: {error}")
            return False
        ratio = float(np.sqrt(np.prod(ratios)))
        say(f"computed in float32 between inputs and outputs: {ratio:.3f} of the original's latency")
        return ratio < 1 + MARGIN

    @classmethod
    def of(cls, config: Mapping, source: Path) -> Self:
        shapes, cost = OmegaConf.to_container(config.shapes), config.cost
        sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in shapes.items()}
        return cls(
            str(source), tuple(sizes.items()), fix=config.fix, **read(EnvOptions, config.env),
            cost=cost.name, threads=cost.threads, database=cost.database, inputs=tuple(config.inputs),
            custom_ops=tuple(config.custom_ops),
        )  # fmt: skip

    @classmethod
    def depends_on(cls, config: Mapping) -> dict:
        chosen = OmegaConf.to_container(config)
        rules = load_rules(chosen["env"]["rules"]).hash
        options = {key: chosen[key] for key in ("shapes", "fix", "env", "cost")}
        return options | {"rules": rules}

    def other_task(self, model: str) -> Task:
        return self.open(zoo_or_path(model))

    def make_env(self, task: Task, max_steps: int) -> GraphRewriteEnv:
        return GraphRewriteEnv(task, self.make_reward(), max_steps, with_graph=False)

    def deliver(
        self,
        task: Task,
        candidates: Sequence,
        folder: Path,
        config: Mapping,
        measure_seconds: float | None = None,
        **options,
    ) -> dict:
        """Check, measure and deliver the best candidate; see `TaskSpec.deliver`.

        Args:
          task: the rewriting task.
          candidates: the candidates.
          folder: the folder for the delivered model, its receipt and the fault report.
          config: the resolved config of the run.
          measure_seconds: seconds of measurement per candidate; None for `eval.measure_seconds`.
          **options: further arguments of `rlflow.optimisation.delivery.deliver`.
        """
        check_is_of_time(task.cost)
        checks = DeliveryOptions(
            list(config.eval.seeds), config.eval.tolerance,
            config.eval.measure_seconds if measure_seconds is None else measure_seconds,
            config.eval.sessions, self.threads, config.seed, self.exact, self.fix, config.eval.accept,
            self.feeds,
        )  # fmt: skip
        return deliver(
            task, Path(self.model), candidates, folder, checks, dict(self.shapes), list(self.rules), **options
        )

    def report(self, task: Task, results: dict, folder: Path) -> dict[str, str]:
        outcome = results["eval"]
        chosen = {"shapes": dict(self.shapes), "fix": self.fix, "threads": self.threads}
        return {
            "result": summary_line(outcome),
            "sure": certainty_line(outcome),
            **({"session": text} if (text := session_text(outcome)) else {}),
            **({"float32": text} if (text := dequantised_text(outcome)) else {}),
            "model": outcome["optimised"],
            "report": str(write_html(folder, results | chosen, task)),
        }


def _is_half(source: Path) -> bool:
    """Return whether a file holds a model in half precision; False for a file that is no model."""
    try:
        return is_half(onnx.load(source, load_external_data=False))
    except (OSError, DecodeError, UnicodeDecodeError):
        return False  # the model is refused later, with the reason
