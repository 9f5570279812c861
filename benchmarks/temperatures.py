"""The effect of the temperature τ of dreams on PPO: its gain, and its dreamt return beside the real one.

    python -m benchmarks.temperatures [--model NAME_OR_PATH] [--seeds N] [--interactions N]

For each model and seed, graph-mdn learns as in `benchmarks.world_models`, and PPO learns in its dreams once for each
temperature in TEMPERATURES. τ acts on the mixture from which the recurrent network draws the noise of rewards; at τ = 0
rewards have no noise. The tables have the columns of `benchmarks.world_models`. Table 3 of the RLFlow paper compares
temperatures, too.
"""

import sys

from benchmarks.record import Record, parser, run
from benchmarks.world_models import ACTING_IN, agents_of, models_of, tables

MODELS = "bert_base", "vit_base", "squeezenet1_1", "resnet50"
TEMPERATURES = 0.0, 0.5, 1.0, 1.5, 2.0
AGENTS = {f"ppo, τ={temperature:g}": ("ppo", {"temperature": temperature}) for temperature in TEMPERATURES}


def main() -> int:
    arguments = parser(__doc__, seeds=5)
    arguments.add_argument("--model", action="append", help="a zoo name or an ONNX file, only; repeatable")
    arguments.add_argument("--interactions", type=int, default=10_000, help="real steps (default 10,000)")
    parsed = arguments.parse_args()
    record, models = Record("temperatures", parsed), models_of(arguments, parsed.model or MODELS)
    calls = {
        f"{name}-{seed}": (agents_of, model, seed, parsed.interactions, AGENTS)
        for seed in range(parsed.seeds) for name, model in models.items()
    }  # fmt: skip
    figures = record.all_parts(calls, at_once=2)
    runs = {name: [figures[key] for seed in range(parsed.seeds) if (key := f"{name}-{seed}") in figures]
            for name in models}  # fmt: skip
    runs = {name: finished for name, finished in runs.items() if finished}
    fidelity = {(name, ACTING_IN): [one["fidelity"] for one in finished] for name, finished in runs.items()}
    note = f"{parsed.interactions:,} interactions with the real environment. Two parts ran side by side."
    record.publish(tables(fidelity, runs, {}), note)
    return record.status


if __name__ == "__main__":
    sys.exit(run(main))
