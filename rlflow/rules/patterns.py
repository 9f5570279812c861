"""The patterns that the sides of a rule are made of (tensors, operators, literals), and how they are printed."""

from typing import Any, NamedTuple

from rlflow.rules.expressions import Expression


class Var(NamedTuple):
    """A tensor variable."""

    name: str


class Star(NamedTuple):
    """Any number of inputs."""

    name: str


class Absent(NamedTuple):
    """An optional input that is left out, before others that are given."""


class Literal(NamedTuple):
    """On the left a number that a constant must hold, on the right an expression for a new constant."""

    compute: Expression
    text: str


class Bind(NamedTuple):
    """An attribute that binds a name, or must equal what the name is bound to."""

    name: str


class Op(NamedTuple):
    """One operator of a side. `key` separates instances, so that two outputs can be of one node."""

    key: int
    op: str
    domain: str
    inputs: tuple
    attributes: tuple[tuple[str, Any], ...]  # (name, Bind | Expression)
    rest: str | None


class Output(NamedTuple):
    """Output number `slot` of an operator; slot None stands for all outputs of a `*ys = Op(…)`."""

    op: Op
    slot: int | None


def walk(pattern):
    """All patterns under one, itself included."""
    pattern = pattern.op if isinstance(pattern, Output) else pattern
    yield pattern
    if isinstance(pattern, Op):
        for child in pattern.inputs:
            yield from walk(child)


def ops_of(outputs) -> dict[int, Op]:
    result = {}
    for _, output in outputs:
        for pattern in walk(output):
            if isinstance(pattern, Op):
                result.setdefault(pattern.key, pattern)
    return result


def variables_of(outputs) -> set[str]:
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
    pattern = pattern.op if isinstance(pattern, Output) else pattern
    return 1 + max((depth_of(i) for i in pattern.inputs), default=0) if isinstance(pattern, Op) else 0


def paths_of(op: Op):
    yield (op.op,)
    for child in op.inputs:
        if isinstance(child, Output):
            for path in paths_of(child.op):
                yield (*path, op.op)


def substituted(pattern, tensors: dict):
    """Replaces tensor-valued `let` names by what they stand for."""
    match pattern:
        case Var(name) if name in tensors:
            return tensors[name]
        case Output(op, slot):
            return Output(op._replace(inputs=tuple(substituted(i, tensors) for i in op.inputs)), slot)
    return pattern


def skeleton(pattern):
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
    """The canonical text of one direction of a rule."""
    sides = [" ; ".join(f"{n} = {print_pattern(p)}" for n, p in side) for side in (source, target)]
    return "\n  ".join([f"{name}:", f"{sides[0]} => {sides[1]}", *clauses])


def print_pattern(pattern) -> str:
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
