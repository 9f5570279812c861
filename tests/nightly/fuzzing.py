"""Fuzzing of the rewriting engine: random rewrites of random models must keep them valid and their outputs equal.

`fuzz(seed, …)` applies random rewrites to one random model. After each rewrite it compares the outputs with the
original's, with and without ONNX Runtime's optimisations. A model without symbols is compared on two sets of inputs, a
model with symbols at several sizes. If a `Fault` is found, the list of rewrites and the model are shrunk as long as
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

from benchmarks.random_models.additions import with_additions
from benchmarks.random_models.open_model import random_open_model
from benchmarks.random_models.random_model import random_model, random_values
from benchmarks.random_models.with_bodies import in_bodies
from rlflow.common.errors import RLFlowError, first_line
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import RewriteState, Task
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.graph.repairs import names_read
from rlflow.optimisation.validate.known_faults import known_faults
from rlflow.rules.language import RuleSet
from rlflow.rules.locations import prepared

STEPS = 20  # most rewrites of a model
WITH_ADDITIONS = 2  # every second model has draws, a wide operator and outputs without shapes
WITH_BODIES = 3  # every third model has nodes in bodies of If, Loop and Scan
AS_DECLARED = ({}, {})  # `Sizes` of a model without symbols, for two sets of inputs
Sizes = tuple[dict[str, int], ...]  # for each set of inputs: symbol → size
TRIES = 60  # most rewrites that `search` tries on one model
# Data type → largest accepted error of an output, relative to the largest value of any tensor in the model.
TOLERANCES = {TensorProto.FLOAT16: 2e-2, TensorProto.FLOAT: 1e-4, TensorProto.DOUBLE: 1e-9}

NOT_RUN = "ONNX Runtime cannot run the model"  # the start of the error of `rlflow.graph.onnx_runtime.run`

# Exceptions of `Original` for a shrunk model that is no longer valid.
NOT_A_MODEL = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RLFlowError, ValueError)


class Fault(NamedTuple):
    """An error of the rewriting engine.

    Attributes:
        kind: short name of the error; shrinking keeps the kind.
        message: details.
    """

    kind: str
    message: str


def raised(error: Exception) -> Fault:
    """Return the fault for an exception that the rewriting engine raised."""
    return Fault(f"raises {type(error).__name__}", first_line(error))


@dataclass(frozen=True)
class Failure:
    """A shrunk fault.

    Attributes:
        seed: seed of the random model.
        fault: the fault.
        rules: names of the rules whose rewrites cause the fault, in order; [] if reading and writing the model do.
        model: text of the smallest model that shows the fault.
    """

    seed: int
    fault: Fault
    rules: list[str]
    model: str

    def __str__(self) -> str:
        rules = ", ".join(self.rules) or "reading and writing it"
        return f"seed {self.seed}: after {rules}: {self.fault.kind}: {self.fault.message}\n{self.model}"


class Original:
    """A valid model with several sets of inputs and the outputs for them.

    Args:
        model: the model.
        seed: seed of the inputs.
        sizes: for each set of inputs: symbol → size; the first set has the typical sizes.

    Attributes:
        feeds: for each set of inputs: name → array.
        values: for each set of inputs: the outputs without ONNX Runtime's optimisations.
        compared: Counter of the ways in which `fault` has compared graphs: with ONNX Runtime's optimisations, or not.

    Raises:
        Exception: one of NOT_A_MODEL if the model is invalid, cannot run or has outputs that are not finite.
    """

    def __init__(self, model: onnx.ModelProto, seed: int, sizes: Sizes = AS_DECLARED):
        onnx.checker.check_model(model, full_check=True)
        self.model, self.sizes = model, sizes
        self.feeds = [random_values(model, len(sizes) * seed + k, each) for k, each in enumerate(sizes)]
        self.values = outputs(model, self.feeds, optimise=False)
        self.compared: Counter[str] = Counter()  # comparisons in addition to the one without optimisations
        if not all(np.isfinite(a).all() for values in self.values for a in values if a.dtype.kind == "f"):
            raise ValueError("the original's outputs are not finite")

    @cached_property
    def tolerance(self) -> float:
        """The largest accepted absolute error of an output (see TOLERANCES)."""
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
        """True if ONNX Runtime's optimisations do not change the outputs of the original model.

        If False, rewritten graphs are only compared without these optimisations.
        """
        return self._optimised(self.model) is None

    def fault(self, state: RewriteState, last: bool) -> Fault | None:
        """Return the fault of a state, or None if its graph is valid and has equal outputs.

        Args:
            state: a state that rewrites of this model led to.
            last: True to check also its location counts and its cost (see `_miscounted`).
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
        """Return the fault of a model that runs with ONNX Runtime's optimisations, or None."""
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


def fails_on_nothing(graph: Graph) -> bool:
    """Return True if ONNX Runtime 1.31 gives a wrong result for an operator that reads an empty tensor.

    A FusedMatMul that reads a stack of transposed matrices, and whose sums have no summand, does not write its output,
    which should be 0. A reduction of an empty tensor keeps the sizes of the axes that it reduces.
    """
    for node in graph.nodes.values():
        read = graph.types.get(node.inputs[0]) if node.op.startswith("Reduce") else None
        if read is not None and read.shape is not None and 0 in read.shape:
            return True
        if node.op == "FusedMatMul" and (node.attribute("transA", 0) or node.attribute("transB", 0)):
            summed = (-2 if node.attribute("transA", 0) else -1, -1 if node.attribute("transB", 0) else -2)
            for tensor, axis in zip(node.inputs, summed, strict=True):  # the type of one operand may be unknown
                kind = graph.types.get(tensor)
                if kind is not None and kind.shape is not None and len(kind.shape) > 1 and kind.shape[axis] == 0:
                    return True
    return False


def interface(model: onnx.ModelProto) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    return list(model.graph.input), list(model.graph.output)


def outputs(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], optimise: bool) -> list[list[np.ndarray]]:
    running = session(model, threads=1, optimise=optimise)
    return [run(running, feed) for feed in feeds]


def _miscounted(state: RewriteState) -> Fault | None:
    """Return a fault if location counts or cost, which rewrites update incrementally, are wrong, or None.

    The correct values come from a new task with the same graph.
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
    """A sequence of random rewrites.

    Attributes:
        steps: the rewrites.
        states: the initial state and the state after each rewrite.
        fault: the exception that ended the walk, or None.
    """

    steps: list[Step]
    states: list[RewriteState]
    fault: Fault | None = None

    @property
    def rules(self) -> list[str]:
        return [step.rule for step in self.steps]


class Fuzzed(NamedTuple):
    """The result of fuzzing one model.

    Attributes:
        rules: names of the rules of all rewrites.
        failure: the first fault, shrunk; None without a fault.
        compared: see `Original.compared`; empty if ONNX Runtime does not run the random model itself.
    """

    rules: list[str]
    failure: Failure | None
    compared: Counter[str]


def fuzz(seed: int, rules: RuleSet, steps: int = STEPS, symbolic: bool = False) -> Fuzzed:
    """Apply random rewrites to a random model, check every state, and shrink the first fault.

    Args:
        seed: seed of the model and of the rewrites.
        rules: the rule set.
        steps: largest number of rewrites.
        symbolic: False for `random_model(seed)`, True for `random_open_model(seed)`, whose sizes are symbols.
    """
    model, sizes = random_open_model(seed) if symbolic else (random_model(seed), AS_DECLARED)
    model = with_additions(model, seed) if seed % WITH_ADDITIONS == 0 else model
    model = in_bodies(model, seed) if seed % WITH_BODIES == 0 else model
    try:
        if symbolic:  # at other sizes the outputs of the original are what its memory held before
            sizes = tuple(each for each in sizes if not fails_on_nothing(load_graph(model).at(each)))
        original = Original(model, seed, sizes)
    except Exception as error:
        fault = None
        if not isinstance(error, RLFlowError) or NOT_RUN not in str(error):
            fault = Failure(seed, Fault("the random model", first_line(error)), [], onnx.printer.to_text(model))
        return Fuzzed([], fault, Counter())
    walk = random_walk(model, rules, np.random.default_rng(seed), steps, sizes)
    for done, state in enumerate(walk.states):  # all states, since a later rewrite can undo an error
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
    """Apply random rewrites: each draws one of the applicable rules and then one of its locations.

    Half of the walks over models with symbols first replace all shape arithmetic, as the environment does.

    Args:
        model: the model.
        rules: the rule set.
        rng: the random generator.
        steps: largest number of random rewrites.
        sizes: assignments symbol → size; the first has the typical sizes.
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
    """Shrink a fault: find fewer rewrites and a smaller model that show a fault of the same kind.

    Args:
        original: the original model.
        walk: the rewrites.
        done: number of rewrites of the walk after which the fault was found.
        rules: the rule set.
        fault: the fault.
        seed: seed of the inputs.
    """

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
    """Apply rewrites to a model and return the fault that they cause, or None.

    A rewrite is tried at its own location first and then at the other locations of its rule, up to TRIES tries in all.

    Args:
        model: the model.
        steps: the rewrites.
        rules: the rule set.
        seed: seed of the inputs.
        sizes: assignments symbol → size.
    """
    try:
        original = Original(model, seed, sizes)
    except NOT_A_MODEL:
        return None  # an invalid model shows no fault of the engine
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
    """Return the steps that the fault needs.

    Long runs of steps are removed first, because the rewrites of a run may cancel each other.

    Args:
        steps: the rewrites.
        shows: function that returns a true value if the given steps show the fault.
    """
    size = len(steps)
    while size := size // 2:
        for position in range(len(steps) - size, -1, -1):
            without = steps[:position] + steps[position + size :]
            if len(without) < len(steps) and shows(without):
                steps = without
    return steps


def smallest(model: onnx.ModelProto, shows: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """Return a part of the model from which no further node or output can be removed.

    Args:
        model: the model.
        shows: function that returns a true value if the given model shows the fault.
    """

    def size(some: onnx.ModelProto) -> int:
        return len(some.graph.node) + len(some.graph.output)

    while (result := next((p for p in parts(model) if size(p) < size(model) and shows(p)), None)) is not None:
        model = result
    return model


def parts(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Yield smaller models: each has one tensor as its only output, or the results of one node as additional inputs."""
    outputs = [value.name for value in model.graph.output]
    for node in model.graph.node:
        for name in filter(None, node.output):
            if outputs != [name]:
                yield part(model, [name], frozenset())
    for node in model.graph.node:
        if not set(outputs) <= set(node.output):
            yield part(model, [name for name in outputs if name not in node.output], frozenset(node.output))


def part(model: onnx.ModelProto, outputs: list[str], inputs: frozenset[str]) -> onnx.ModelProto:
    """Return the part of the model that computes some tensors from the model's inputs and from further tensors.

    Args:
        model: the model.
        outputs: names of the tensors to compute.
        inputs: names of the tensors that become inputs, in addition to the model's inputs.
    """
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    needed, nodes = set(outputs), []
    for node in reversed(graph.node):
        if needed & set(node.output) and not inputs & set(node.output):
            nodes.insert(0, node)
            needed.update(names_read(node))
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
