"""The validation catches planted faults of every kind and raises no false alarm.

    python -m tests.nightly.faults [--seconds S]

Faults (`tests.nightly.planted_faults`) are planted in models of the zoo. The validation gets the model and the broken
one, without a receipt, whose hash would catch all of them. ONNX's reference implementation in float64 decides on other
inputs whether a fault changes the function: by more than the tolerance it must be caught. Equal models must raise no
alarm: models of the zoo that were read and written again, and results of random walks over them and over random models.
"""

import sys
from collections import Counter

import numpy as np

from benchmarks.random_models.random_model import random_model
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.receipt import make_receipt
from rlflow.optimisation.validate import validate
from rlflow.rules.language import load_rules
from rlflow.zoo import ZOO, load
from tests.nightly import parser, sampled
from tests.nightly.fuzzing import TOLERANCES, random_walk
from tests.nightly.planted_faults import KINDS, Function, planted

TOLERANCE, EQUAL = 1e-4, 1e-9  # relative errors: what the validation tolerates; what rounding in float64 explains
MODELS = (*(name for name in ZOO if name.startswith("tiny_")), "light_squeezenet")
STEPS, RANDOM_MODELS = 20, 10  # of a walk; in a sample


def plant(name: str, seed: int) -> dict:
    """Return the verdicts of one fault of every kind in a model, and the missed ones."""
    model, rng = load(name, seed), np.random.default_rng(seed)
    function, verdicts, missed = Function(model, 1000 + seed), Counter(), []
    for kind in KINDS:
        made = planted(model, kind, rng)
        if made is None:
            continue
        broken, where = made
        error = function.change(broken, TOLERANCE)
        if error <= EQUAL:
            verdict = "equal"
        elif not validate(model, broken, tolerance=TOLERANCE).ok:
            verdict = "caught"
        else:
            verdict = "missed" if error > TOLERANCE else "within the tolerance"
        verdicts[verdict] += 1
        if verdict == "missed":
            missed.append(f"{name}, seed {seed}: {kind.__name__} at {where}, off by {error:.3g}")
    return {"verdicts": verdicts, "missed": missed}


def alarm(what: str, findings) -> list[str]:
    return [] if findings.ok else [f"{what}: {findings.failures()[0].message}"]


def equal_models(name: str, seed: int) -> dict:
    """Return the alarms on two models that are equal to one of the zoo: read and written, and rewritten."""
    model, rules = load(name, seed), load_rules()
    alarms = alarm(f"{name}, read and written", validate(model, to_model(load_graph(model)), tolerance=TOLERANCE))
    walk = random_walk(model, rules, np.random.default_rng(seed), STEPS)
    actions = [(rules.index(step.rule), step.location) for step in walk.steps]
    receipt = make_receipt(walk.states[0].graph, rules, [], actions, walk.states[-1].graph, {})
    findings = validate(model, to_model(walk.states[-1].graph), tolerance=TOLERANCE, receipt=receipt)
    return {"equal": 2, "alarms": alarms + alarm(f"{name}, seed {seed}: {', '.join(walk.rules)}", findings)}


def random_models(seed: int) -> dict:
    """Return the alarms on rewritten random models."""
    rules, alarms = load_rules(), []
    for number in range(seed * RANDOM_MODELS, (seed + 1) * RANDOM_MODELS):
        model = random_model(number)
        walk = random_walk(model, rules, np.random.default_rng(number), STEPS)
        dtypes = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
        tolerance = max(TOLERANCES.get(dtype, 0.0) for dtype in dtypes)
        # ONNX Runtime's own fusions are wrong for some float64 models, so both run unoptimised.
        findings = validate(model, to_model(walk.states[-1].graph), tolerance=tolerance, optimise=False)
        alarms += alarm(f"random model {number}: {', '.join(walk.rules)}", findings)
    return {"equal": RANDOM_MODELS, "alarms": alarms}


def sample(call: tuple) -> dict:
    work, *arguments = call
    return globals()[work](*arguments)


def samples(seed: int):
    """Yield calls without end: faults in all models, then equal models and random ones, with ever new seeds."""
    while True:
        for name in MODELS:
            yield ("plant", name, seed)
            yield ("equal_models", name, seed)
            yield ("random_models", seed)
        seed += 1


def main() -> int:
    parsed = parser(__doc__, seconds=240).parse_args()
    verdicts, missed, alarms, equal = Counter(), [], [], 0
    for part in sampled(sample, samples(parsed.seed), parsed.seconds):
        verdicts.update(part.get("verdicts", {}))
        missed += part.get("missed", [])
        alarms += part.get("alarms", [])
        equal += part.get("equal", 0)
    print(*missed, *alarms, sep="\n", file=sys.stderr)
    print(
        f"{verdicts.total()} faults planted (seed {parsed.seed}), {verdicts['caught']} caught, {verdicts['missed']} "
        f"missed; {equal} equal models, {len(alarms)} false alarms"
    )
    return int(bool(missed or alarms) or not verdicts["caught"])


if __name__ == "__main__":
    sys.exit(main())
