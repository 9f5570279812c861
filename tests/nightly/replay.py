"""Check that episodes give the same states, action masks and costs in processes with different hash seeds.

    python -m tests.nightly.replay [--seconds S]

One process plays random episodes and prints the actions as rule names and locations, as in a receipt. For each step it
also prints a digest of the graph's hash, the location counts, which determine the action masks, and the cost. A process
with another hash seed repeats the episodes and compares the digests.
"""

import hashlib
import json
import os
import subprocess
import sys
from itertools import count

import numpy as np

from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import RewriteState, Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.rules.language import load_rules
from rlflow.zoo import load
from tests.nightly import parser, sampled

MODELS = (
    "tiny_resnet50", "tiny_bert_base", "tiny_inception_v3", "tiny_vit_base", "tiny_bert_base_fused",
    "light_squeezenet", "light_shufflenet", "light_inception_v1", "resnet50", "bert_base",
)  # fmt: skip
EPISODE, STEPS = 100, 2000  # most steps of an episode; steps of a sample


def task_of(model: str) -> Task:
    return Task(load_graph(load(model)), load_rules(), AnalyticCost())


def digest(state: RewriteState) -> str:
    text = f"{state.graph.hash} {state.counts.tolist()} {tuple(state.cost)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def play(model: str, seed: int) -> None:
    """Play random episodes of STEPS steps together and print each as one line of JSON.

    Args:
        model: name of a model of the zoo.
        seed: seed of the actions.
    """
    task, rng, steps = task_of(model), np.random.default_rng(seed), STEPS
    while steps > 0:
        state, actions, digests = task.initial, [], []
        for _ in range(min(EPISODE, steps)):
            valid = state.valid_actions()[:-1]
            if not len(valid):
                break
            rule, location = (int(part) for part in valid[rng.integers(len(valid))])
            state = state.apply(rule, location)
            actions.append((task.rules[rule].name, location))
            digests.append(digest(state))
        steps -= max(len(actions), 1)
        print(json.dumps({"actions": actions, "digests": digests}))


def repeat(model: str) -> None:
    """Repeat the episodes that standard input describes, on the model of this name.

    Print {"steps": number of repeated steps, "differs": description of the first step with another digest or null}.
    """
    task, steps = task_of(model), 0
    for line in sys.stdin:
        episode, state = json.loads(line), task.initial
        for (rule, location), wanted in zip(episode["actions"], episode["digests"], strict=True):
            state, steps = state.apply(task.rules.index(rule), location), steps + 1
            if digest(state) != wanted:
                print(json.dumps({"steps": steps, "differs": f"{model}, step {steps}: {rule} at {location}"}))
                return
    print(json.dumps({"steps": steps, "differs": None}))


def both(sample: tuple[str, int]) -> dict:
    """Play a sample in one process, repeat it in another process and return the output of `repeat`.

    Args:
        sample: (name of the model, seed).
    """
    model, seed = sample

    def process(hash_seed: int, source, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "tests.nightly.replay", "--model", model, *arguments]
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        return subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, env=environment)

    player = process(1, None, "--play", "--seed", str(seed))
    other = process(2, player.stdout, "--repeat")
    player.stdout.close()
    result = json.loads(other.communicate()[0] or '{"steps": 0, "differs": "the repeating process failed"}')
    if player.wait():
        result["differs"] = f"{model}: the playing process failed"
    return result


def main() -> int:
    arguments = parser(__doc__, seconds=120)
    arguments.add_argument("--model", help="(internal) of a process that plays or repeats")
    arguments.add_argument("--play", action="store_true", help="(internal) print episodes")
    arguments.add_argument("--repeat", action="store_true", help="(internal) repeat the episodes of standard input")
    parsed = arguments.parse_args()
    if parsed.play or parsed.repeat:
        play(parsed.model, parsed.seed) if parsed.play else repeat(parsed.model)
        return 0
    samples = ((MODELS[k % len(MODELS)], parsed.seed * 1000 + k) for k in count())
    results = list(sampled(both, samples, parsed.seconds))
    steps, differing = sum(one["steps"] for one in results), [one["differs"] for one in results if one["differs"]]
    print(*differing, sep="\n", file=sys.stderr)
    print(f"{steps:,} steps of {len(results)} samples repeated (seed {parsed.seed}), {len(differing)} samples differ")
    return int(bool(differing) or not steps)


if __name__ == "__main__":
    sys.exit(main())
