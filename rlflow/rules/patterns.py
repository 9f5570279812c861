"""The classes of patterns (tensors, operators, literals) that make up the two sides of a rule, and their text."""

from typing import Any, NamedTuple

from rlflow.rules.expressions import Expression


class Var(NamedTuple):
    """A variable that stands for one tensor."""

    name: str


class Star(NamedTuple):
    """A variable that stands for any number of consecutive inputs of an operator."""

    name: str


class Absent(NamedTuple):
    """An optional input that is omitted although a later input is present, written `None` in rule files."""


class Literal(NamedTuple):
    """A value: in a source pattern the value that a constant must hold, in a target the value of a new constant.

    Attributes:
      compute: expression that gives a number, tuple or array.
      text: the expression as the rule file contains it.
      computed: True for a list of sizes, written `computed(…)`, that new operators may compute (size_operands.py). This
        is no part of the rule's canonical text, because a proof holds however a list is computed.
    """

    compute: Expression
    text: str
    computed: bool = False


class Bind(NamedTuple):
    """The value of an attribute as a name: a first use binds the name, a further use must have the bound value."""

    name: str


class Op(NamedTuple):
    """One operator of a side.

    Attributes:
      key: number of the operator; two patterns with the same key stand for the same node.
      op, domain: name and domain; "" is ONNX's own domain.
      inputs: patterns of the inputs.
      attributes: (attribute name, Bind or Literal) pairs.
      rest: name that binds all attributes without a pair, or None if such attributes must have default values.
    """

    key: int
    op: str
    domain: str
    inputs: tuple
    attributes: tuple[tuple[str, Any], ...]
    rest: str | None


class Output(NamedTuple):
    """The output with index `slot` of an operator. Slot None stands for all outputs, as in `*ys = Op(…)`."""

    op: Op
    slot: int | None


def walk(pattern):
    """Yield a pattern and all patterns of its inputs, recursively; an Output is replaced by its operator."""
    pattern = pattern.op if isinstance(pattern, Output) else pattern
    yield pattern
    if isinstance(pattern, Op):
        for child in pattern.inputs:
            yield from walk(child)


def ops_of(outputs) -> dict[int, Op]:
    """Return key → operator for the distinct operators in (output name, pattern) pairs, in depth-first order."""
    result = {}
    for _, output in outputs:
        for pattern in walk(output):
            if isinstance(pattern, Op):
                result.setdefault(pattern.key, pattern)
    return result


def variables_of(outputs) -> set[str]:
    """Return the names of all tensor variables and bound attributes in (output name, pattern) pairs."""
    names = set()
    for _, output in outputs:
        for pattern in walk(output):
            match pattern:
                case Var(name) | Star(name):
                    names.add(name)
                case Op(attributes=attributes, rest=rest):
                    names |= {bound.name for _, bound in attributes if isinstance(bound, Bind)}
                    names |= {rest} if rest else set()
    return names


def depth_of(pattern) -> int:
    """Return the number of operators on the longest path from a pattern down to a variable or literal."""
    pattern = pattern.op if isinstance(pattern, Output) else pattern
    return 1 + max((depth_of(i) for i in pattern.inputs), default=0) if isinstance(pattern, Op) else 0


def paths_of(op: Op):
    """Yield the operator names on each path up to `op` that starts at `op` or at an operator below it."""
    yield (op.op,)
    for child in op.inputs:
        if isinstance(child, Output):
            for path in paths_of(child.op):
                yield (*path, op.op)


def substituted(pattern, tensors: dict):
    """Return a pattern in which the names that `let` clauses define as tensors are replaced by their definitions.

    Args:
      pattern: a pattern of the target side.
      tensors: `let` name → the pattern that defines the name.
    """
    match pattern:
        case Var(name) if name in tensors:
            return tensors[name]
        case Output(op, slot):
            return Output(op._replace(inputs=tuple(substituted(i, tensors) for i in op.inputs)), slot)
    return pattern


def skeleton(pattern):
    """Return operators, connections and attribute names of a pattern without variable names, for comparisons."""
    if isinstance(pattern, Output):
        return pattern.slot, skeleton(pattern.op)
    if not isinstance(pattern, Op):
        return type(pattern).__name__
    return (
        pattern.domain,
        pattern.op,
        tuple(skeleton(i) for i in pattern.inputs),
        tuple(n for n, _ in pattern.attributes),
    )


def print_rule(name: str, source, target, clauses=()) -> str:
    """Return the canonical text of one direction of a rule.

    Args:
      name: the rule's name.
      source, target: (output name, pattern) pairs.
      clauses: the `let` and `if` clauses of this direction, as the file contains them.
    """
    sides = [" ; ".join(f"{n} = {print_pattern(p)}" for n, p in side) for side in (source, target)]
    return "\n  ".join([f"{name}:", f"{sides[0]} => {sides[1]}", *clauses])


def print_pattern(pattern) -> str:
    """Return a pattern in the syntax of the rule files."""
    match pattern:
        case Var(name):
            return name
        case Star(name):
            return f"*{name}"
        case Literal(text=text):
            return text
        case Absent():
            return "None"
        case Output(op, slot):
            return print_pattern(op) + ("" if slot == 0 else ".*" if slot is None else f".{slot}")
        case Op(op=op, domain=domain, inputs=inputs, attributes=attributes, rest=rest):
            parts = [print_pattern(i) for i in inputs]
            parts += [f"{n}={v.name if isinstance(v, Bind) else v.text}" for n, v in attributes]
            parts += [f"**{rest}"] if rest else []
            return f"{domain + '.' if domain else ''}{op}({', '.join(parts)})"
    raise TypeError(pattern)
