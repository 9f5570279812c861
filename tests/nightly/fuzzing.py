"""Fuzzing of the engine: random rewrites keep random models valid and equal, also as ONNX Runtime optimises them.

`fuzz(seed, …)` walks over one model, whose sizes are numbers or symbols, and compares it on several inputs or at
several sizes. A `Fault` is found after a rewrite. The rewrites that led to it and the model are then shrunk as long as
they still show the fault.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.random_models.open_model import random_open_model
from benchmarks.random_models.random_model import random_model, random_values
from rlflow.common.errors import RLFlowError, first_line
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import RewriteState, Task
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.optimisation.validate.known_faults import known_faults
from rlflow.rules.language import RuleSet
from rlflow.rules.locations import prepared

STEPS = 20
AS_DECLARED = ({}, {})  # two sets of inputs for a model without symbols
Sizes = tuple[dict[str, int], ...]
TRIES = 60  # rewrites that shrinking makes on one model
# Of the largest value inside the model: what rounding may change, for its coarsest data type.
TOLERANCES = {TensorProto.FLOAT16: 2e-2, TensorProto.FLOAT: 1e-4, TensorProto.DOUBLE: 1e-9}

# What the checker, ONNX Runtime and `Original` have against what is left of a model.
NOT_A_MODEL = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RLFlowError, ValueError)


class Fault(NamedTuple):
    """A fault: its kind, which stays the same while a model is shrunk, and a message with the details."""

    kind: str
    message: str


def raised(error: Exception) -> Fault:
    """Return the fault of an exception, which a user would see."""
    return Fault(f"raises {type(error).__name__}", first_line(error))


@dataclass(frozen=True)
class Failure:
    """A fault, the fewest rewrites that cause it (none: reading and writing do) and the smallest model."""

    seed: int
    fault: Fault
    rules: list[str]
    model: str

    def __str__(self) -> str:
        rules = ", ".join(self.rules) or "reading and writing it"
        return f"seed {self.seed}: after {rules}: {self.fault.kind}: {self.fault.message}\n{self.model}"


class Original:
    """A valid model, its inputs and its outputs.

    Args:
        model: the model.
        seed: of the inputs.
        sizes: symbol → size, once for every set of inputs; the first are the typical ones.

    Its constructor raises the errors of the checker and of ONNX Runtime.
    """

    def __init__(self, model: onnx.ModelProto, seed: int, sizes: Sizes = AS_DECLARED):
        onnx.checker.check_model(model, full_check=True)
        self.model, self.sizes = model, sizes
        self.feeds = [random_values(model, len(sizes) * seed + k, each) for k, each in enumerate(sizes)]
        self.values = outputs(model, self.feeds, optimise=False)
        self.compared: Counter[str] = Counter()  # how graphs were compared besides unoptimised
        if not all(np.isfinite(a).all() for values in self.values for a in values if a.dtype.kind == "f"):
            raise ValueError("the original's outputs are not finite")

    @cached_property
    def tolerance(self) -> float:
        """The largest error that rounding explains."""
        watched = onnx.ModelProto()
        watched.CopyFrom(self.model)
        given = {value.name for value in watched.graph.output}
        inner = [name for node in watched.graph.node for name in node.output if name and name not in given]
        watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
        arrays = [a for values in outputs(watched, self.feeds, optimise=False) for a in values if a.dtype.kind == "f"]
        declared = [v.type.tensor_type.elem_type for v in (*self.model.graph.input, *self.model.graph.output)]
        largest = max([1.0, *(float(np.abs(a).max(initial=0)) for a in arrays)])
        return largest * max(TOLERANCES.get(dtype, 0.0) for dtype in declared)

    @cached_property
    def optimised_well(self) -> bool:
        """The check that ONNX Runtime's own optimisations keep the outputs of the model; else they decide nothing."""
        return self._optimised(self.model) is None

    def fault(self, state: RewriteState, last: bool) -> Fault | None:
        """Return the fault of a state that rewrites of this model led to, or None; for the last state, check counts,
        too.
        """
        try:
            model = to_model(state.graph)
            onnx.checker.check_model(model, full_check=True)
            result = outputs(model, self.feeds, optimise=False)
        except Exception as error:
            return raised(error)
        if interface(model) != interface(self.model):
            return Fault("interface", "the declared inputs or outputs are not those of the original")
        fault = self._difference(result) or (_miscounted(state) if last else None)
        if fault is not None:
            return fault
        way = "optimised"
        if not self.optimised_well:
            way = "not optimised: the original is run wrongly so"
        elif known_faults(state.graph, self.sizes):
            way = "not optimised: a known fault"
        self.compared[way] += 1
        return self._optimised(model) if way == "optimised" else None

    def _optimised(self, model: onnx.ModelProto) -> Fault | None:
        """Return the fault that ONNX Runtime's optimisations cause in a model that is right without them, or None."""
        try:
            fault = self._difference(outputs(model, self.feeds, optimise=True))
        except RLFlowError as error:
            return Fault("ONNX Runtime refuses it optimised", first_line(error))
        return fault and Fault(f"ONNX Runtime's optimisations: {fault.kind}", fault.message)

    def _difference(self, result: list[list[np.ndarray]]) -> Fault | None:
        for wanted, given in zip(self.values, result, strict=True):
            for value, a, b in zip(self.model.graph.output, wanted, given, strict=True):
                if (a.shape, a.dtype) != (b.shape, b.dtype):
                    return Fault("type", f"{value.name} was {a.dtype}{list(a.shape)}, is {b.dtype}{list(b.shape)}")
                error = np.abs(b.astype(np.float64) - a).max(initial=0.0)
                if error != 0 and (a.dtype.kind != "f" or not error <= self.tolerance):  # not: NaN is above every limit
                    return Fault("values", f"{value.name} is wrong by {error:.3g}")
        return None


def interface(model: onnx.ModelProto) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    return list(model.graph.input), list(model.graph.output)


def outputs(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], optimise: bool) -> list[list[np.ndarray]]:
    running = session(model, threads=1, optimise=optimise)
    return [run(running, feed) for feed in feeds]


def _miscounted(state: RewriteState) -> Fault | None:
    """Return the fault of locations and costs that were updated along a walk, compared with the present graph.
    """
    anew = Task(state.graph, state.task.rules, state.task.cost, state.task.max_locations).initial
    if not np.array_equal(anew.counts, state.counts):
        wrong = [state.task.rules[k].name for k in np.flatnonzero(anew.counts != state.counts)]
        return Fault("locations", f"counted anew there are others of {', '.join(wrong)}")
    return Fault("cost", f"{state.cost}, anew {anew.cost}") if anew.cost != state.cost else None


# -- walks -----------------------------------------------------------------------------------------


class Step(NamedTuple):
    rule: str
    location: int


@dataclass
class Walk:
    """Rewrites, the states before, between and after them, and the fault that stopped the engine, if there is one."""

    steps: list[Step]
    states: list[RewriteState]
    fault: Fault | None = None

    @property
    def rules(self) -> list[str]:
        return [step.rule for step in self.steps]


class Fuzzed(NamedTuple):
    """The rules that a walk applied, the failure after one of them, and how often its graphs were compared in each way.
    """

    rules: list[str]
    failure: Failure | None
    compared: Counter[str]


def fuzz(seed: int, rules: RuleSet, steps: int = STEPS, symbolic: bool = False) -> Fuzzed:
    """Walk over `random_model(seed)`, or over `random_open_model(seed)`, and shrink a failure.

    Args:
        seed: of the model and of the walk.
        rules: the rule set.
        steps: rewrites of the walk at most.
        symbolic: the sizes are symbols.
    """
    model, sizes = random_open_model(seed) if symbolic else (random_model(seed), AS_DECLARED)
    try:
        original = Original(model, seed, sizes)
    except Exception as error:
        return Fuzzed(
            [], Failure(seed, Fault("the random model", first_line(error)), [], onnx.printer.to_text(model)), Counter()
        )
    walk = random_walk(model, rules, np.random.default_rng(seed), steps, sizes)
    for done, state in enumerate(walk.states):  # every one, since a later rewrite can undo what is wrong
        fault = original.fault(state, last=done == len(walk.steps))
        if fault is not None:
            return Fuzzed(walk.rules, shrunk(original, walk, done, rules, fault, seed), original.compared)
    failure = shrunk(original, walk, len(walk.steps), rules, walk.fault, seed) if walk.fault else None
    return Fuzzed(walk.rules, failure, original.compared)


def start(model: onnx.ModelProto, rules: RuleSet, sizes: Sizes) -> RewriteState:
    return Task(load_graph(model), rules, AnalyticCost(), sizes=sizes[:1]).initial


def random_walk(
    model: onnx.ModelProto, rules: RuleSet, rng: np.random.Generator, steps: int, sizes: Sizes = AS_DECLARED
) -> Walk:
    """Make up to `steps` rewrites: a random rule that has a location, and a random location of the rule.

    If sizes are symbols, every other walk begins as the environment does, with all shape arithmetic prepared.
    """
    walk = Walk([], [])
    try:
        walk.states.append(start(model, rules, sizes))
        if any(sizes) and rng.random() < 0.5:
            for xfer_id, location in prepared(walk.states[0].graph, rules)[1]:
                walk.steps.append(Step(rules[xfer_id].name, location))
                walk.states.append(walk.states[-1].apply(xfer_id, location))
        for _ in range(steps):
            state = walk.states[-1]
            applicable = np.unique(state.valid_actions()[:-1, 0])
            if not len(applicable):
                break
            xfer_id = int(rng.choice(applicable))
            walk.steps.append(Step(rules[xfer_id].name, int(rng.integers(state.counts[xfer_id]))))
            walk.states.append(state.apply(xfer_id, walk.steps[-1].location))
    except Exception as error:
        walk.fault = raised(error)
    return walk


# -- shrinking -------------------------------------------------------------------------------------


def shrunk(original: Original, walk: Walk, done: int, rules: RuleSet, fault: Fault, seed: int) -> Failure:
    """Return the smallest failure of the first `done` rewrites of a walk: the fewest rewrites on the smallest model."""

    def shows(model: onnx.ModelProto, steps: list[Step]) -> Fault | None:
        result = search(model, steps, rules, seed, original.sizes)
        return result if result is not None and result.kind == fault.kind else None

    model, steps = original.model, walk.steps[:done]
    if steps and shows(before := to_model(walk.states[done - 1].graph), steps[-1:]):
        model, steps = before, steps[-1:]
    steps = fewest(steps, lambda fewer: shows(model, fewer))
    model = smallest(model, lambda smaller: shows(smaller, steps))
    return Failure(seed, shows(model, steps) or fault, [step.rule for step in steps], onnx.printer.to_text(model))


def search(model: onnx.ModelProto, steps: list[Step], rules: RuleSet, seed: int, sizes: Sizes) -> Fault | None:
    """Return a fault that these rules cause one after the other: at their locations in the walk, else anywhere."""
    try:
        original = Original(model, seed, sizes)
    except NOT_A_MODEL:
        return None  # nothing is said about it
    tries = iter(range(TRIES))

    def after(state: RewriteState, left: list[Step]) -> Fault | None:
        if not left:
            return original.fault(state, last=True)
        xfer_id = rules.index(left[0].rule)
        positions = sorted(range(state.counts[xfer_id]), key=lambda k: k != left[0].location)
        results = (after(state.apply(xfer_id, k), left[1:]) for k in positions if next(tries, None) is not None)
        return next((result for result in results if result is not None), None)

    try:
        return after(start(model, rules, sizes), steps)
    except Exception as error:
        return raised(error)


def fewest(steps: list[Step], shows: Callable[[list[Step]], object]) -> list[Step]:
    """Remove the steps that the fault does not need; long runs are tried first, since pairs may cancel."""
    size = len(steps)
    while size := size // 2:
        for position in range(len(steps) - size, -1, -1):
            without = steps[:position] + steps[position + size :]
            if len(without) < len(steps) and shows(without):
                steps = without
    return steps


def smallest(model: onnx.ModelProto, shows: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """Remove nodes and outputs of the model for as long as it still shows the fault."""

    def size(some: onnx.ModelProto) -> int:
        return len(some.graph.node) + len(some.graph.output)

    while (result := next((p for p in parts(model) if size(p) < size(model) and shows(p)), None)) is not None:
        model = result
    return model


def parts(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Yield smaller models: one tensor as the only output, or the results of one node as inputs."""
    outputs = [value.name for value in model.graph.output]
    for node in model.graph.node:
        for name in filter(None, node.output):
            if outputs != [name]:
                yield part(model, [name], frozenset())
    for node in model.graph.node:
        if not set(outputs) <= set(node.output):
            yield part(model, [name for name in outputs if name not in node.output], frozenset(node.output))


def part(model: onnx.ModelProto, outputs: list[str], inputs: frozenset[str]) -> onnx.ModelProto:
    """Return the part of the model that computes `outputs`, with the tensors `inputs` given."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    needed, nodes = set(outputs), []
    for node in reversed(graph.node):
        if needed & set(node.output) and not inputs & set(node.output):
            nodes.insert(0, node)
            needed.update(node.input)
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    cut.graph.Clear()
    cut.graph.name = graph.name
    cut.graph.node.extend(nodes)
    cut.graph.input.extend(value for value in graph.input if value.name in needed)
    cut.graph.input.extend(types[name] for name in sorted(inputs & needed))
    cut.graph.output.extend(types[name] for name in outputs)
    cut.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    return cut
