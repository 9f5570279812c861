"""The task `rewriting`: make an ONNX model faster by proved rewrite rules."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from omegaconf import OmegaConf

from rlflow.common.errors import RLFlowError
from rlflow.common.options import read
from rlflow.common.task import STEP_BY_STEP
from rlflow.costs.database import TimingDatabase
from rlflow.costs.measurements import Measurements
from rlflow.env import EnvOptions
from rlflow.env.graph_rewrite import EnvSpec, GraphRewriteEnv
from rlflow.env.state import Task
from rlflow.graph.feeds import Feeds
from rlflow.graph.onnx_reader import model_files
from rlflow.graph.onnx_writer import save_model
from rlflow.optimisation.contest import keep_delivery
from rlflow.optimisation.delivery import DeliveryOptions, check_is_of_time, deliver
from rlflow.reports.html import write_html
from rlflow.reports.markdown import certainty_line, summary_line, write_report
from rlflow.rules.language import load_rules
from rlflow.zoo import ZOO, load


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
          RLFlowError: there is no such file and no such zoo name.
        """
        if model in ZOO:
            source = folder / "model.onnx"
            save_model(load(model, seed), source)
            return source
        source = Path(model)
        if not source.exists() and source.suffix != ".onnx":
            ZOO.get(model)  # raises with the zoo name that was probably meant
        if not source.is_file():
            raise RLFlowError(f"no such file: {source}")
        return source

    @classmethod
    def files(cls, source: Path) -> Sequence[Path]:
        return model_files(source)

    @classmethod
    def settled(cls, config: Mapping, source: Path) -> Mapping:
        """Return the config with the sizes of the first given set of inputs, for symbols that `shapes` does not name.
        """
        if not config.inputs:
            return config
        sizes = Feeds.of(source, config.inputs).named_sizes(OmegaConf.to_container(config.shapes))
        return OmegaConf.merge(config, {"shapes": sizes})

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

    def make_env(self, task: Task, max_steps: int) -> GraphRewriteEnv:
        return GraphRewriteEnv(task, self.make_reward(), max_steps)

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
        outcome = deliver(
            task, Path(self.model), candidates, folder, checks, dict(self.shapes), list(self.rules), **options
        )
        if any(one["measured"] is not None for one in outcome["candidates"].values()):
            keep_delivery(Measurements(TimingDatabase(self.database), self.threads), task, outcome)
        return outcome

    def report(self, task: Task, results: dict, folder: Path) -> dict[str, str]:
        outcome = results["eval"]
        chosen = {"shapes": dict(self.shapes), "fix": self.fix, "threads": self.threads}
        write_report(folder, results)
        return {
            "result": summary_line(outcome),
            "sure": certainty_line(outcome),
            "model": outcome["optimised"],
            "report": str(write_html(folder, results | chosen, task)),
        }
