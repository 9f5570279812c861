"""Check that the prover proves no wrong variant of a shipped rule.

    python -m tests.nightly.mutations [--seconds S] [--rule NAME]

A variant (tests/nightly/variants.py) is a changed rule. Whether it is wrong is decided without the prover's proof: the
variant is applied to the test models of all rules (tests/rules), and ONNX Runtime runs these models before and after.
Outputs that differ, or a model that does not run, show that the variant is wrong. A variant is also wrong if the prover
finds plain numbers for which both sides differ. A variant that is not found wrong does not count. The shipped rules are
tested in the same way and must not be found wrong.

Rules are drawn in random order until the seconds are over.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import onnx

from rlflow.common.errors import RLFlowError, first_line
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.budget import Stop, stoppable
from rlflow.proving.prove import prove_rule
from rlflow.rules.apply import apply
from rlflow.rules.language import Rule, RuleSet, families, load_rules
from rlflow.rules.locations import explain
from tests.nightly import parser, sampled
from tests.nightly.variants import Variant, variants
from tests.rules.cases import CASES
from tests.rules.instances import Case, instantiate, random_feeds
from tests.rules.test_look_alikes import LOOK_ALIKES, model

VARIANTS = 4  # most variants of a rule
PROOF_SECONDS = 20  # time limit of the proof of a variant; some proofs would take minutes
DIFFERENCE = 1e-3  # largest accepted error of an output, relative to its largest element; shipped rules stay far below
SEEDS = (0, 1)  # seeds of the inputs
PROVED = ("all-shapes", "bounded")  # verdicts of the prover for a proved rule
# Names of the two ways in which a variant can be found wrong.
RUNTIME, NUMBERS = "ONNX Runtime", "the prover's numbers"


# -- instances -------------------------------------------------------------------------------------


class Instance(NamedTuple):
    """A test model.

    Attributes:
        name: description of the model.
        model: the ONNX model.
        graph: the same model as RLFlow's graph.
        operators: the operator types of its nodes.
    """

    name: str
    model: onnx.ModelProto
    graph: Graph
    operators: frozenset[str]


@cache
def instances() -> list[Instance]:
    """Return the test models of all rules: the cases, the cases with changed sizes, and the look-alikes.

    float64 is replaced by float32, for which ONNX Runtime has more kernels. Invalid models are left out.
    """
    rules = load_rules(families())
    cases = [replace(case, dtype="float32") if case.dtype == "float64" else case for case in CASES]
    cases += [*_all_alike(cases, 2, turned=False), *_all_alike(cases, 3, turned=True)]
    result = [
        _instance(name, partial(instantiate, case, rules)) for name, case in {str(case): case for case in cases}.items()
    ]
    for rule, _, text, opset in LOOK_ALIKES:
        if "Random" not in text:
            result.append(_instance(f"{rule} {text}", partial(model, text.replace("double", "float"), opset)))
    return [instance for instance in result if instance is not None]


def _instance(name: str, make: Callable[[], onnx.ModelProto]) -> Instance | None:
    """Return the instance of the model that `make` returns, or None if the sizes in the model do not fit together."""
    try:
        made = make()
        return Instance(name, made, load_graph(made), frozenset(node.op_type for node in made.graph.node))
    except (onnx.shape_inference.InferenceError, RLFlowError):
        return None


def _all_alike(cases: list[Case], size: int, turned: bool) -> Iterator[Case]:
    """Yield the cases with all sizes other than 1 replaced by one size.

    With equal sizes, a wrong variant often gives the right shape, so that only its values show the error.

    Args:
        cases: the cases.
        size: the new size.
        turned: True to replace every permutation by a rotation, which is not its own inverse for three or more axes.
    """
    for case in cases:
        yield replace(case, values={name: _alike(value, size, turned) for name, value in case.values.items()})


def _alike(value, size: int, turned: bool):
    match value:
        case str():
            sizes, rest = re.fullmatch("([^:/]*)(.*)", value).groups()  # a data type or the axis of zeros can follow
            return re.sub(r"\d+", lambda result: result[0] if result[0] == "1" else str(size), sizes) + rest
        case [str(), *_]:
            return [_alike(text, size, turned) for text in value]
        case tuple() if turned and sorted(value) == [*range(len(value))]:
            return (*range(1, len(value)), 0)
    return value


@cache
def outputs_before(position: int, seed: int) -> list[np.ndarray] | None:
    """Return the outputs of a test model before any rewrite.

    Return None if ONNX Runtime does not run the model or if an output has no elements.

    Args:
        position: index of the model in `instances()`.
        seed: seed of the inputs.
    """
    made = instances()[position].model
    try:
        result = run(session(made, 1, optimise=False), random_feeds(made, seed))
    except RLFlowError:
        return None
    return result if all(np.size(array) for array in result) else None


# -- judgement -------------------------------------------------------------------------------------


def judged(rule: Rule) -> tuple[int, str | None]:
    """Apply a rule to all test models and compare the outputs.

    Returns:
        (number of applications with equal outputs, description of the first application with other outputs or None).
    """
    equal, wanted = 0, {op.op for op in rule.ops}
    for position, instance in enumerate(instances()):
        if wanted <= instance.operators and outputs_before(position, SEEDS[0]) is not None:
            for after in applications(instance.graph, rule):
                try:
                    difference = compared(position, after)
                except RLFlowError as error:
                    if "NOT_IMPLEMENTED" in str(error):  # no kernel for that data type or opset
                        continue
                    difference = first_line(error)
                if difference:
                    return equal, f"{instance.name}: {difference}"
                equal += 1
    return equal, None


def applications(graph: Graph, rule: Rule) -> Iterator[Graph]:
    """Yield, for every match of the rule in the graph, the graph after the rewrite at this match."""
    try:
        matches = explain(graph, RuleSet((rule,)), rule.name)[0]
    except (TypeError, KeyError):  # without a dropped condition, another condition cannot be evaluated
        return
    for match in matches:
        yield apply(graph, rule, match)


def compared(position: int, after: Graph) -> str | None:
    """Compare the outputs of a rewritten test model with its outputs before the rewrite.

    Args:
        position: index of the test model in `instances()`.
        after: the rewritten graph.

    Returns:
        The difference in words, or None.

    Raises:
        RLFlowError: ONNX Runtime does not run the rewritten model.
    """
    running = session(to_model(after), 1, optimise=False)
    for seed in SEEDS:
        wanted, result = outputs_before(position, seed), run(running, random_feeds(instances()[position].model, seed))
        for one, other in zip(wanted or (), result if wanted else (), strict=True):
            difference = differs(np.asarray(one), np.asarray(other))
            if difference:
                return difference
    return None


def differs(one: np.ndarray, other: np.ndarray) -> str | None:
    """Return in words how the output `other` differs from the output `one`, or None.

    Elements are ignored where `one` is not finite.
    """
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype}{list(one.shape)} became {other.dtype}{list(other.shape)}"
    if one.dtype.kind != "f":
        return None if np.array_equal(one, other) else "another output"
    numbers = np.isfinite(one)
    scale = max(1.0, np.abs(one[numbers]).max(initial=0))
    error = np.abs(np.where(np.isfinite(other), other, np.inf)[numbers] - one[numbers]).max(initial=0)
    return f"off by {error:.3g}, outputs to {scale:.3g}" if error > DIFFERENCE * scale else None


# -- variants --------------------------------------------------------------------------------------


def judge(variant: Variant) -> dict:
    """Return the result of `judged` as {"equal_instances", "difference"}."""
    equal, difference = judged(variant.rule)
    return {"equal_instances": equal, "difference": difference}


def prove(variant: Variant) -> dict:
    """Return the prover's result as {"verdict", "bound", "how", "seconds"}."""
    result = prove_rule(variant.rule)
    return {"verdict": result.proof, "bound": result.bound, "how": result.how, "seconds": result.seconds}


def examined(variant: Variant, judgement: dict, proof: dict) -> dict:
    by_numbers = proof["verdict"] == "refuted" and "is not defined" not in proof["how"]
    says = ((RUNTIME, judgement["difference"]), (NUMBERS, by_numbers))
    wrong_by = [name for name, wrong in says if wrong]
    named = {"rule": variant.rule.name, "kind": variant.kind, "change": variant.change, "text": variant.rule.text}
    return {**named, "wrong_by": wrong_by, **judgement, **proof}


GROUPS = ("wrong", "wrong and proved", "proved", "not told apart")


def group(variant: dict) -> str:
    if variant["verdict"] in PROVED:
        return "wrong and proved" if variant["wrong_by"] else "proved"
    return "wrong" if variant["wrong_by"] else "not told apart"


def prove_in_time(variant: Variant) -> dict:
    """Return `prove(variant)`, or the verdict "unproved" after PROOF_SECONDS."""
    try:
        with stoppable(PROOF_SECONDS):
            return prove(variant)
    except Stop:
        return {"verdict": "unproved", "bound": "", "how": f"no answer in {PROOF_SECONDS} s", "seconds": PROOF_SECONDS}


# -- all of a rule -----------------------------------------------------------------------------------


def examine(name: str) -> dict:
    """Test up to VARIANTS variants of a rule, and the rule itself.

    Args:
        name: name of the rule.

    Returns:
        "groups": Counter of the GROUPS of the variants. "missed": descriptions of the wrong variants that the prover
            proved. "wrong": a description if the rule itself was found wrong, otherwise [].
    """
    rules = load_rules(families())
    position = rules.index(name)
    chosen = islice(variants(rules[position], position), VARIANTS)  # each rule begins with another kind of variant
    found = [examined(variant, judge(variant), prove_in_time(variant)) for variant in chosen]
    missed = [one for one in found if group(one) == "wrong and proved"]
    difference = judged(rules[position])[1]
    return {
        "groups": Counter(map(group, found)),
        "missed": [f"{name}, {one['change']}: {one['difference']}" for one in missed],
        "wrong": [f"{name}: {difference}"] if difference else [],
    }


def main() -> int:
    arguments = parser(__doc__, seconds=300)
    arguments.add_argument("--rule", action="append", metavar="NAME", help="variants of this rule; repeatable")
    parsed = arguments.parse_args()
    every = [rule.name for rule in load_rules(families())]
    names = parsed.rule or list(np.random.default_rng(parsed.seed).permutation(every))
    count, groups, missed, wrong = 0, Counter(), [], []
    for part in sampled(examine, map(str, names), parsed.seconds):
        count += 1
        groups.update(part["groups"])
        missed += part["missed"]
        wrong += part["wrong"]
    print(*missed, *wrong, sep="\n", file=sys.stderr)
    print(
        f"{groups.total()} variants of {count} of {len(every)} rules (seed {parsed.seed}), "
        f"{groups['wrong'] + groups['wrong and proved']} wrong, of these {len(missed)} proved; "
        f"{len(wrong)} shipped rules found wrong"
    )
    return int(bool(missed or wrong) or not groups["wrong"])


if __name__ == "__main__":
    sys.exit(main())
