"""500 wrong variants of the shipped rules, and what the prover makes of them.

Whether a variant (benchmarks.variants) is wrong is not for its proof to say. The engine applies it to the cases and
look-alikes of all rules (tests/rules), and ONNX Runtime runs the models before and after: outputs that differ, or a
model that does not run, show that it is wrong. So do two different numbers, where the prover has written out both sides
in plain numbers; an operator that is only not defined there does not. A variant that neither distinguishes from its
rule counts for nothing. The rules themselves are judged in the same way, and must not be found wrong.

All variants run in ONNX Runtime; the prover gets the first of those that it found wrong, and the first of the others.
Resumable: what each chunk gave lies in --folder (after a change of the prover name another one).
"""

import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.judged import UNSTATED_RULES
from benchmarks.variants import Variant, spread
from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.messages import progress_bar
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.proving.prove import prove_rule
from rlflow.rules.apply import apply
from rlflow.rules.language import Rule, RuleSet, families, load_rules
from rlflow.rules.locations import explain
from tests.rules.cases import CASES
from tests.rules.instances import Case, instantiate, random_feeds
from tests.rules.test_look_alikes import LOOK_ALIKES, model

JUDGES = ("rlflow/proving", *UNSTATED_RULES, "benchmarks/variants.py")

WRONG = 500
TRIED = 600  # variants that ONNX Runtime found wrong
OTHERS = 300  # and variants that it did not
DIFFERENCE = 1e-3  # of outputs in float32, relative to the largest element; the rules themselves stay far below
SEEDS = (0, 1)  # of the inputs
PROVED = ("all-shapes", "bounded")
RUNTIME, NUMBERS = "ONNX Runtime", "the prover's numbers"


# -- instances -------------------------------------------------------------------------------------


class Instance(NamedTuple):
    """A model in which a rule may fire, and what it is in words."""

    name: str
    model: onnx.ModelProto
    graph: Graph
    operators: frozenset[str]


@cache
def instances() -> list[Instance]:
    """The cases of all rules and their look-alikes, in float32, which ONNX Runtime has kernels for."""
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
    """None where the sizes of a case do not go together."""
    try:
        made = make()
        return Instance(name, made, load_graph(made), frozenset(node.op_type for node in made.graph.node))
    except (onnx.shape_inference.InferenceError, RLFlowError):
        return None


def _all_alike(cases: list[Case], size: int, turned: bool) -> Iterator[Case]:
    """The same cases with one size instead of all but 1, so that shapes do not distinguish a variant from its rule.

    Where `turned`, permutations are others, which are not their own inverse.
    """
    for case in cases:
        yield replace(case, values={name: _alike(value, size, turned) for name, value in case.values.items()})


def _alike(value, size: int, turned: bool):
    match value:
        case str():
            sizes, colon, dtype = value.partition(":")
            return re.sub(r"\d+", lambda result: result[0] if result[0] == "1" else str(size), sizes) + colon + dtype
        case [str(), *_]:
            return [_alike(text, size, turned) for text in value]
        case tuple() if turned and sorted(value) == [*range(len(value))]:
            return (*range(1, len(value)), 0)
    return value


@cache
def outputs_before(position: int, seed: int) -> list[np.ndarray] | None:
    """What the instance gives; None where ONNX Runtime does not run it, or nothing comes out."""
    made = instances()[position].model
    try:
        result = run(session(made, 1, optimise=False), random_feeds(made, seed))
    except RLFlowError:
        return None
    return result if all(np.size(array) for array in result) else None


# -- judgement -------------------------------------------------------------------------------------


def judged(rule: Rule) -> tuple[int, str | None]:
    """(applications that gave equal outputs, the first that did not, in words) of a rule wherever it fires."""
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
    """The graph after the rule, for every match."""
    try:
        matches = explain(graph, RuleSet((rule,)), rule.name)[0]
    except (TypeError, KeyError):  # a condition without what made it readable
        return
    for match in matches:
        yield apply(graph, rule, match)


def compared(position: int, after: Graph) -> str | None:
    """How the outputs of an instance differ from what they were. Raises RLFlowError if the model does not run."""
    running = session(to_model(after), 1, optimise=False)
    for seed in SEEDS:
        wanted, result = outputs_before(position, seed), run(running, random_feeds(instances()[position].model, seed))
        for one, other in zip(wanted or (), result if wanted else (), strict=True):
            difference = differs(np.asarray(one), np.asarray(other))
            if difference:
                return difference
    return None


def differs(one: np.ndarray, other: np.ndarray) -> str | None:
    """How two outputs differ; where the first is no number, the second may be anything."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype}{list(one.shape)} became {other.dtype}{list(other.shape)}"
    if one.dtype.kind != "f":
        return None if np.array_equal(one, other) else "another output"
    numbers = np.isfinite(one)
    scale = max(1.0, np.abs(one[numbers]).max(initial=0))
    error = np.abs(np.where(np.isfinite(other), other, np.inf)[numbers] - one[numbers]).max(initial=0)
    return f"off by {error:.3g}, outputs to {scale:.3g}" if error > DIFFERENCE * scale else None


def judged_wrong(rules: list[Rule]) -> list[str]:
    """Shipped rules that differ from themselves: if there are any, it is the judgement that is wrong."""
    return [f"{rule.name}: {difference}" for rule in rules if (difference := judged(rule)[1])]


# -- variants --------------------------------------------------------------------------------------


def judge(variant: Variant) -> dict:
    """What ONNX Runtime says of a variant."""
    equal, difference = judged(variant.rule)
    return {"equal_instances": equal, "difference": difference}


def prove(variant: Variant) -> dict:
    """What the prover says of a variant."""
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


# -- all of them -----------------------------------------------------------------------------------


@cache
def chosen(names: tuple[str, ...]) -> tuple[list[Rule], list[Variant]]:
    """The named rules (none: all), and all their variants."""
    rules = [rule for rule in load_rules(families()) if not names or rule.name in names]
    return rules, spread(rules)


class Work(NamedTuple):
    """How chunks are worked on: for the rules of these names, kept in this folder, by so many processes."""

    names: tuple[str, ...]
    folder: Path
    workers: int

    def all_of(self, step: Callable[[Variant], dict], numbers: list[int], size: int) -> list[dict]:
        """What a step gives for the variants of these numbers, so many at once."""
        parts, result = [numbers[k : k + size] for k in range(0, len(numbers), size)], []
        pool = ProcessPoolExecutor(self.workers, multiprocessing.get_context("fork"))
        with pool, progress_bar(len(numbers), step.__name__, "variant") as progress:
            for chunk in pool.map(partial(self.chunk, step), range(len(parts)), parts):
                result += chunk
                progress.update(len(chunk))
        return result

    def chunk(self, step: Callable[[Variant], dict], position: int, numbers: list[int]) -> list[dict]:
        name, variants = f"{step.__name__}-{position}", chosen(self.names)[1]
        return each([name], self.folder, lambda _: {"found": [step(variants[n]) for n in numbers]})[name]["found"]


def examine(work: Work, tried: int, others: int) -> list[dict]:
    instances()  # made once, for all processes
    variants = chosen(work.names)[1]
    judgements = work.all_of(judge, list(range(len(variants))), 50)
    wrong = [n for n, result in enumerate(judgements) if result["difference"]]
    rest = [n for n, result in enumerate(judgements) if not result["difference"]]
    taken = sorted(wrong[:tried] + rest[:others])
    return [
        examined(variants[n], judgements[n], result)
        for n, result in zip(taken, work.all_of(prove, taken, 10), strict=True)
    ]


def summary(result: list[dict]) -> dict:
    groups = {name: [v for v in result if group(v) == name] for name in GROUPS}
    wrong = groups["wrong"] + groups["wrong and proved"]
    kinds = {
        kind: Counter(group(v) for v in result if v["kind"] == kind)
        for kind in dict.fromkeys(v["kind"] for v in result)
    }
    return {
        "variants": len(result),
        "groups": {name: len(members) for name, members in groups.items()},
        "kinds": kinds,
        "wrong_by": Counter(" and ".join(v["wrong_by"]) for v in wrong),
        "verdicts_of_wrong": Counter(v["verdict"] for v in wrong),
        "proved_but_fired_in_no_instance": sum(not v["equal_instances"] for v in groups["proved"]),
        "prover_seconds": round(sum(v["seconds"] for v in result), 1),
        "wrong_and_proved": groups["wrong and proved"],
        "proved": [_brief(v, "equal_instances", "verdict") for v in groups["proved"]],
        "not_told_apart": [_brief(v, "equal_instances", "verdict", "how") for v in groups["not told apart"]],
        "wrong": [_brief(v, "wrong_by", "verdict") for v in wrong],
    }


def _brief(variant: dict, *keys: str) -> dict:
    return {key: variant[key] for key in ("rule", "change", *keys)}


def table(figures: dict) -> str:
    heads = {
        "wrong, rejected": "wrong",
        "wrong and proved": "wrong and proved",
        "equal, proved": "proved",
        "not told apart": "not told apart",
    }
    kinds = figures["kinds"] | {"all": figures["groups"]}
    return markdown(
        ["kind", *heads], [[kind, *(result.get(key, 0) for key in heads.values())] for kind, result in kinds.items()]
    )


def main() -> int:
    made = parser(__doc__, "runs/mutations")
    made.add_argument("--rules", nargs="*", default=[], metavar="NAME", help="only variants of these rules")
    made.add_argument(
        "--tried", type=int, default=TRIED, metavar="N", help="at most so many that ONNX Runtime found wrong"
    )
    made.add_argument("--others", type=int, default=OTHERS, metavar="N", help="at most so many that it did not")
    made.add_argument("--workers", type=int, default=2, metavar="N", help="processes that work at once")
    options = made.parse_args()
    names = tuple(options.rules)
    work = Work(names, options.folder / "-".join([str(options.tried), str(options.others), *names]), options.workers)
    rules, variants = chosen(names)
    figures = {"all_variants": len(variants)} | summary(examine(work, options.tried, options.others))
    figures |= {"rules": len(rules), "rules_judged_wrong": judged_wrong(rules)}
    n_wrong, n_missed, n_misjudged = (len(figures[key]) for key in ("wrong", "wrong_and_proved", "rules_judged_wrong"))
    bars = [
        bar("wrong variants", n_wrong, "variants", f"≥ {WRONG}", n_wrong >= WRONG),
        bar("wrong variants that are proved", n_missed, "variants", "0", n_missed == 0),
        bar("shipped rules found wrong in the same way", n_misjudged, "rules", "0", n_misjudged == 0),
    ]
    return finish("mutations", options, figures, bars)


if __name__ == "__main__":
    sys.exit(main())
