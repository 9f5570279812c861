"""Cases of generated rules, made from the rules themselves: the generator draws operands for the left side.

python -m tests.rules.drawn_cases          writes tests/rules/generated_cases.py
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from rlflow.common.errors import RLFlowError
from rlflow.graph.onnx_reader import load_graph
from rlflow.proving.generator.attributes import APART, Names
from rlflow.proving.generator.generalise import draws
from rlflow.proving.generator.graphs import GROUPED, IMAGE, KERNEL, PADS
from rlflow.proving.generator.operators import Label, Named, Node, Term, label, variables
from rlflow.proving.generator.selection import FAMILY
from rlflow.rules.language import families, load_rules
from rlflow.rules.locations import explain
from rlflow.rules.patterns import Bind, Output
from rlflow.rules.rule import Rule, RuleSet
from tests.rules.instances import Case, instantiate

TARGET = Path(__file__).parent / "generated_cases.py"
HEADER = '''"""Where each generated rule fires, and look-alikes (written by `python -m tests.rules.drawn_cases`)."""

from tests.rules.instances import case

GENERATED = [
'''
FIRING = 3
WIDTH = 120  # of a line
OTHERS = (
    dict(auto_pad="SAME_UPPER"), dict(ceil_mode=1), dict(dilations=[2, 1]), dict(group=2), dict(strides=[2, 2]),
    dict(pads=PADS),
)  # fmt: skip
KERNELS = {"Conv": {}, "MaxPool": dict(kernel_shape=(3, 3)), "AveragePool": dict(kernel_shape=(3, 3))}
WINDOWS = {op: (label(op, pads=PADS, **kernel), label(op, **kernel)) for op, kernel in KERNELS.items()}


# Cases for reasons that no drawn case meets.
MORE = [
    Case("matmul-of-concats", dict(x="2x3x2", y="@x", z="2x2", w="@z", i=2, j=0), "the operands have different ranks"),
    Case("conv-by-product", dict(x="1x2x3x3", y="1x1x1x1", z="2x3x3", a={}), "the operands have different ranks"),
    Case("product-of-conv", dict(x="", y="1x2x3", z="2x2x3", a={}), "an operand has another number of axes"),
]


def drawn(rule: Rule, rules: RuleSet) -> list[Case]:
    """Return a few cases in which the rule fires, and one refusal for every reason."""
    fires: list[Case] = []
    refuses: dict[str, Case] = {}
    wanted = {condition.reason for condition in rule.conditions}
    for case in candidates(rule):
        for tried in [case] if wanted <= set(refuses) else [case, *look_alikes(case, rule)]:
            matches, reasons = answer(tried, rules)
            if matches and tried is case and len(fires) < FIRING and str(case) not in map(str, fires):
                fires.append(case)
            new = [reason for reason in reasons if reason not in refuses and not matches]
            if new and str(tried) not in map(str, refuses.values()):
                refuses[new[0]] = Case(rule.name, tried.values, new[0])
        if len(fires) == FIRING and wanted <= set(refuses):
            break
    return fires + [refuses[reason] for reason in sorted(wanted & set(refuses))]


def answer(case: Case, rules: RuleSet) -> tuple[bool, list[str]]:
    """Return (whether the rule fires, the reasons of its refusals); (False, []) if ONNX refuses the left side."""
    try:
        matches, refusals = explain(load_graph(instantiate(case, rules)), rules, case.rule)
    except (onnx.shape_inference.InferenceError, RLFlowError):
        return False, []
    return bool(matches), [refusal.reason for refusal in refusals]


def candidates(rule: Rule) -> Iterator[Case]:
    """Yield cases for the left side, with all weights constant."""
    terms = tuple(term_of(output) for _, output in rule.source)
    apart = next((name for name, result in APART.items() if result.name in rule.attribute_names), None)
    origin = {v: () if f"size({v}) == 1" in rule.text else shape_of(v, terms) for v in variables(*terms)}
    for scope, _ in draws(terms, Names(dict(called(terms)), apart), origin):
        names = (*rule.tensor_names, *rule.attribute_names)
        yield Case(rule.name, {name: value_of(scope[name], name in weights_of(rule)) for name in names})


def look_alikes(case: Case, rule: Rule) -> Iterator[Case]:
    """Yield the case with one weight as an input of the model, or with other attributes of a window."""
    for name in sorted(weights_of(rule)):
        value = case.values[name]
        given = f"{len(value)}:int64" if isinstance(value, list) else value.lstrip("=")
        yield Case(rule.name, case.values | {name: given})
    halved = {name: re.sub(r"^(=?\d+x)(\d+)(x\d+x\d+)$", lambda m: f"{m[1]}{int(m[2]) // 2}{m[3]}", value)
              for name, value in case.values.items() if name != "x" and isinstance(value, str)}  # fmt: skip
    for rest in (name for name, value in case.values.items() if isinstance(value, dict)):
        for attributes in OTHERS:
            kept = {k: v for k, v in case.values[rest].items() if k != "pads" or "auto_pad" not in attributes}
            values = case.values | (halved if "group" in attributes else {})
            yield Case(rule.name, values | {rest: kept | attributes})


def weights_of(rule: Rule) -> set[str]:
    return set(re.findall(r"\w+", " ".join(re.findall(r"if constant\(([\w, ]+)\)", rule.text))))


def value_of(result, constant: bool):
    """Return the value of a name as `case` expects it: the sizes of a Split are a list, attributes of a window a
    dict."""
    if isinstance(result, np.ndarray):
        return ("=" if constant else "") + "x".join(map(str, result.shape[1:]))
    if isinstance(result, tuple) and result and isinstance(result[0], tuple):
        return {name: list(value) if isinstance(value, tuple) else value for name, value in result}
    return list(result) if isinstance(result, tuple) and constant else (result if result != () else {})


def term_of(pattern) -> Term:
    """Return a side of a rule as a term of the generator."""
    if not isinstance(pattern, Output):
        return pattern.name
    op = pattern.op
    attributes = {name: Named(value.name if isinstance(value, Bind) else value.text) for name, value in op.attributes}
    attributes |= {"rest": Named(op.rest)} if op.rest else {}
    if op.op == "Split":
        attributes["parts"] = Named(op.inputs[1].name)
    inputs = op.inputs[:1] if op.op == "Split" else op.inputs
    return Node(Label(op.op, tuple(attributes.items())), tuple(map(term_of, inputs)), pattern.slot)


def called(terms: tuple[Term, ...]) -> Iterator[tuple[tuple, str]]:
    """Yield (kind, value in the enumerated graph) and name for every attribute that has a name."""
    kinds = {"axis": iter((1, 0, 2)), "perm": iter(((1, 0), (0, 1)))}
    windows = {op: iter(result) for op, result in WINDOWS.items()}
    seen: set[str] = set()
    for result in labels(terms):
        for name, named in result.attributes:
            if named.text not in seen and named.text.isidentifier():
                seen.add(named.text)
                if name in kinds:
                    yield (name, next(kinds[name])), named.text
                elif name == "rest":
                    yield ("rest", next(windows[result.op])), named.text
                elif name == "parts":
                    yield ("sizes", named.text), named.text


def labels(terms: tuple[Term, ...]) -> Iterator[Label]:
    for term in terms:
        if isinstance(term, Node):
            yield from labels(term.inputs)
            yield term.label


def shape_of(variable: str, terms: tuple[Term, ...]) -> tuple[int, ...]:
    """Return the shape of a variable in the enumerated worlds: the shape of an image, a weight or a matrix."""
    result = [shape for term in terms for shape in _roles(variable, term, None)]
    windows = any(label.op in WINDOWS for label in labels(terms))
    return next((shape for shape in result if shape), IMAGE if windows else (2, 2))


def _roles(variable: str, term: Term, shape) -> Iterator[tuple | None]:
    if isinstance(term, str):
        if term == variable:
            yield shape
        return
    for position, child in enumerate(term.inputs):
        grouped = any(name == "group" for name, _ in term.label.attributes)
        role = (IMAGE, GROUPED if grouped else KERNEL)[position] if term.label.op == "Conv" else shape
        yield from _roles(variable, child, role)


def line(case: Case) -> str:
    arguments = [repr(case.rule), *([repr(case.reason)] if case.reason else [])]
    arguments += [f"{name}={value!r}" for name, value in case.values.items()]
    lines = ["    case("]
    for position, argument in enumerate(arguments):
        argument += ", " if position < len(arguments) - 1 else "),"
        if len((lines[-1] + argument).rstrip()) > WIDTH:
            lines.append(" " * 9)
        lines[-1] += argument
    return "".join(f"{text.rstrip()}\n" for text in lines)


def main() -> int:
    rules = load_rules(families())
    result = [case for rule in rules if rule.family == FAMILY for case in drawn(rule, rules)]
    result = list({str(case): case for case in [*result, *MORE]}.values())
    TARGET.write_text("".join([HEADER, *map(line, result), "]  # fmt: skip\n"]).replace("'", '"'))
    return 0


if __name__ == "__main__":
    sys.exit(main())
