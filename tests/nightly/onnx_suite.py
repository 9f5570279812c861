"""Check of loading, saving and rewriting on every backend test of the onnx package that ONNX Runtime passes.

    python -m tests.nightly.onnx_suite [--kind KIND]

For each data set of a test, symbolic dimensions are bound to the sizes of the data. Then three checks follow.

1. ONNX Runtime runs the original model. If it refuses the model or gives other outputs than ONNX expects, the test is
   counted as not run, with the reason.
2. The model is loaded and saved. Each saved node must equal a node of the original, including all attributes, and the
   outputs must equal the original's bit for bit.
3. Up to 20 random valid rewrites are applied. The ONNX checker must accept the result. Its outputs must be equal;
   floating-point elements may differ by a tolerance relative to the largest element.

A test with an IR version or opset that ONNX Runtime does not know is tried again with the newest known version. Each
test is also tried with all inputs but the first turned into weights, so that rules find constants to fold. If a model
draws random numbers, only data types and shapes of its outputs are compared.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from rlflow.common.errors import RLFlowError, first_line
from rlflow.costs.analytic import AnalyticCost
from rlflow.env.state import Task
from rlflow.graph.bodies import inlined
from rlflow.graph.ir import Graph
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.language import RuleSet, families, load_rules
from tests.nightly import parser
from tests.nightly.onnx_cases import KINDS, Case, Difference, compare, flat, load_cases, outputs_of

REWRITES = 20  # most random rewrites of a model
IR_VERSION, OPSET = 13, 26  # the newest versions that ONNX Runtime 1.31 knows
TOLERANCE = 1e-4  # largest accepted relative error after rewrites, except for the data types of TOLERANCES
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2}
# Part of an error message of ONNX Runtime → reason under which the test is counted as not run.
REASONS = {
    "max supported IR version": "the IR version is newer than ONNX Runtime's",
    "under development": "the opset is newer than ONNX Runtime's",
    "is not a registered function/op": "ONNX Runtime does not know the operator",
    "NOT_IMPLEMENTED": "ONNX Runtime has no kernel",
    "INVALID_GRAPH": "ONNX Runtime finds the model invalid",
    "Type Error": "ONNX Runtime finds the model invalid",
    "Failed to construct locale": "the machine lacks a locale",
    "rejects the model": "a kernel refuses its attributes",
    "cannot run the model": "a kernel refuses its inputs",
}


class Outcome(NamedTuple):
    """The result of a backend test.

    Attributes:
        verdict: "equal", "equal in type and shape", "not run" or "failed".
        reason: the reason of "not run" or "failed", otherwise "".
        applied: names of the rules of all rewrites.
    """

    verdict: str
    reason: str = ""
    applied: tuple[str, ...] = ()


class NotRun(Exception):
    """Raised if ONNX Runtime does not pass a test with the original model; the message is the reason."""


def examine(case: Case, rules: RuleSet, seed: int = 0) -> Outcome:
    applied: list[str] = []
    try:
        for inputs, expected in case.data_sets:
            applied += round_trip(case, rules, seed, inputs, run_original(case, inputs, expected))
    except NotRun as error:
        return Outcome("not run", str(error))
    except Exception as error:  # any other exception is a failure of RLFlow
        return Outcome("failed", f"{type(error).__name__}: {first_line(error)}")
    return Outcome("equal in type and shape" if case.random else "equal", applied=tuple(applied))


def run_original(case: Case, inputs: list, expected: list) -> list:
    """Return ONNX Runtime's outputs of the original model.

    Args:
        case: the test.
        inputs: the inputs of a data set.
        expected: the expected outputs.

    Raises:
        NotRun: ONNX Runtime does not run the model, or its outputs are not the expected ones.
    """
    try:
        result = outputs_of(case.model, inputs)
    except RLFlowError as error:
        known = [text for sign, text in REASONS.items() if sign in str(error)]
        if not known:
            raise
        raise NotRun(known[0]) from error
    try:
        compare(expected, result, 0, 0, values=False)
        if not case.random:
            Runner.assert_similar_outputs(flat(expected), flat(result), case.rtol, case.atol)
    except (AssertionError, Difference) as error:
        raise NotRun("ONNX Runtime gives other values than ONNX expects") from error
    return result


def round_trip(case: Case, rules: RuleSet, seed: int, inputs: list, before: list) -> list[str]:
    """Load and save a model, then apply random rewrites, and compare the outputs after both.

    Args:
        case: the test.
        rules: the rule set.
        seed: seed of the rewrites.
        inputs: the inputs of a data set.
        before: the outputs of the original model.

    Returns:
        The names of the rules of all rewrites.

    Raises:
        Difference: saving changes a node, or saving or the rewrites change an output.
    """
    graph = load_graph(case.model, symbolic_sizes(case.model, inputs))
    saved = to_model(graph)
    carried_through(case.model, saved)
    compare(before, outputs_of(saved, inputs), 0, 0, values=not case.random)
    rewritten, applied = substituted(graph, rules, f"{seed} {case.name}")
    if applied:
        after = to_model(rewritten)
        onnx.checker.check_model(after)
        for a, b in zip(before, outputs_of(after, inputs), strict=True):
            tolerance = TOLERANCES.get(str(getattr(a, "dtype", "")), TOLERANCE)
            compare(a, b, tolerance, case.atol, values=not case.random)
    return applied


def symbolic_sizes(model: onnx.ModelProto, inputs: list) -> dict[str, tuple[int, ...]]:
    """Return name → shape of each input that has a symbolic dimension, as an argument of `load_graph`."""
    initialised = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in initialised]
    return {
        value.name: given.shape
        for value, given in zip(values, inputs, strict=False)
        if any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }


def carried_through(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Raise Difference if a node of the model `after` equals no node of the model `before`."""
    before, _ = inlined(before)
    added = Counter(map(_text, _all_nodes(after.graph))) - Counter(map(_text, _all_nodes(before.graph)))
    if added:
        raise Difference(f"{onnx.NodeProto.FromString(next(iter(added))).op_type} is not as it was")


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs in their attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)


def _text(node: onnx.NodeProto) -> bytes:
    """Return the serialised node with sorted attributes, without the nodes and weights of graphs in its attributes.

    The domain "ai.onnx" is written as "".
    """
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        del attribute.g.node[:], attribute.g.initializer[:]
        if attribute.type != attribute.GRAPH:
            attribute.ClearField("g")
    copy.domain = "" if node.domain == "ai.onnx" else node.domain
    copy.attribute.sort(key=lambda attribute: attribute.name)
    return copy.SerializeToString(deterministic=True)


def substituted(graph: Graph, rules: RuleSet, seed: str) -> tuple[Graph, list[str]]:
    """Apply up to REWRITES random rewrites and return (the graph after them, the names of their rules).

    Args:
        graph: the graph.
        rules: the rule set.
        seed: a text that determines the rewrites.
    """
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]))
    state, applied = Task(graph, rules, AnalyticCost()).initial, []
    for _ in range(REWRITES):
        actions = state.valid_actions()[:-1]
        if not len(actions):
            break
        xfer_id, location = map(int, rng.choice(actions))
        state = state.apply(xfer_id, location)
        applied.append(rules[xfer_id].name)
    return state.graph, applied


# -- forms of a case -------------------------------------------------------------------------------


def forms(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield (name of the form, case) for the case itself and for its changed forms (see the module docstring)."""
    yield "as it is", case
    known = stamped_older(case)
    if known is not None:
        yield "stamped older", known
    weighted = with_weights(known or case)
    if weighted is not None:
        yield "with weights", weighted


def stamped_older(case: Case) -> Case | None:
    """Return the case with IR version and opset lowered to IR_VERSION and OPSET; None if both are not higher."""
    if case.model.ir_version <= IR_VERSION and all(o.domain or o.version <= OPSET for o in case.model.opset_import):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, IR_VERSION)
    for opset in model.opset_import:
        opset.version = opset.version if opset.domain else min(opset.version, OPSET)
    return case._replace(model=model)


def with_weights(case: Case) -> Case | None:
    """Return the case with all tensor inputs but the first turned into initialisers; None if there is no such input.

    The initialisers have the values of the first data set.
    """
    inputs, expected = case.data_sets[0]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = max(model.ir_version, 4)
    initialised = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in initialised]
    fixed = {k for k, given in enumerate(inputs) if k and isinstance(given, np.ndarray)}
    del model.graph.input[:]
    model.graph.input.extend(value for k, value in enumerate(values) if k not in fixed)
    model.graph.initializer.extend(numpy_helper.from_array(inputs[k], values[k].name) for k in sorted(fixed))
    kept = [given for k, given in enumerate(inputs) if k not in fixed]
    return case._replace(model=model, data_sets=[(kept, expected)]) if fixed else None


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--kind", action="append", choices=KINDS, help="one kind of tests only; repeatable")
    parsed = arguments.parse_args()
    rules, verdicts, reasons, rewrites, failures = load_rules(families()), Counter(), Counter(), 0, []
    for case in load_cases(parsed.kind or KINDS):
        for form, changed in forms(case):
            result = examine(changed, rules, parsed.seed)
            verdicts[result.verdict] += 1
            rewrites += len(result.applied)
            if result.verdict == "not run":
                reasons[result.reason] += 1
            if result.verdict == "failed":
                failures.append(f"{case.name}, {form}: {result.reason}")
    print(*failures, *(f"not run: {reason}: {n}" for reason, n in reasons.most_common()), sep="\n", file=sys.stderr)
    equal = verdicts["equal"] + verdicts["equal in type and shape"]
    print(
        f"{verdicts.total():,} runs, {equal:,} equal, {verdicts['not run']} not run by ONNX Runtime, {rewrites:,} "
        f"rewrites (seed {parsed.seed}), {len(failures)} failures"
    )
    return int(bool(failures) or not equal)


if __name__ == "__main__":
    sys.exit(main())
