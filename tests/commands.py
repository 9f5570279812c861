"""The command line as the tests call it: in this process or in its own, with budgets that take seconds; with the MDN-RNN but for EDITS."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

TINY = (
    "cost.name=analytic", "workers=1", "collect.episodes=6", "env.max_steps=6", "controller.max_steps=6", "env.max_locations=20",
    "world_model.name=mdn-rnn", "world_model.mdn-rnn.encoder_steps=2", "world_model.mdn-rnn.steps=2", "world_model.mdn-rnn.hidden=8",
    "world_model.mdn-rnn.latent=4", "world_model.mdn-rnn.encoder_hidden=8", "world_model.mdn-rnn.message_passing_steps=1", "world_model.mdn-rnn.gaussians=2",
    "world_model.mdn-rnn.batch_graphs=4", "world_model.mdn-rnn.batch_episodes=2",
    "controller.name=ppo", "controller.planner.steps=50", "controller.ppo.updates=1", "controller.ppo.evaluate_every=1", "controller.ppo.envs=4", "controller.ppo.steps=4",
    "controller.ppo.minibatches=2", "controller.ppo.epochs=1", "controller.ppo.evaluation_dreams=2",
    "controller.ppo.hidden=8", "controller.ppo.max_steps=5",
    "controller.cma-es.generations=2", "controller.cma-es.popsize=4", "controller.cma-es.dreams=1",
    "controller.cma-es.max_steps=5", "controller.random.dreams=2", "controller.random.max_steps=5",
    "eval.samples=2", "eval.measure_seconds=0", "search.beam.width=2", "search.beam.depth=2", "search.annealing.restarts=2",
)  # fmt: skip
EDITS = (*TINY, "world_model.name=edits")


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of the error; fails if the command did not fail as it should."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code == 1 and len(lines) == 1, self
        assert "Traceback" not in self.err and "unexpected" not in lines[0], self.err
        assert self.err.rstrip().endswith(lines[0]), self.err  # nothing follows it
        return lines[0].removeprefix("error: ")


def in_process(capsys, *arguments) -> Done:
    """main() in this process, so that TensorFlow is imported only once."""
    from rlflow.cli.main import main

    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit:
        code = exit.code
    return Done(code, *capsys.readouterr())


def in_its_own(*arguments, cwd: Path = ROOT, without: str = "", **environment) -> Done:
    """without: a package that this process cannot import."""
    program = [str(ROOT / "run.py")]
    if without:
        program = ["-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules[{without!r}] = None; from rlflow.cli.main import main; sys.exit(main())"]
    command = [sys.executable, *program, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment})
    return Done(done.returncode, done.stdout, done.stderr)
