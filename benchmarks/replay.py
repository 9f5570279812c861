"""Replays in another process: the same states, masks and costs, bit for bit, whatever the hash seed.

One process plays random episodes and writes what a receipt holds (rule names and locations) with a digest of every
step: the graph's hash, the counts that say all masks, and the cost. Another, with another hash seed, repeats them.
"""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np

from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import RewriteState, Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.zoo import load

JUDGES = (*ENGINE, "rlflow/env/state.py", "rlflow/costs/analytic.py")

MODELS = (
    "tiny_resnet50", "tiny_bert_base", "tiny_inception_v3", "tiny_vit_base", "tiny_bert_base_fused",
    "light_squeezenet", "light_shufflenet", "light_inception_v1", "resnet50", "bert_base",
)  # fmt: skip
EPISODE = 100  # steps


def task_of(model: str) -> Task:
    return Task(load_graph(load(model)), load_rules(), AnalyticCost())


def digest(state: RewriteState) -> str:
    text = f"{state.graph.hash} {state.counts.tolist()} {tuple(state.cost)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def play(model: str, steps: int, seed: int) -> None:
    """Prints one JSON line an episode."""
    task, rng = task_of(model), np.random.default_rng(seed)
    while steps > 0:
        state, actions, digests = task.initial, [], []
        for _ in range(min(EPISODE, steps)):
            valid = state.valid_actions()[:-1]
            if not len(valid):
                break
            xfer_id, location = (int(part) for part in valid[rng.integers(len(valid))])
            state = state.apply(xfer_id, location)
            actions.append((task.rules[xfer_id].name, location))
            digests.append(digest(state))
        steps -= len(actions)
        print(json.dumps({"actions": actions, "digests": digests}))


def replay(model: str) -> None:
    """Repeats the episodes of standard input; prints how many steps there were, and the first that differs."""
    task = task_of(model)
    steps = episodes = 0
    for line in sys.stdin:
        episode, state = json.loads(line), task.initial
        for number, ((rule, location), wanted) in enumerate(zip(episode["actions"], episode["digests"], strict=True)):
            state = state.apply(task.rules.index(rule), location)
            steps += 1
            if digest(state) != wanted:
                print(json.dumps({"steps": steps, "differs": {"episode": episodes, "step": number, "rule": rule}}))
                return
        episodes += 1
    print(json.dumps({"steps": steps, "episodes": episodes, "differs": None}))


def chunk(name: str, steps: int, seed: int) -> dict:
    model, _, number = name.partition("-")

    def start(command: list[str], hash_seed: int, source) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        command = [sys.executable, "-m", "benchmarks.replay", *command, "--model", model]
        return subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, env=environment)

    player = start(["--play", str(steps), "--seed", str(seed + int(number))], 1, None)
    other = start(["--replay"], 2, player.stdout)
    player.stdout.close()
    result = json.loads(other.communicate()[0])
    if player.wait() != 0:
        raise SystemExit("the playing process failed")
    return {"model": model, **result}


def table(figures: dict) -> str:
    return markdown(["model", "steps"], [[model, f"{steps:,}"] for model, steps in figures["steps"].items()])


def main() -> int:
    arguments = parser(__doc__, "runs/replay")
    arguments.add_argument("--steps", type=int, default=1_000_000)
    arguments.add_argument("--chunk", type=int, default=25_000, help="steps that are replayed together")
    arguments.add_argument("--model", help="(internal) of a process that plays or replays")
    arguments.add_argument("--play", type=int, help="(internal) steps to play")
    arguments.add_argument("--replay", action="store_true", help="(internal) repeat what standard input says")
    arguments = arguments.parse_args()
    if arguments.play:
        play(arguments.model, arguments.play, arguments.seed)
        return 0
    if arguments.replay:
        replay(arguments.model)
        return 0
    n_chunks = -(-arguments.steps // arguments.chunk)
    names = [f"{MODELS[k % len(MODELS)]}-{k}" for k in range(n_chunks)]
    result = each(names, arguments.folder, lambda name: chunk(name, arguments.chunk, arguments.seed))
    steps = sum(part["steps"] for part in result.values())
    differing = [{"chunk": name, **part["differs"]} for name, part in result.items() if part["differs"]]
    bars = [
        bar("replayed steps", steps, "steps", f"≥ {arguments.steps}", steps >= arguments.steps),
        bar("steps whose state, masks or cost differ", len(differing), "steps", "0", not differing),
    ]
    by_model = {model: sum(part["steps"] for part in result.values() if part["model"] == model) for model in MODELS}
    return finish("replay", arguments, {"steps": by_model, "differing": differing}, bars)


if __name__ == "__main__":
    sys.exit(main())
