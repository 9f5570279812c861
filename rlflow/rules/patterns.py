"""The patterns that make up the two sides of a rule (tensors, operators, literals), and their printed form."""

from typing import Any, NamedTuple

from rlflow.rules.expressions import Expression


class Var(NamedTuple):
    """A tensor variable."""

    name: str


class Star(NamedTuple):
    """A variable that stands for any number of inputs."""

    name: str


class Absent(NamedTuple):
    """An optional input that is left out although a later input is given."""


class Literal(NamedTuple):
    """A number: in a source pattern the value that a constant must hold, in a target the value of a new constant."""

    compute: Expression
    text: str


class Bind(NamedTuple):
    """An attribute that binds a name, or that must equal the value which the name is already bound to."""

    name: str


class Op(NamedTuple):
    """One operator of a side. Two patterns with the same `key` stand for the same node."""

    key: int
    op: str
    domain: str
    inputs: tuple
    attributes: tuple[tuple[str, Any], ...]  # (name, Bind | Expression)
    rest: str | None


class Output(NamedTuple):
    """Output number `slot` of an operator. Slot None stands for all outputs of a `*ys = Op(…)`."""

    op: Op
    slot: int | None


def walk(pattern):
    """Yield the pattern and all patterns below it, with an Output replaced by its operator."""
    pattern = pattern.op if isinstance(pattern, Output) else pattern
    yield pattern
    if isinstance(pattern, Op):
        for child in pattern.inputs:
            yield from walk(child)


def ops_of(outputs) -> dict[int, Op]:
    """Return the distinct operators below (name, pattern) pairs: key → operator, in the order of a walk from the
    outputs.
    """
    result = {}
    for _, output in outputs:
        for pattern in walk(output):
            if isinstance(pattern, Op):
                result.setdefault(pattern.key, pattern)
    return result


def variables_of(outputs) -> set[str]:
    """Return the names of all tensor variables and bound attributes below (name, pattern) pairs."""
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
    """Return the number of operators on the longest path below a pattern."""
    pattern = pattern.op if isinstance(pattern, Output) else pattern
    return 1 + max((depth_of(i) for i in pattern.inputs), default=0) if isinstance(pattern, Op) else 0


def paths_of(op: Op):
    """Yield the operator names on each path from an operator of the pattern up to `op`."""
    yield (op.op,)
    for child in op.inputs:
        if isinstance(child, Output):
            for path in paths_of(child.op):
                yield (*path, op.op)


def substituted(pattern, tensors: dict):
    """Return the pattern with tensor-valued `let` names replaced by their definitions.

    Args:
      pattern: a pattern of the target side.
      tensors: `let` name → the pattern that defines it.
    """
    match pattern:
        case Var(name) if name in tensors:
            return tensors[name]
        case Output(op, slot):
            return Output(op._replace(inputs=tuple(substituted(i, tensors) for i in op.inputs)), slot)
    return pattern


def skeleton(pattern):
    """Return the structure of a pattern without variable names, for comparing two patterns."""
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
      clauses: the `let` and `if` clauses as they are written in the file.
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
