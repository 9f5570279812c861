"""Fidelity of graph-mdn without some of its parts.

    python -m benchmarks.ablations [--model NAME_OR_PATH] [--seeds N]

The rows are the world model itself ("whole") and the same without one or two of its parts. All learn once from the same
INTERACTIONS random steps, and are evaluated on other random episodes, as in `benchmarks.world_models`. With memory, the
effects and costs in the data are recalled and the networks judge the rest, so what the graph networks are worth shows
in the rows without memory.
"""

import sys

from benchmarks.record import Record, parser, run
from benchmarks.world_models import ACTING_IN, fidelity_of, models_of, tables

INTERACTIONS = 2500
MODELS = "vit_base", "mobilenet_v2", "resnet18", "squeezenet1_1", "light_shufflenet"
NO_MEMORY = "world_model.graph-mdn.recall=false"
# A match network without any round of message passing would see nothing of a match.
FEW_MESSAGES = "world_model.graph-mdn.latent_rounds=0", "world_model.graph-mdn.message_passing_steps=1"
PARTS = {  # name of a row → options that leave out parts
    "whole": (),
    "no memory": (NO_MEMORY,),
    "no memory, few messages": (NO_MEMORY, *FEW_MESSAGES),
    "few messages": FEW_MESSAGES,
    "no recurrence": ("world_model.graph-mdn.hidden=0",),
    "one Gaussian": ("world_model.graph-mdn.mixture=1",),
    "scalar supervision": ("world_model.graph-mdn.supervision=scalar",),
}


def main() -> int:
    arguments = parser(__doc__, seeds=1)
    arguments.add_argument("--model", action="append", help="a zoo name or an ONNX file, only; repeatable")
    parsed = arguments.parse_args()
    record = Record("ablations", parsed)
    models = models_of(arguments, parsed.model or MODELS)
    calls = {
        (name, part, seed): (fidelity_of, model, ACTING_IN, seed, INTERACTIONS, *options)
        for seed in range(parsed.seeds) for name, model in models.items() for part, options in PARTS.items()
    }  # fmt: skip
    figures = record.all_parts({key_of(*named): call for named, call in calls.items()}, at_once=2)
    fidelity: dict[tuple[str, str], list[dict]] = {(name, part): [] for name in models for part in PARTS}
    for name, part, seed in calls:
        if key_of(name, part, seed) in figures:
            fidelity[name, part].append(figures[key_of(name, part, seed)])
    note = f"{INTERACTIONS:,} random interactions with the real environment. Two parts ran side by side."
    rows = {named: runs for named, runs in fidelity.items() if runs}
    record.publish({"fidelity": tables(rows, {}, {})["fidelity"]}, note)
    return record.status


def key_of(name: str, part: str, seed: int) -> str:
    return f"{name}-{part.replace(', ', '-').replace(' ', '-')}-{seed}"


if __name__ == "__main__":
    sys.exit(run(main))
