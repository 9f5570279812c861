"""Write a program as C, and compile it with the system's compiler where there is one.

A vector becomes a struct of a size and a pointer, and a tuple becomes a struct. The elements of vectors are allocated
on a stack of memory blocks. If the body of a loop returns a number, each iteration frees the vectors that it made. The
file has no `main`: its function `run` takes pointers to the argument and the result.

    source = c_source(program)                the text of a C file
    library = Library(program, folder)        compiled and loaded; raises RLFlowError without a compiler
    library(argument)                         the value, as `evaluate` returns it
"""

import ctypes
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_text
from rlflow.tasks.expressions.expr import BOOL, FLOAT, INTEGER, Expr, is_function, is_tuple, is_vec, type_text
from rlflow.tasks.expressions.syntax import Program

SCALAR_TYPES = {FLOAT: "double", INTEGER: "int64_t", BOOL: "bool"}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "gt": ">", "gte": ">="}
EXTERNALS = {"pow": "pow", "abs": "fabs", "tanh": "tanh", "cosh": "cosh", "lgamma": "lgamma"}  # of <math.h>
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC", "-shared")
RUNTIME = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct block { struct block *before; size_t used, size; } block;
typedef struct { block *top; size_t used; } mark;
static block *top;

static void *allocate(size_t size) {
  size = (size + 63) & ~(size_t)63;
  if (!top || top->used + size > top->size) {
    size_t room = size > ((size_t)1 << 24) ? size : ((size_t)1 << 24);
    block *fresh = aligned_alloc(64, 64 + room);
    if (!fresh) abort();
    fresh->before = top, fresh->used = 0, fresh->size = room;
    top = fresh;
  }
  void *place = (char *)top + 64 + top->used;
  top->used += size;
  return place;
}
static inline mark remember(void) { mark m = {top, top ? top->used : 0}; return m; }
static inline void release(mark m) {
  while (top != m.top) { block *gone = top; top = top->before; free(gone); }
  if (top) top->used = m.used;
}
void release_all(void) { mark none = {0, 0}; release(none); }
static inline int64_t floor_div(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b && (a < 0) != (b < 0)); }
"""


class _Writer:
    """The C text of one program.

    Attributes:
      types: type → its name in C, in the order of the declarations.
      helpers: name of a function on vectors or tuples → its text.
    """

    def __init__(self):
        self.types: dict[object, str] = {}
        self.declarations: list[str] = []
        self.helpers: dict[str, str] = {}
        self.lines: list[str] = []
        self.indent, self.count = 1, 0
        self.allocations = 0  # number of statements written so far that may allocate memory

    def type(self, kind) -> str:
        if kind in SCALAR_TYPES:
            return SCALAR_TYPES[kind]
        if kind not in self.types:
            if is_vec(kind):
                element = self.type(kind[1])
                body = f"int64_t n; {element} *at;"
            elif is_tuple(kind):
                fields = [f"{self.type(part)} p{k};" for k, part in enumerate(kind[1:])]
                body = " ".join(fields) or "char none;"
            else:
                raise RLFlowError(f"the type {type_text(kind)} has no form in C")
            self.types[kind] = f"t{len(self.types)}"
            self.declarations.append(f"typedef struct {{ {body} }} {self.types[kind]};  // {type_text(kind)}")
        return self.types[kind]

    def write(self, line: str) -> None:
        self.lines.append("  " * self.indent + line)

    def fresh(self, kind, value: str) -> str:
        """Declare a constant with a value and return its name."""
        self.count += 1
        self.write(f"const {self.type(kind)} v{self.count} = {value};")
        return f"v{self.count}"

    # -- expressions -----------------------------------------------------------------------------

    def value(self, expr: Expr, bound: tuple) -> str:
        """Write the statements that compute an expression, and return a C expression without side effects.

        Args:
          expr: the expression.
          bound: the C names of the variables around it, the innermost first.
        """
        op, args = expr.op, expr.args
        if op == "constant":
            return _number(expr)
        if op == "variable":
            return bound[expr.value]
        if op == "external":
            raise RLFlowError(f"'{expr.value.name}' has no value in C")
        if op == "let":
            if args[0].op == "lam":
                raise RLFlowError("a function inside an expression has no form in C")
            return self.value(args[1], (self.named(args[0], bound), *bound))
        if op == "if":
            return self._if(expr, bound)
        if op in ("build", "sumbuild"):
            size = self.fresh(INTEGER, self.value(args[0], bound))
            return self._loop(expr, size, bound)
        if op == "apply":
            return self._call(expr, bound)
        if op == "assert":  # the statements of the body come after the check that guards them
            self.write(f"if (!({self.value(args[0], bound)})) abort();")
            return self.value(args[1], bound)
        values = [self.value(arg, bound) for arg in args]
        if op in OPERATORS:
            if op == "div" and expr.type == INTEGER:
                return f"floor_div({values[0]}, {values[1]})"
            if all(arg.type in SCALAR_TYPES for arg in args):
                return f"({values[0]} {OPERATORS[op]} {values[1]})"
            return f"{self.elementwise(op, args[0].type, args[1].type, expr.type)}({values[0]}, {values[1]})"
        return self._primitive(expr, values)

    def named(self, expr: Expr, bound: tuple) -> str:
        value = self.value(expr, bound)
        return value if re.fullmatch(r"\w+", value) else self.fresh(expr.type, value)

    def _primitive(self, expr: Expr, values: list[str]) -> str:
        op = expr.op
        if op in ("exp", "log"):
            return f"{op}({values[0]})"
        if op == "to_float":
            return f"(double){values[0]}"
        if op == "get":
            return f"{values[0]}.p{expr.value}"
        if op == "index":
            self.check_place(values[0], f"{values[1]}.n")
            return f"{values[1]}.at[{values[0]}]"
        if op == "size":
            return f"{values[0]}.n"
        if op == "tuple":
            return f"({self.type(expr.type)}){{{', '.join(values) or '0'}}}"
        if op == "sum":
            source = self.fresh(expr.args[0].type, values[0])
            self.count += 1
            total = f"v{self.count}"
            self.write(f"{self.type(expr.type)} {total} = {source}.at[0];")
            added = self._add(expr.type, total, f"{source}.at[k]")
            self.write(f"for (int64_t k = 1; k < {source}.n; k++) {total} = {added};")
            return total
        self.allocations += 1
        vector = self.fresh(expr.type, f"{self.type(expr.type)}_new({values[0]})")
        element = self.fresh(expr.args[-1].type, values[-1])
        if op == "constVec":
            self.write(f"for (int64_t k = 0; k < {vector}.n; k++) {vector}.at[k] = {element};")
        else:
            zero = self.zero(expr.args[2].type, element)
            self.write(f"for (int64_t k = 0; k < {vector}.n; k++) {vector}.at[k] = {zero};")
            self.check_place(values[1], f"{vector}.n")
            self.write(f"{vector}.at[{values[1]}] = {element};")
        return vector

    def check_place(self, place: str, size: str) -> None:
        """Write a statement that ends the program unless a place lies in a vector of a size."""
        self.write(f"if ((uint64_t)({place}) >= (uint64_t)({size})) abort();")

    def _if(self, expr: Expr, bound: tuple) -> str:
        test, yes, no = expr.args
        self.count += 1
        result = f"v{self.count}"
        condition = self.value(test, bound)
        self.write(f"{self.type(expr.type)} {result};")
        for head, arm in ((f"if ({condition}) {{", yes), ("} else {", no)):
            self.write(head)
            self.indent += 1
            self.write(f"{result} = {self.value(arm, bound)};")
            self.indent -= 1
        self.write("}")
        return result

    def _loop(self, expr: Expr, size: str, bound: tuple) -> str:
        """Write the loop of `build` or `sumbuild`."""
        body = expr.args[1]
        self.count += 1
        k, result = f"i{self.count}", f"v{self.count}"
        is_build, is_scalar = expr.op == "build", body.type in SCALAR_TYPES
        kind = self.type(expr.type)
        if is_build:
            self.allocations += 1
            self.write(f"const {kind} {result} = {kind}_new({size});")
        else:
            self.write(f"{kind} {result};" if not is_scalar else f"{kind} {result} = 0;")
        self.write(f"for (int64_t {k} = 0; {k} < {size}; {k}++) {{")
        self.indent += 1
        place, allocations = len(self.lines), self.allocations
        value = self.value(body, (k, *bound))
        if is_build:
            self.write(f"{result}.at[{k}] = {value};")
        elif is_scalar:
            self.write(f"{result} += {value};")
        else:
            value = self.fresh(body.type, value)
            self.write(f"{result} = {k} ? {self._add(expr.type, result, value)} : {value};")
        if is_scalar and self.allocations > allocations:
            self.lines.insert(place, "  " * self.indent + f"const mark m_{k} = remember();")
            self.write(f"release(m_{k});")
        self.indent -= 1
        self.write("}")
        return result

    def _call(self, expr: Expr, bound: tuple) -> str:
        function, argument = expr.args
        if function.op == "variable":
            self.allocations += 1
            return f"{bound[function.value]}({self.value(argument, bound)})"
        name = function.value.name if function.op == "external" else ""
        if name == "add$vfvf":
            pair = self.named(argument, bound)
            kind = argument.type[1]
            return f"{self.elementwise('add', kind, kind, kind)}({pair}.p0, {pair}.p1)"
        if name not in EXTERNALS:
            raise RLFlowError(f"the function '{name}' has no form in C")
        if argument.type == FLOAT:
            return f"{EXTERNALS[name]}({self.value(argument, bound)})"
        pair = self.named(argument, bound)
        return f"{EXTERNALS[name]}({', '.join(f'{pair}.p{k}' for k in range(len(argument.type) - 1))})"

    # -- vectors and tuples ------------------------------------------------------------------------

    def _add(self, kind, left: str, right: str) -> str:
        if kind in SCALAR_TYPES:
            return f"{left} + {right}"
        return f"{self.elementwise('add', kind, kind, kind)}({left}, {right})"

    def zero(self, kind, like: str) -> str:
        """Return a C expression for zeros of the type and sizes of a value.

        Args:
          kind: the type of the value.
          like: a C expression of the value.
        """
        if kind in SCALAR_TYPES:
            return "0"
        number = FLOAT if FLOAT in str(kind) else INTEGER
        return f"{self.elementwise('mul', number, kind, kind)}(0, {like})"

    def elementwise(self, op: str, left, right, kind) -> str:
        """Return the name of a C function that applies an operator to each pair of numbers of two values.

        The function is written at the first call.

        Args:
          op: the operator, a key of OPERATORS.
          left, right: the types of the values; a number is paired with every element of the other value.
          kind: the type of the result.
        """
        self.allocations += 1
        names = [SCALAR_TYPES.get(each) or self.type(each) for each in (left, right)]
        name = f"{op}_{names[0]}_{names[1]}"
        if name in self.helpers:
            return name
        self.helpers[name] = ""  # reserves the name while the text of the function is being made
        result = self.type(kind)

        def pair(a, b, a_kind, b_kind, part) -> str:
            if part in SCALAR_TYPES:
                return f"{a} {OPERATORS[op]} {b}"
            return f"{self.elementwise(op, a_kind, b_kind, part)}({a}, {b})"

        def parts(value, value_kind, suffix, position) -> tuple:
            if value_kind in SCALAR_TYPES:
                return value, value_kind
            return f"{value}{suffix}", value_kind[1 if is_vec(value_kind) else position]

        if is_vec(kind):
            (a, a_kind), (b, b_kind) = (parts(v, t, ".at[k]", 1) for v, t in (("a", left), ("b", right)))
            size = "a.n" if is_vec(left) else "b.n"
            body = (
                f"{result} r = {result}_new({size});\n"
                f"  for (int64_t k = 0; k < r.n; k++) r.at[k] = {pair(a, b, a_kind, b_kind, kind[1])};"
            )
        else:
            body = f"{result} r;"
            for k, part in enumerate(kind[1:]):
                (a, a_kind), (b, b_kind) = (parts(v, t, f".p{k}", k + 1) for v, t in (("a", left), ("b", right)))
                body += f"\n  r.p{k} = {pair(a, b, a_kind, b_kind, part)};"
        text = f"static {result} {name}({names[0]} a, {names[1]} b) {{\n  {body}\n  return r;\n}}"
        del self.helpers[name]
        self.helpers[name] = text  # after the helpers that it calls
        return name

    def constructors(self) -> list[str]:
        return [
            f"static inline {name} {name}_new(int64_t n) {{ {name} v = {{n, allocate(n * sizeof *v.at)}}; return v; }}"
            for kind, name in self.types.items() if is_vec(kind)
        ]  # fmt: skip


def _number(expr: Expr) -> str:
    if expr.type == FLOAT:
        return repr(expr.value) if np.isfinite(expr.value) else ("NAN" if expr.value != expr.value else "INFINITY")
    return str(int(expr.value)) if expr.type == INTEGER else ("true" if expr.value else "false")


def functions_of(program: Program) -> list[Expr]:
    """Return the functions of a program; a function follows the functions that it calls.

    Raises:
      RLFlowError: the program is not a chain of functions that ends with the last one.
    """
    functions, expr = [], program.expr
    while expr.op == "let" and expr.args[0].op == "lam":
        functions.append(expr.args[0])
        expr = expr.args[1]
    if expr.op == "lam":
        functions.append(expr)
    elif not (functions and expr.op == "variable" and expr.value == 0):
        raise RLFlowError("only a function has a form in C")
    return functions


def c_source(program: Program) -> str:
    """Return the C file of a program. Its function `run` takes pointers to the argument and to the result.

    Raises:
      RLFlowError: the program has a part without a form in C, such as an unknown external function.
    """
    writer, names, texts = _Writer(), (), []
    for number, function in enumerate(functions_of(program)):
        writer.lines, writer.indent = [], 1
        value = writer.value(function.args[0], ("arg", *names))
        head = f"static {writer.type(function.type[-1])} f_{number}({writer.type(function.value)} arg) {{"
        texts.append("\n".join([head, *writer.lines, f"  return {value};", "}"]))
        names = (f"f_{number}", *names)
    argument, result = writer.type(function.value), writer.type(function.type[-1])
    texts.append(f"void run(const {argument} *arg, {result} *result) {{ *result = {names[0]}(*arg); }}")
    heading = f"// {program.name or 'expression'}: {type_text(function.value)} → {type_text(function.type[-1])}"
    parts = [heading, RUNTIME, *writer.declarations, *writer.constructors(), *writer.helpers.values(), *texts]
    return "\n".join(parts) + "\n"


def compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


class Library:
    """A compiled program.

    Args:
      program: the program.
      folder: folder for the C file and the shared library.

    Raises:
      RLFlowError: there is no C compiler, or it refuses the file.
    """

    def __init__(self, program: Program, folder: Path):
        found = compiler()
        if found is None:
            raise RLFlowError(f"no C compiler was found ({', '.join(COMPILERS)})")
        function = functions_of(program)[-1]
        self.argument, self.result = function.value, function.type[-1]
        source, target = folder / "program.c", folder / "program.so"
        write_text(source, c_source(program))
        done = subprocess.run(
            [found, *FLAGS, str(source), "-o", str(target), "-lm"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RLFlowError(f"the C compiler refuses {source}: {done.stderr.strip().splitlines()[0]}")
        self.library = ctypes.CDLL(str(target))

    def __call__(self, argument):
        """Return the value of the program at an argument, both as in `evaluate`."""
        return self.timed(argument)[0]

    def timed(self, argument) -> tuple:
        """Return the value of the program at an argument, and the CPU time of the call in seconds."""
        result, kept = _c_type(self.result)(), []
        if self.argument in _C_SCALARS:
            given = _C_SCALARS[self.argument](argument)
        else:
            given = _c_type(self.argument)()
            _store(given, self.argument, argument, kept)
        began = time.process_time()
        self.library.run(ctypes.byref(given), ctypes.byref(result))
        seconds = time.process_time() - began
        value = _load(result, self.result)
        self.library.release_all()
        return value, seconds


_C_SCALARS = {FLOAT: ctypes.c_double, INTEGER: ctypes.c_int64, BOOL: ctypes.c_bool}
_C_TYPES: dict[object, type] = dict(_C_SCALARS)


def _c_type(kind) -> type:
    if kind not in _C_TYPES:
        if is_vec(kind):
            fields = [("n", ctypes.c_int64), ("at", ctypes.POINTER(_c_type(kind[1])))]
        elif is_function(kind):
            raise RLFlowError("a function cannot be an argument")
        else:
            fields = [(f"p{k}", _c_type(part)) for k, part in enumerate(kind[1:])] or [("none", ctypes.c_char)]
        _C_TYPES[kind] = type("c_value", (ctypes.Structure,), {"_fields_": fields})
    return _C_TYPES[kind]


def _store(target, kind, value, kept: list) -> None:
    """Write a value into a C structure; `kept` holds what must stay in memory during the call."""
    if is_vec(kind):
        element = _c_type(kind[1])
        target.n, elements = len(value), (element * max(len(value), 1))()
        if kind[1] in _C_SCALARS:
            np.ctypeslib.as_array(elements)[: len(value)] = value
        else:
            for k, each in enumerate(value):
                _store(elements[k], kind[1], each, kept)
        kept.append(elements)
        target.at = ctypes.cast(elements, ctypes.POINTER(element))
        return
    for k, part in enumerate(kind[1:]):
        if part in _C_SCALARS:
            setattr(target, f"p{k}", value[k])
        else:
            _store(getattr(target, f"p{k}"), part, value[k], kept)


def _load(source, kind):
    if kind in _C_SCALARS:
        return source.value if hasattr(source, "value") else source
    if is_vec(kind):
        if kind[1] in _C_SCALARS:
            return np.ctypeslib.as_array(source.at, (source.n,)).copy()
        return [_load(source.at[k], kind[1]) for k in range(source.n)]
    return tuple(_load(getattr(source, f"p{k}"), part) for k, part in enumerate(kind[1:]))
