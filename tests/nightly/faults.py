"""Check that `validate` catches planted faults of every kind and reports no difference between equal models.

    python -m tests.nightly.faults [--seconds S]

Faults (`tests.nightly.planted_faults`) are planted in models of the zoo. `validate` compares the model with the broken
model, without a receipt, because the hash in a receipt would reveal every fault. ONNX's reference implementation in
float64 measures on other inputs by how much a fault changes the outputs. A change above the tolerance must be caught.
The equal models are models of the zoo that were read and written, and models after random rewrites.
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

TOLERANCE, EQUAL = 1e-4, 1e-9  # relative errors: accepted by `validate`; possible by rounding in float64
MODELS = (*(name for name in ZOO if name.startswith("tiny_")), "light_squeezenet")
STEPS, RANDOM_MODELS = 20, 10  # most rewrites of a random walk; number of random models in a sample


def plant(name: str, seed: int) -> dict:
    """Plant one fault of each kind in a model and validate the broken model.

    Args:
        name: name of a model of the zoo.
        seed: seed of the weights and of the faults.

    Returns:
        "verdicts": Counter of "caught", "missed", "within the tolerance" and "equal". "missed": descriptions of the
            missed faults.
    """
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
    """Validate two models that equal a model of the zoo: after reading and writing, and after random rewrites.

    Args:
        name: name of the model.
        seed: seed of the weights and of the rewrites.

    Returns:
        "equal": number of validated models. "alarms": descriptions of the reported differences.
    """
    model, rules = load(name, seed), load_rules()
    alarms = alarm(f"{name}, read and written", validate(model, to_model(load_graph(model)), tolerance=TOLERANCE))
    walk = random_walk(model, rules, np.random.default_rng(seed), STEPS)
    actions = [(rules.index(step.rule), step.location) for step in walk.steps]
    receipt = make_receipt(walk.states[0].graph, rules, [], actions, walk.states[-1].graph, {})
    findings = validate(model, to_model(walk.states[-1].graph), tolerance=TOLERANCE, receipt=receipt)
    return {"equal": 2, "alarms": alarms + alarm(f"{name}, seed {seed}: {', '.join(walk.rules)}", findings)}


def random_models(seed: int) -> dict:
    """Validate RANDOM_MODELS random models after random rewrites; the result is as of `equal_models`."""
    rules, alarms = load_rules(), []
    for number in range(seed * RANDOM_MODELS, (seed + 1) * RANDOM_MODELS):
        model = random_model(number)
        walk = random_walk(model, rules, np.random.default_rng(number), STEPS)
        dtypes = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
        tolerance = max(TOLERANCES.get(dtype, 0.0) for dtype in dtypes)
        # ONNX Runtime's own fusions are wrong for some float64 models, so both models run without optimisation.
        findings = validate(model, to_model(walk.states[-1].graph), tolerance=tolerance, optimise=False)
        alarms += alarm(f"random model {number}: {', '.join(walk.rules)}", findings)
    return {"equal": RANDOM_MODELS, "alarms": alarms}


def sample(call: tuple) -> dict:
    work, *arguments = call
    return globals()[work](*arguments)


def samples(seed: int):
    """Yield an endless sequence of calls (function name, *arguments) for `sample`.

    Each round calls `plant`, `equal_models` and `random_models` for every model of MODELS; each round has a new seed.
    """
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
