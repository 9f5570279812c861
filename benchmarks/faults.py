"""Validation catches planted faults of every kind, and raises no false alarm.

Faults (`benchmarks/faulty.py`) are planted in models of the zoo; the validation is given the model and the broken one,
and no receipt, by whose hash it would catch all of them. Whether a fault changes the function is decided by onnx's
reference implementation in float64, on other inputs: by more than the tolerance it is one and must be caught; by less,
or not at all, it is neither caught nor missed, and is listed. No alarm may be raised by what is equal: every model of
the zoo read and written again; results of random walks over its small ones, receipts included, and over random models.

Resumable: what each part gave lies in --folder.
"""

import hashlib
import sys
from collections import Counter

import numpy as np

from benchmarks.faulty import KINDS, Function, planted
from benchmarks.fuzzing import TOLERANCES, random_walk
from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.random_models.random_model import random_model
from rlflow.common.messages import progress_bar
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.receipt import make_receipt
from rlflow.optimisation.validate import Findings, validate
from rlflow.rules.language import load_rules
from rlflow.zoo import ZOO, load

JUDGES = ("rlflow/deliver/validate", "benchmarks/faulty.py")

TOLERANCE = 1e-4
EQUAL = 1e-9  # relative error in float64 that rounding is to blame for
TRIES = {name: 4 for name in ZOO if name.startswith("tiny_")} | {
    "light_squeezenet": 1,
    "light_shufflenet": 1,
    "light_densenet121": 1,
}
WALKS, STEPS = 5, 20
RANDOM_MODELS = 200
ENOUGH = 200


def plant(name: str, seed: int) -> dict:
    """What became of up to `TRIES` different faults of every kind in one model."""
    model, rng = load(name, seed), np.random.default_rng(seed)
    function, faults, known = Function(model, 1000 + seed), [], set()
    for kind in KINDS:
        for _ in range(TRIES[name]):
            result = planted(model, kind, rng)
            if result is None:
                break
            broken, where = result
            digest = hashlib.sha256(broken.SerializeToString(deterministic=True)).digest()
            if digest in known:
                continue
            known.add(digest)
            faults.append({"model": name, "kind": kind.__name__, "where": where} | judge(model, broken, function))
    return {"faults": faults}


def judge(model, broken, function: Function) -> dict:
    """Whether a fault was found, by which checks, and by how much it changes the function."""
    findings, error = validate(model, broken, tolerance=TOLERANCE), function.change(broken, TOLERANCE)
    if error <= EQUAL:
        verdict = "equal"
    elif not findings.ok:
        verdict = "caught"
    else:
        verdict = "missed" if error > TOLERANCE else "within the tolerance"
    by = sorted({finding.kind for finding in findings.failures()})
    return {"verdict": verdict, "by": by, "error": error if np.isfinite(error) else str(error)}


# -- what must not be called a fault ---------------------------------------------------------------


def read_and_written(name: str, seed: int) -> dict:
    model = load(name, seed)
    return {
        "compared": 1,
        "alarms": alarms(
            f"{name}, read and written", validate(model, to_model(load_graph(model)), tolerance=TOLERANCE)
        ),
    }


def walked(name: str, seed: int) -> dict:
    model, rules, result = load(name, seed), load_rules(), []
    walks = WALKS if name.startswith("tiny_") else 1
    for k in range(walks):
        walk = random_walk(model, rules, np.random.default_rng([seed, k]), STEPS)
        actions = [(rules.index(step.rule), step.location) for step in walk.steps]
        receipt = make_receipt(walk.states[0].graph, rules, [], actions, walk.states[-1].graph, {})
        findings = validate(model, to_model(walk.states[-1].graph), tolerance=TOLERANCE, receipt=receipt)
        result += alarms(f"{name}, walk {k}: {', '.join(walk.rules)}", findings)
    return {"compared": walks, "alarms": result}


def walked_random_models(seed: int) -> dict:
    rules, result, compared = load_rules(), [], 0
    for k in range(RANDOM_MODELS):
        model = random_model(RANDOM_MODELS * seed + k)
        walk = random_walk(model, rules, np.random.default_rng(k), STEPS)
        dtypes = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
        tolerance = max(TOLERANCES.get(dtype, 0.0) for dtype in dtypes)
        # Unoptimised: ONNX Runtime's own fusions are wrong for some float64 models.
        findings = validate(model, to_model(walk.states[-1].graph), tolerance=tolerance, optimise=False)
        result += alarms(f"random model {k}: {', '.join(walk.rules)}", findings)
        compared += 1
    return {"compared": compared, "alarms": result}


def alarms(what: str, findings: Findings) -> list[dict]:
    return (
        [{"of": what, "messages": [finding.message for finding in findings.failures()][:3]}] if not findings.ok else []
    )


def table(figures: dict) -> str:
    verdicts = {
        "planted": "planted",
        "caught": "caught",
        "missed": "missed",
        "equal after all": "equal",
        "within the tolerance": "within the tolerance",
    }
    rows = [
        [kind.replace("_", " "), *(result.get(key, 0) for key in verdicts.values())]
        for kind, result in figures["kinds"].items()
    ]
    return markdown(["kind", *verdicts], rows)


def main() -> int:
    arguments = parser(__doc__, "runs/faults")
    arguments.add_argument("--model", choices=list(ZOO), help="only this one of the zoo")
    parsed = arguments.parse_args()
    names, folder, seed = [parsed.model] if parsed.model else list(ZOO), parsed.folder, parsed.seed
    small = [name for name in names if name in TRIES]
    with progress_bar(2 * len(small) + len(names) + 1, "faults", "part") as progress:

        def parts(kind: str, chosen: list[str], work) -> list[dict]:
            def one(name: str) -> dict:
                result = each([f"{kind}-{name}-{seed}"], folder, lambda _: work(name))
                progress.update(1)
                return result[f"{kind}-{name}-{seed}"]

            return [one(name) for name in chosen]

        faults = [fault for part in parts("planted", small, lambda name: plant(name, seed)) for fault in part["faults"]]
        equal = {
            "read and written": parts("written", names, lambda name: read_and_written(name, seed)),
            "walks": parts("walked", small, lambda name: walked(name, seed)),
            "random models": parts("random", [] if parsed.model else ["models"], lambda _: walked_random_models(seed)),
        }
    raised = [alarm for result in equal.values() for part in result for alarm in part["alarms"]]
    verdicts = Counter(fault["verdict"] for fault in faults)
    for fault in faults:
        if fault["verdict"] == "missed":
            print(fault, file=sys.stderr)
    by_kind = {kind.__name__: Counter(f["verdict"] for f in faults if f["kind"] == kind.__name__) for kind in KINDS}
    figures = {
        "tolerance": TOLERANCE,
        "planted": len(faults),
        "verdicts": verdicts,
        "kinds": {name: {"planted": result.total(), **result} for name, result in by_kind.items()},
        "caught_by": Counter(check for fault in faults if fault["verdict"] == "caught" for check in fault["by"]),
        "not_caught": [fault for fault in faults if fault["verdict"] != "caught"],
        "equal_models_compared": {what: sum(part["compared"] for part in result) for what, result in equal.items()},
        "false_alarms": raised,
    }
    bars = [
        bar(
            "faults that change the function, caught", verdicts["caught"], "", f"≥ {ENOUGH}",
            verdicts["caught"] >= ENOUGH,
        ),
        bar(
            "kinds of faults caught", sum(result["caught"] > 0 for result in by_kind.values()), "", f"{len(KINDS)}",
            all(f["caught"] for f in by_kind.values()),
        ),
        bar("faults missed", verdicts["missed"], "", "0", verdicts["missed"] == 0),
        bar("false alarms", len(raised), "", "0", not raised),
    ]  # fmt: skip
    return finish("faults", parsed, figures, bars)


if __name__ == "__main__":
    sys.exit(main())
