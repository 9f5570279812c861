"""Read and write expressions and programs as s-expressions of the ksc language.

A file of programs holds definitions. A definition may call the ones before it:

    (edef tanh Float (Float))                     a function that is defined elsewhere
    (def cost$tanh Float (x : Float) 8.0)         the cost of one call of it
    (def scal (Vec Float) ((a : Float) (v : Vec Float))
      (build (size v) (lam (i : Integer) (mul a (index i v)))))

`parse_programs` returns one program for each definition. As in Knossos, a program is a chain of `let`s around the name
of its function, `(let (scal (lam (arg : (Tuple Float (Vec Float))) …)) scal)`. The chain holds the definitions that the
program needs, so that rules can inline calls and delete definitions. A function of several arguments takes one tuple.
`let`s in its body name the parts of the tuple; the last parameter has the outermost `let`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import counted
from rlflow.tasks.expressions.expr import (
    ARITY,
    BINDERS,
    BOOL,
    FLOAT,
    INTEGER,
    Expr,
    constant,
    is_function,
    is_tuple,
    make,
    type_text,
    vec,
)  # fmt: skip

UNITS = 10_000  # units of cost for a cost of 1, see `cost`
CALL_OF_UNKNOWN = 7 * UNITS  # cost of a function without a definition of its cost
# Name → type of the free variables of an expression that stands alone.
FREE_TYPES = {
    **dict.fromkeys("ijk", INTEGER), **dict.fromkeys("xyzab", FLOAT), "p": BOOL, **dict.fromkeys("uvw", vec(FLOAT)),
}  # fmt: skip
BUILT_IN = {"add$vfvf": Expr.external("add$vfvf", ("Lam", ("Tuple", vec(FLOAT), vec(FLOAT)), vec(FLOAT)), 18 * UNITS)}
COLUMNS = 100  # longest line that the printer writes where it can break the line

_TOKEN = re.compile(r";[^\n]*|\s+|([()])|([^\s();]+)")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_GET = re.compile(r"get\$(\d+)\$(\d+)")
_DEFAULT_NAMES = {"let": "t", "lam": "arg", "build": "i", "sumbuild": "i"}


@dataclass(frozen=True)
class Program:
    """A program, or an expression that stands alone.

    Attributes:
      name: name of the function; "" for an expression that stands alone.
      expr: a chain of `let`s of functions that ends with the last function, or the expression.
    """

    name: str
    expr: Expr


def read_lists(text: str) -> list:
    """Return the s-expressions of a text as nested lists of strings.

    Raises:
      RLFlowError: the parentheses do not match.
    """
    stack: list[list] = [[]]
    for match in _TOKEN.finditer(text):
        if match[1] == "(":
            stack.append([])
        elif match[1] == ")":
            if len(stack) == 1:
                raise RLFlowError("the text closes more parentheses than it opens")
            closed = stack.pop()
            stack[-1].append(closed)
        elif match[2]:
            stack[-1].append(match[2])
    if len(stack) > 1:
        raise RLFlowError(f"the text leaves {len(stack) - 1} parentheses open")
    return stack[0]


def parse_type(part):
    """Return the type that an s-expression such as ["Vec", "Float"] names; brackets around one type have no meaning."""
    while isinstance(part, list) and len(part) == 1:
        part = part[0]
    if isinstance(part, str):
        return ("Tuple",) if part == "Tuple" else part
    if not part or not isinstance(part[0], str):
        raise RLFlowError(f"{show(part)} is not a type")
    if part[0] == "Tensor" and part[1] == "1":
        return vec(parse_type(part[2]))
    if part[0] == "Vec":
        return vec(parse_type(part[1:]))
    return (part[0], *map(parse_type, part[1:]))


def show(part) -> str:
    """Return nested lists as an s-expression."""
    return part if isinstance(part, str) else f"({' '.join(map(show, part))})"


class Parser:
    """A parser of expressions.

    Args:
      names: name → the external of this name.
    """

    def __init__(self, names: Mapping[str, Expr]):
        self.names = names

    def parse(self, part, bound: tuple = ()) -> Expr:
        """Return the expression of an s-expression.

        Args:
          part: the result of `read_lists` for one expression.
          bound: (name, type) of each binder around it, the innermost first.

        Raises:
          RLFlowError: the text is not an expression, a name is unknown, or types do not fit.
        """
        if isinstance(part, str):
            return self._atom(part, bound)
        if not part:
            raise RLFlowError("() is not an expression")
        head, rest = part[0], part[1:]
        if not isinstance(head, str):
            if rest:
                raise RLFlowError(f"only a name can be called, not {show(head)}")
            return self.parse(head, bound)
        if special := getattr(self, f"_{head}", None) if head in _SPECIAL else None:
            return special(rest, bound)
        args = [self.parse(arg, bound) for arg in rest]
        if match := _GET.fullmatch(head):
            is_fit = len(args) == 1 and is_tuple(args[0].type) and len(args[0].type) - 1 == int(match[2])
            if not is_fit or not 1 <= int(match[1]) <= int(match[2]):
                raise RLFlowError(f"{head} needs one tuple of {match[2]} parts")
            return make("get", *args, value=int(match[1]) - 1)
        if head in _SUGAR:
            count, build = _SUGAR[head]
            if len(args) != count:
                raise RLFlowError(f"{head} takes {counted(count, 'argument')}, not {len(args)}")
            return build(*args)
        if head in ARITY:
            return make(head, *args)
        function = self._atom(head, bound)
        if not args:
            return function
        return make("apply", function, args[0] if len(args) == 1 else make("tuple", *args))

    def _atom(self, text: str, bound: tuple) -> Expr:
        for index, (name, kind) in enumerate(bound):
            if name == text:
                return Expr.variable(index, kind)
        if text in ("true", "false"):
            return constant(text == "true")
        if _NUMBER.fullmatch(text):
            return constant(int(text)) if re.fullmatch(r"[-+]?\d+", text) else constant(float(text))
        if text in self.names:
            return self.names[text]
        if text == "tuple":
            return make("tuple")
        raise RLFlowError(f"the name '{text}' has no definition")

    def _let(self, rest: list, bound: tuple) -> Expr:
        if len(rest) == 3:  # the older form (let x value body)
            rest = [[rest[0], rest[1]], rest[2]]
        if len(rest) != 2 or not rest[0]:
            raise RLFlowError("a let is written (let (name value) body)")
        bindings = rest[0] if isinstance(rest[0][0], list) else [rest[0]]
        if any(len(one) != 2 for one in bindings):
            raise RLFlowError(f"{show(rest[0])} is not (name value)")
        values, inner = [], bound
        for name, value in bindings:
            values.append(self.parse(value, inner))
            inner = ((name, values[-1].type), *inner)
        result = self.parse(rest[1], inner)
        for (name, _), value in zip(reversed(bindings), reversed(values), strict=True):
            result = make("let", value, result, hint=name)
        return result

    def _lam(self, rest: list, bound: tuple) -> Expr:
        if len(rest) != 2:
            raise RLFlowError("a lam is written (lam (name : type) body)")
        name, kind = _parameter(rest[0])
        return make("lam", self.parse(rest[1], ((name, kind), *bound)), value=kind, hint=name)

    def _build(self, rest: list, bound: tuple, op: str = "build") -> Expr:
        if len(rest) != 2 or len(rest[1]) != 3 or rest[1][0] != "lam":
            raise RLFlowError(f"{op} is written ({op} size (lam (i : Integer) element))")
        _, variable, body = rest[1]
        name = variable if isinstance(variable, str) else _parameter(variable)[0]
        return make(op, self.parse(rest[0], bound), self.parse(body, ((name, INTEGER), *bound)), hint=name)

    def _sumbuild(self, rest: list, bound: tuple) -> Expr:
        return self._build(rest, bound, "sumbuild")


_SPECIAL = ("let", "lam", "build", "sumbuild")
_SUGAR = {  # name → (number of arguments, expression that it stands for)
    "neg": (1, lambda x: make("sub", constant(0.0), x)),
    "lt": (2, lambda x, y: make("gt", y, x)),
    "lte": (2, lambda x, y: make("gte", y, x)),
    "or": (2, lambda x, y: make("if", x, constant(True), y)),
    "and": (2, lambda x, y: make("if", x, y, constant(False))),
}


def _parameter(part) -> tuple[str, object]:
    if not isinstance(part, list) or len(part) < 3 or part[1] != ":":
        raise RLFlowError(f"{show(part)} is not a parameter; write (name : type)")
    return part[0], parse_type(part[2:])


def parse_expression(text: str) -> Program:
    """Return the program of an expression that stands alone, with the free variables of FREE_TYPES."""
    parts = read_lists(text)
    if len(parts) != 1:
        raise RLFlowError(f"one expression is expected, not {len(parts)}")
    names = BUILT_IN | {name: Expr.external(name, kind) for name, kind in FREE_TYPES.items()}
    return Program("", Parser(names).parse(parts[0]))


def parse_programs(text: str) -> dict[str, Program]:
    """Return the programs of a file: name of each definition, except `main` and costs → its program.

    Raises:
      RLFlowError: the text has an error; the message names the definition.
    """
    names, functions, result = dict(BUILT_IN), {}, {}
    for part in read_lists(text):
        if len(part) < 4 or part[0] not in ("def", "edef"):
            raise RLFlowError(f"(def name type (parameters) body) or an edef is expected, not {show(part)[:60]}")
        name = part[1]
        if not isinstance(name, str) or not isinstance(part[3], list):
            raise RLFlowError(f"(def name type (parameters) body) or an edef is expected, not {show(part)[:60]}")
        if part[0] == "edef":
            if not part[3]:
                raise RLFlowError(f"{name}: an edef names the types of its arguments")
            is_one = len(part[3]) == 1 or part[3][0] in ("Tuple", "Vec", "Tensor")
            args = parse_type(part[3]) if is_one else ("Tuple", *map(parse_type, part[3]))
            names[name] = Expr.external(name, ("Lam", args, parse_type(part[2])), CALL_OF_UNKNOWN)
        elif name != "main":
            try:
                function = _definition(part, names)
            except RLFlowError as error:
                raise RLFlowError(f"{name}: {error}") from error
            if name.startswith("cost$"):
                if (known := names.get(name[5:])) is not None:
                    names[name[5:]] = Expr.external(name[5:], known.type, _declared_cost(name, function))
                continue
            functions[name] = function
            names[name] = Expr.external(name, function.type)
            result[name] = Program(name, _chain(name, functions))
    return result


def _declared_cost(name: str, function: Expr) -> int:
    body = function.args[0]
    while body.op == "let":
        body = body.args[1]
    if body.op != "constant":
        raise RLFlowError(f"{name}: the cost of a call must be a number")
    return round(body.value * UNITS)


def _definition(part: list, names: Mapping[str, Expr]) -> Expr:
    """Return the function of (def name type (parameters) body)."""
    if len(part) != 5:
        raise RLFlowError("a definition is written (def name type (parameters) body)")
    _, _, declared, listed, body = part
    parameters = [_parameter(one) for one in ([listed] if len(listed) > 1 and listed[1] == ":" else listed)]
    if len(parameters) == 1:
        (name, kind), wrap = parameters[0], []
    else:
        name, kind, wrap = None, ("Tuple", *(kind for _, kind in parameters)), parameters
    result = Parser(names).parse(body, tuple(wrap) or ((name, kind),))
    for depth, (hint, _) in enumerate(wrap):  # the first parameter has the innermost let
        place = Expr.variable(len(wrap) - 1 - depth, kind)
        result = make("let", make("get", place, value=depth), result, hint=hint)
    wanted = parse_type(declared)
    if result.type != wanted:
        raise RLFlowError(f"the declared type is {type_text(wanted)}, and the body has {type_text(result.type)}")
    return make("lam", result, value=kind, hint=name)


def _chain(name: str, functions: Mapping[str, Expr]) -> Expr:
    """Return the `let`s of a function and all functions that it calls, in the order of the file."""
    needed, order = {name}, []
    for each in reversed(functions):
        if each in needed:
            order.append(each)
            needed.update(node.value.name for node in functions[each].nodes() if node.op == "external")
    order.reverse()
    result: Expr = Expr.variable(0, functions[name].type)
    for depth in range(len(order) - 1, -1, -1):
        outer = {each: depth - 1 - k for k, each in enumerate(order[:depth])}
        result = make("let", _bind(functions[order[depth]], outer), result, hint=order[depth])
    return result


def _bind(expr: Expr, outer: Mapping[str, int], depth: int = 0) -> Expr:
    """Replace the externals that are functions of the chain by bound variables.

    Args:
      expr: the expression.
      outer: name of a function of the chain → its de Bruijn index outside all binders of the function's body.
      depth: number of binders between there and `expr`.
    """
    if expr.op == "external" and expr.value.name in outer:
        return Expr.variable(outer[expr.value.name] + depth, expr.type)
    if not expr.args:
        return expr
    under = BINDERS.get(expr.op)
    args = tuple(_bind(arg, outer, depth + (position == under)) for position, arg in enumerate(expr.args))
    return expr.with_args(args)


# -- printing --------------------------------------------------------------------------------------


def to_text(expr: Expr) -> str:
    """Return an expression as one s-expression, with line breaks where a line would be too long."""
    return layout(to_lists(expr))


def to_lists(expr: Expr, bound: tuple = (), used: frozenset = frozenset()):
    """Return an expression as nested lists of strings.

    Args:
      expr: the expression.
      bound: names of the binders around it, the innermost first.
      used: names that binders must not take; empty for `bound` and the names of externals in the expression.
    """
    op = expr.op
    if op == "constant":
        return {True: "true", False: "false"}[expr.value] if expr.type == BOOL else repr(expr.value)
    if op == "variable":
        return bound[expr.value]
    if op == "external":
        return expr.value.name
    used = used or frozenset(node.value.name for node in expr.nodes() if node.op == "external") | frozenset(bound)
    if op in BINDERS:
        name = _fresh(expr, used)
        inner = (name, *bound), used | {name}
    if op == "let":
        return ["let", [name, to_lists(expr.args[0], bound, used)], to_lists(expr.args[1], *inner)]
    if op == "lam":
        return ["lam", [name, ":", type_text(expr.value)], to_lists(expr.args[0], *inner)]
    parts = [to_lists(arg, bound, used) for arg in expr.args if op not in ("build", "sumbuild")]
    if op in ("build", "sumbuild"):
        size, body = expr.args
        return [op, to_lists(size, bound, used), ["lam", [name, ":", INTEGER], to_lists(body, *inner)]]
    if op == "get":
        return [f"get${expr.value + 1}${len(expr.args[0].type) - 1}", *parts]
    if op == "apply":
        unpacked = expr.args[1].op == "tuple" and expr.args[1].args
        return [parts[0], *(parts[1][1:] if unpacked else [parts[1]])]
    return [op, *parts]


def _fresh(expr: Expr, used: frozenset) -> str:
    name = expr.hint or ("f" if expr.op == "let" and expr.args[0].op == "lam" else _DEFAULT_NAMES[expr.op])
    name = name if name not in ARITY and not _NUMBER.fullmatch(name) else f"{name}_"
    number, result = 2, name
    while result in used or result in ARITY or result in _SUGAR:
        number, result = number + 1, f"{name}_{number}"
    return result


def layout(part, indent: int = 0) -> str:
    """Return nested lists as an s-expression that is broken at COLUMNS columns where possible.

    Args:
      part: the nested lists of strings.
      indent: number of columns before the s-expression in its first line.
    """
    line = show(part)
    if isinstance(part, str) or indent + len(line) <= COLUMNS:
        return line
    head, rest = show(part[0]), part[1:]
    if part[0] == "let":  # the body of a let stands under the let
        name, value = rest[0]
        bound = layout(value, indent + 7 + len(name))
        return f"(let ({name} {bound})\n{' ' * (indent + 1)}{layout(rest[1], indent + 1)})"
    if part[0] == "lam":
        return f"(lam {show(rest[0])}\n{' ' * (indent + 2)}{layout(rest[1], indent + 2)})"
    inner = indent + 2
    lines = [layout(each, inner) for each in rest]
    return f"({head}\n" + "\n".join(" " * inner + each for each in lines) + ")"


def program_text(program: Program) -> str:
    """Return a program as a file that `parse_programs` reads to an equal program.

    Raises:
      RLFlowError: the root of the program is not a chain of functions that ends with a function.
    """
    if not program.name:
        return to_text(program.expr) + "\n"
    chain, bound, expr = [], (), program.expr
    while expr.op == "let" and expr.args[0].op == "lam":
        used = frozenset(bound) | _externals(program.expr)
        is_last = expr.args[1].op == "variable"
        name = program.name if is_last and program.name not in used else _fresh(expr, used)
        chain.append((name, expr.args[0], bound))
        bound, expr = (name, *bound), expr.args[1]
    if expr.op == "lam":
        chain.append((program.name, expr, bound))
    elif not (expr.op == "variable" and expr.value == 0 and chain):
        raise RLFlowError("the program is not a chain of functions that ends with a function")
    texts = [*_edefs(program.expr), *(_definition_text(*one) for one in chain)]
    return "\n".join(texts)


def _externals(expr: Expr) -> frozenset:
    return frozenset(node.value.name for node in expr.nodes() if node.op == "external")


def _edefs(expr: Expr) -> list[str]:
    """Return the lines that declare the external functions of a program and the costs of their calls."""
    found = {node.value.name: node for node in expr.nodes() if node.op == "external" and is_function(node.type)}
    lines = []
    for name, node in sorted(found.items()):
        if name not in BUILT_IN:
            _, arg, result = node.type
            lines.append(f"(edef {name} {type_text(result)} ({type_text(arg)}))")
            if node.value.cost != CALL_OF_UNKNOWN:
                lines.append(f"(def cost${name} {FLOAT} (_ : {type_text(arg)}) {node.value.cost / UNITS!r})")
    return lines


def _definition_text(name: str, function: Expr, bound: tuple) -> str:
    """Return one function as a definition, with several parameters if `let`s name the parts of its argument."""
    body, parameters, inner = function.args[0], [], bound
    used = frozenset(bound) | _externals(function) | {name}
    argument = _fresh(function, used)
    parts = len(function.value) - 1 if is_tuple(function.value) else 0
    rest, position = body, parts - 1
    while position >= 0 and rest.op == "let" and rest.args[0].op == "get" and rest.args[0].value == position:
        source = rest.args[0].args[0]
        if source.op != "variable" or source.value != len(parameters):
            break
        parameters.append((_fresh(rest, used), rest.args[0].type))
        used, rest, position = used | {parameters[-1][0]}, rest.args[1], position - 1
    if position < 0 and parts > 1 and not rest.mentions(parts):
        inner, body = (*(name for name, _ in reversed(parameters)), argument, *bound), rest
        listed = [[name, ":", type_text(kind)] for name, kind in reversed(parameters)]
    else:
        inner, listed = (argument, *bound), [[argument, ":", type_text(function.value)]]
    written = layout(to_lists(body, inner, used | {argument}), 1)
    return f"(def {name} {type_text(function.type[-1])} {show(listed)}\n {written})\n"
