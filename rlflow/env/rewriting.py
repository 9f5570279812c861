"""The real environment: rewriting one ONNX model by proved rules."""

from typing import Any

from rlflow.env.alike import AlikeState, start_of
from rlflow.env.options import EnvOptions
from rlflow.env.rewards import relative
from rlflow.env.state import Task
from rlflow.env.step import StepEnv
from rlflow.tasks.base import Reward, State


class GraphRewriteEnv(StepEnv):
    """Rewrites of a computation graph (RLFlow, section 3.1).

    See `StepEnv`: an action is (xfer_id, location), the arrays are those of rlflow/env/observation, rewards those of
    rlflow/env/rewards.py. `info` has `cost` (estimated runtime in ms), `flops`, `bytes`, `launches`, `valid` and `rule`
    (of the last action), and what the reward says (`measured`: rlflow/env/measured_reward.py). With `env.moves=alike`
    an action is (xfer_id, index of a move), and `actions` are the single rewrites that the last one made
    (rlflow/env/alike.py).
    """

    def __init__(
        self, task: Task, reward: Reward = relative, max_steps: int = EnvOptions.max_steps,
        max_nodes: int | None = None,
        max_edges: int | None = None, render_mode: str | None = None,
    ):  # fmt: skip
        super().__init__(task, reward, max_steps, max_nodes, max_edges, render_mode)

    def start(self) -> State:
        return start_of(self.task)

    def render(self) -> str | None:
        if self.render_mode != "ansi":
            return None
        runtime, initial = self.state.runtime_ms, self.task.initial.runtime_ms
        better = 100 * (1 - runtime / initial) if initial else 0.0  # views only cost nothing
        lines = [f"step {self._steps}: {runtime:.4f} ms estimated, {better:.2f} % better"]
        lines += [f"  {self.task.rules[x].name}: {n}" for x, n in enumerate(self.state.counts) if n]
        return "\n".join(lines)

    def _figures(self, taken: int | None) -> dict[str, Any]:
        cost, rule = self.state.cost, self.task.rules[taken].name if taken is not None else ""
        figures = {"flops": cost.flops, "bytes": cost.bytes, "launches": cost.launches, "rule": rule}
        if isinstance(self.state, AlikeState):
            figures["actions"] = self.state.actions if taken is not None else ()
        return figures
