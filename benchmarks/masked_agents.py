"""Learning curves of sb3-contrib's MaskablePPO on the two action spaces of the rewriting environment.

    python -m benchmarks.masked_agents [--model NAME] [--steps N] [--seeds N] [--picture FILE]

On `rlflow/GraphRewrite-v0` the agent masks rule and location independently and makes invalid steps. On
`rlflow/GraphRewriteFlat-v0` one mask is exact. Both agents have the same settings, seeds and number of steps, invalid
steps included. The command prints the table of docs/TRAIN_AN_AGENT.md and draws its picture. It needs the extra
`agents` (PyTorch), which does not share a process with TensorFlow, so `make results` does not run it.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import gymnasium
import numpy as np

import rlflow  # noqa: F401 (registers the environments)

NAMES = ("rlflow/GraphRewrite-v0", "rlflow/GraphRewriteFlat-v0")
POINTS = 8  # number of points of a curve


def trained(name: str, model: str, steps: int, seed: int) -> dict:
    """Train an agent and return its episodes.

    Args:
        name: the registered name of the environment.
        model: name of a model of the zoo.
        steps: number of steps of the training.
        seed: seed of the agent.

    Returns:
        "returns": (step at its end, return without the penalties of invalid steps) of each episode; "invalid": bool
        [steps], True for an invalid step; "seconds": wall-clock time of the training.
    """
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Episodes(BaseCallback):
        def __init__(self):
            super().__init__()
            self.returns, self.invalid, self.total = [], [], 0.0

        def _on_step(self) -> bool:
            valid = bool(self.locals["infos"][0]["valid"])
            self.invalid.append(not valid)
            self.total += float(self.locals["rewards"][0]) if valid else 0.0
            if self.locals["dones"][0]:
                self.returns.append((self.num_timesteps, self.total))
                self.total = 0.0
            return True

    env = gymnasium.make(name, model=model, cost="analytic", max_locations=8, max_steps=20)
    agent = MaskablePPO("MultiInputPolicy", env, n_steps=256, batch_size=128, n_epochs=4, seed=seed, device="cpu")
    episodes, started = Episodes(), time.monotonic()
    agent.learn(steps, callback=episodes)
    return {"returns": episodes.returns, "invalid": episodes.invalid, "seconds": time.monotonic() - started}


def curve(runs: Sequence[Mapping], steps: int) -> list[tuple[float, float, float]]:
    """Return (mean return, standard deviation over the seeds, share of invalid steps) of each part of the training.

    Args:
        runs: a result of `trained` for each seed.
        steps: number of steps of each training, which is cut into POINTS parts of equal length.
    """
    result, part = [], steps // POINTS
    for first in range(0, part * POINTS, part):
        means = [np.mean([r for end, r in run["returns"] if first < end <= first + part]) for run in runs]
        invalid = np.mean([run["invalid"][first : first + part] for run in runs])
        result.append((float(np.mean(means)), float(np.std(means, ddof=1)) if len(means) > 1 else 0.0, float(invalid)))
    return result


def draw(curves: Mapping[str, Sequence[tuple]], steps: int, path: Path) -> None:
    """Draw the returns and the shares of invalid steps of all environments.

    Args:
        curves: name of the environment → result of `curve`.
        steps: number of steps of each training.
        path: the file of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    at = steps / POINTS * np.arange(1, POINTS + 1)
    for name, points in curves.items():
        mean, deviation, invalid = map(np.array, zip(*points, strict=True))
        (line,) = left.plot(at, mean, label=name)
        left.fill_between(at, mean - deviation, mean + deviation, alpha=0.2, color=line.get_color())
        right.plot(at, 100 * invalid, color=line.get_color())
    left.set(xlabel="steps", ylabel="mean return of valid steps, %")
    right.set(xlabel="steps", ylabel="invalid steps, %", ylim=(-2, None))
    left.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="tiny_resnet18", help="name of a model of the zoo")
    arguments.add_argument("--steps", type=int, default=8192, help="of each training (default 8192)")
    arguments.add_argument("--seeds", type=int, default=3, help="number of trainings of each environment (default 3)")
    arguments.add_argument("--picture", type=Path, metavar="FILE", help="also draw the curves")
    parsed = arguments.parse_args()
    curves = {}
    for name in NAMES:
        runs = [trained(name, parsed.model, parsed.steps, seed) for seed in range(parsed.seeds)]
        curves[name] = curve(runs, parsed.steps)
        print(f"{name}: {np.mean([run['seconds'] for run in runs]):.0f} s for each training", flush=True)
    ends = [parsed.steps // POINTS * (k + 1) for k in range(POINTS)]
    print("| steps |" + "".join(f" {name}: return | invalid |" for name in NAMES))
    print("| --- |" + " --- | --- |" * len(NAMES))
    for end, *points in zip(ends, *curves.values(), strict=True):
        cells = [f" {mean:.2f} ± {deviation:.2f} | {100 * invalid:.0f} % |" for mean, deviation, invalid in points]
        print(f"| {end:,} |" + "".join(cells))
    if parsed.picture:
        draw(curves, parsed.steps, parsed.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
