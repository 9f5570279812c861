"""The small expression language of rules: attribute values, conditions and `let` definitions.

Python's parser reads the text. `compile_expression` turns the syntax tree into closures over a fixed set of node types
and functions, so a rule file can compute values but cannot run code.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.graph import dims
from rlflow.graph.dims import Dim, Undecided
from rlflow.graph.ir import Constant, Graph, TensorType
from rlflow.graph.shapes import shape_value
from rlflow.rules.contents import FLOATS, is_finite, zero_positions


class Tensor(NamedTuple):
    """A tensor of the matched graph as a value in expressions, with its graph and tensor id."""

    graph: Graph
    id: int

    @property
    def type(self) -> TensorType:
        kind = self.graph.types.get(self.id)
        if kind is None or kind.shape is None:
            raise Unknown("the shape of a tensor is not known")
        return kind


LARGEST_CONSTANT = 1 << 24  # elements of a constant that a rule writes down; a file of a few bytes can ask for more


class Unknown(Exception):
    """Raised if an expression needs a fact that the graph does not contain; the rule then does not apply."""


def same(a, b) -> bool:
    """Return True if two values are equal for all values of the symbols, and False if they always differ.

    Args:
      a, b: numbers, symbolic sizes, or tuples of these.

    Raises:
      Undecided: if neither is proved.
    """
    if type(a) is Dim or type(b) is Dim:
        if float in (type(a), type(b)):
            raise Undecided(f"whether {a} = {b} would have to be known")
        return type(b) in _SIZES and type(a) in _SIZES and dims.equal(a, b)
    if type(a) is tuple and type(b) is tuple and _has_symbol(a, b):
        return len(a) == len(b) and _all_hold(lambda pair: same(*pair), zip(a, b, strict=True))
    return a == b


_SIZES = (int, Dim)


def _has_symbol(*items: tuple) -> bool:
    return any(type(value) is Dim or (type(value) is tuple and _has_symbol(value)) for item in items for value in item)


def among(value, items) -> bool:
    """Return True if `value` equals one of `items`; `same` compares symbolic sizes and can raise Undecided."""
    if isinstance(items, tuple | range) and _has_symbol((value,), tuple(items)):
        return not _all_hold(lambda item: not same(value, item), items)
    return value in items


def _all_hold(holds: Callable[[Any], bool], items: Iterable) -> bool:
    """Return True if a predicate holds for all items, and False if it fails for one item.

    Raises:
      Undecided: the predicate raises it for an item and fails for no item.
    """
    open_question = None
    for item in items:
        try:
            if not holds(item):
                return False
        except Undecided as undecided:
            open_question = open_question or undecided
    if open_question is not None:
        raise open_question
    return True


def constant(*tensors: Tensor) -> bool:
    """Return True if every tensor is a weight, a literal, or computed from weights and literals only."""
    return all(t.graph.is_constant(t.id) for t in tensors)


def shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor's axes, each an int or Dim."""
    return tensor.type.shape


def rank(tensor: Tensor) -> int:
    """Return the number of axes of a tensor."""
    return len(tensor.type.shape)


def dim(tensor: Tensor, axis: int) -> int:
    """Return the size of one axis, an int or Dim. Raise Unknown if the tensor has no such axis."""
    if not -rank(tensor) <= axis < rank(tensor):
        raise Unknown(f"a tensor has no axis {axis}")
    return tensor.type.shape[axis]


def size(tensor: Tensor) -> int:
    """Return the number of elements of a tensor, an int or Dim."""
    return tensor.type.size


def is_float(tensor: Tensor) -> bool:
    """Return True if a tensor has a floating-point data type."""
    return tensor.type.dtype in FLOATS


def unshared(*tensors: Tensor) -> bool:
    """Return True if each tensor is read by exactly one node and is not an output of the graph."""
    return all(len(t.graph.consumers.get(t.id, ())) == 1 and t.id not in t.graph.output_set for t in tensors)


def value(tensor: Tensor) -> tuple[int, ...]:
    """Return the content of an integer tensor that is constant or computed from sizes, as a flat tuple.

    Raises:
      Unknown: the content is not known, or the tensor is large.
    """
    array = shape_value(tensor.graph, tensor.id)
    if array is None:
        raise Unknown("a shape or an axis is not known in advance")
    return tuple(array.reshape(-1).tolist())


def factors(tensor: Tensor) -> tuple[int, ...]:
    """Return the content of the `scales` of a Resize, a constant list of whole numbers, as integers.

    Raises:
      Unknown: the tensor is not a constant, or `holds_factors` is False.
    """
    constant = tensor.graph.constants.get(tensor.id)
    if constant is None:
        raise Unknown("the scales are not known in advance")
    if not holds_factors(constant):
        raise Unknown("a scale is not a whole number")
    return tuple(map(int, constant.load().tolist()))


def holds_factors(constant: Constant) -> bool:
    """Return True for a float32 list of at most MAX_FACTORS whole numbers from 1; the result is cached."""
    kind = constant.type
    if kind.dtype != FLOATS[0] or len(kind.shape) != 1 or not 0 < kind.size <= MAX_FACTORS:
        return False
    if constant.digest not in _FACTORS:
        content = constant.load()
        _FACTORS[constant.digest] = bool(((content >= 1) & (content < 2**20) & (content == np.floor(content))).all())
    return _FACTORS[constant.digest]


MAX_FACTORS = 5  # axes of the largest image that ONNX Runtime resizes
_FACTORS: dict[str, bool] = {}  # digest of a short list → True if `factors` may read the list


def broadcasts(small: Tensor, large: Tensor) -> bool:
    """Return True if `small` and `large` broadcast to the shape of `large`."""
    a, b = shape(small), shape(large)
    pairs = zip(reversed(a), reversed(b), strict=False)
    return len(a) <= len(b) and _all_hold(lambda pair: among(pair[0], (1, pair[1])), pairs)


def per_channel(tensor: Tensor, like: Tensor) -> bool:
    """Return True if a tensor, broadcast to the rank of `like`, varies along axis 1 only.

    For `like` of shape [N, C, H, W], examples of such shapes are [C, 1, 1], [1, C, 1, 1] and [1].
    """
    wanted, shape_ = dim(like, 1), shape(tensor)
    padded = (1,) * (rank(like) - len(shape_)) + shape_
    return len(padded) == rank(like) and _varies_only_along_axis_1(padded, wanted)


def per_output_channel(tensor: Tensor, weight: Tensor) -> bool:
    """Return True if a tensor, broadcast to the rank of a convolution's output, varies along the channel axis only.

    The weight of the convolution has the shape [output channels, input channels / groups, …].
    """
    channels, positions = dim(weight, 0), rank(weight) - 2
    padded = (1,) * (rank(weight) - rank(tensor)) + shape(tensor)
    return len(padded) == positions + 2 and _varies_only_along_axis_1(padded, channels)


def _varies_only_along_axis_1(sizes: tuple, wanted) -> bool:
    """Return True if every size is 1, except that axis 1 may have the size `wanted`."""
    return _all_hold(lambda item: among(item[1], (1, wanted) if item[0] == 1 else (1,)), enumerate(sizes))


def axes(tensor: Tensor, rank: int) -> tuple[int, ...]:
    """Return the axes that a tensor lists, counted from 0 and ascending; all `rank` axes if the tensor is empty."""
    return tuple(sorted({axis % rank for axis in value(tensor)})) if rank and value(tensor) else tuple(range(rank))


def reshaped(tensor: Tensor, target: Tensor) -> tuple[int, ...]:
    """Return the shape that Reshape(tensor, target) gives: 0 copies a size, -1 takes the remaining elements."""
    sizes = [dim(tensor, axis) if size == 0 else size for axis, size in enumerate(value(target))]
    known = math.prod(size for size in sizes if size != -1)
    if known == 0:
        raise Unknown("empty tensors have no free size")
    return tuple(size if size != -1 else tensor.type.size // known for size in sizes)


def dtype(tensor: Tensor) -> int:
    """Return the data type of a tensor as its number in onnx.TensorProto, the number that Cast's `to` expects."""
    return tensor.type.dtype


def compose(first: tuple, second: tuple) -> tuple[int, ...]:
    """Return the permutation p such that Transpose(x, perm=p) = Transpose(Transpose(x, perm=first), perm=second)."""
    return tuple(first[k] for k in second)


def inverse(perm: tuple) -> tuple[int, ...]:
    """Return the permutation that undoes `perm`, so that Transpose by both leaves a tensor unchanged."""
    return tuple(int(k) for k in np.argsort(perm))


def full(number: float, like: Tensor, *sizes: int) -> np.ndarray:
    """Return a constant in the data type of `like`.

    Args:
      number: the value of every element.
      like: a tensor with the wanted data type.
      *sizes: the shape; without sizes the constant is a scalar.

    Raises:
      Unknown: if the data type would turn the number into 0 or infinity.
    """
    import onnx

    with np.errstate(over="ignore"):
        held = np.asarray(number, onnx.helper.tensor_dtype_to_np_dtype(like.type.dtype))
    if number != 0 and (held == 0 or np.isinf(held)):
        raise Unknown(f"a tensor of this data type cannot hold {number:g}")
    if all(type(size) is int for size in sizes) and math.prod(sizes) > LARGEST_CONSTANT:
        raise Unknown("the constant is too large to write down")
    return np.full(sizes, held)


def eye(size: int, like: Tensor) -> np.ndarray:
    """Return the identity matrix with `size` rows in the data type of `like`."""
    return np.eye(size, dtype=full(1, like).dtype)


def array(numbers: tuple, like: Tensor) -> np.ndarray:
    """Return a constant with the given elements in the data type of `like`.

    Args:
      numbers: the elements, nested tuples of numbers with one level per axis.
      like: a tensor with the wanted data type.
    """
    import onnx

    return np.asarray(numbers, onnx.helper.tensor_dtype_to_np_dtype(like.type.dtype))


def worthwhile(condition: bool) -> bool:
    """Return the condition, which keeps a rule out of places where the rule is true but cannot make a model faster.

    A proof does not assume the condition, so the proof covers these places, too. A condition that the values of symbols
    decide counts as True (`compile_expression`), since the timings at the typical sizes decide there.
    """
    return condition


def scalar(tensor: Tensor) -> float:
    """Return the only element of a tensor. Raise Unknown unless it is a weight, a literal or computed from sizes."""
    result = tensor.graph.constants.get(tensor.id)
    content = tensor.graph.types[tensor.id].content if result is None and tensor.id in tensor.graph.types else None
    if content is not None and len(content) == 1:
        return float(content[0])
    if result is None or result.type.size != 1:
        raise Unknown("a number is not known in advance")
    return float(result.load().reshape(()))


def finite(*tensors: Tensor) -> bool:
    """Return True if every tensor is a weight or literal without infinities and NaN."""
    stored = [t.graph.constants.get(t.id) for t in tensors]
    return all(constant is not None and is_finite(constant) for constant in stored)


def zeros(tensor: Tensor, axis: int) -> tuple[int, ...]:
    """Return the positions along an axis of a constant at which all elements are zero.

    Raises:
      Unknown: the tensor is not constant, has no such axis, or is too large to be read.
    """
    dim(tensor, axis)
    result = zero_positions(tensor.graph, tensor.id, axis % rank(tensor))
    if result is None:
        raise Unknown("the elements of a tensor are not known")
    return result


def nonzeros(tensor: Tensor, axis: int) -> tuple[int, ...]:
    """Return the positions along an axis of a constant at which some element is not zero; raise as `zeros` does."""
    empty = frozenset(zeros(tensor, axis))
    return tuple(k for k in range(dim(tensor, axis)) if k not in empty)


def labels(equation: bytes) -> tuple[tuple[int, ...], ...]:
    """Return the labels of an Einsum's operands and, last, of its result, numbered in the order of their first use.

    Raises:
      Unknown: the equation has an ellipsis, an operand has one label twice, or the result a label of no operand.
    """
    operands, arrow, result = equation.decode().replace(" ", "").partition("->")
    terms = operands.split(",")
    if not arrow:  # the labels that occur once, in alphabetical order
        result = "".join(sorted(label for label in set(operands) - {","} if operands.count(label) == 1))
    if "." in operands or any(len(set(term)) < len(term) for term in (*terms, result)):
        raise Unknown("the equation has an ellipsis, or a label twice in one operand")
    numbers = {label: number for number, label in enumerate(dict.fromkeys("".join(terms)))}
    if not numbers.keys() >= set(result):
        raise Unknown("the result of the equation has a label of no operand")
    return tuple(tuple(numbers[label] for label in term) for term in (*terms, result))


def positions(items: tuple, whole: tuple) -> tuple[int, ...]:
    """Return the position of each item in the tuple `whole`."""
    return tuple(whole.index(item) for item in items)


def attributes(pairs: tuple, name: bytes, default=None):
    """Return the value of one of the attributes that `**name` binds on the left side.

    Args:
      pairs: the bound (attribute name, value) pairs.
      name: name of the attribute, as bytes, because text in expressions is bytes.
      default: result if no pair has this name.
    """
    return dict(pairs).get(name.decode(), default)


FUNCTIONS: dict[str, Callable] = {
    f.__name__: f
    for f in (
        constant, shape, rank, dim, size, is_float, unshared, value, broadcasts, per_channel, per_output_channel,
        axes, reshaped, dtype, compose, inverse, full, array, eye, scalar, factors, finite, zeros, nonzeros, labels,
        positions, worthwhile, attributes, len, min, max, sum, abs, tuple, range, all, any,
    )
}  # fmt: skip
FUNCTIONS |= {"prod": math.prod, "isclose": math.isclose, "sorted": lambda items: tuple(sorted(items))}
# Functions whose result depends on the elements of a weight.
CONTENT_FUNCTIONS = frozenset(("finite", "zeros", "nonzeros"))

_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARE = {
    ast.Eq: same, ast.NotEq: lambda a, b: not same(a, b),
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: among, ast.NotIn: lambda a, b: not among(a, b),
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
Expression = Callable[[dict[str, Any]], Any]


def compile_expression(node: ast.expr, where: str) -> Expression:
    """Return a function that evaluates an expression, given the dictionary name → value.

    Args:
      node: the syntax tree of the expression.
      where: description of the rule for error messages, such as `rule conv-merge`.

    Raises:
      RLFlowError: if the tree contains anything that is not part of the rule language.
    """
    build = lambda child: compile_expression(child, where)  # noqa: E731
    match node:
        case ast.Constant(value=literal):
            literal = literal.encode() if isinstance(literal, str) else literal
            return lambda scope: literal
        case ast.Name(id=name):
            return lambda scope: scope[name]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            parts = [(isinstance(i, ast.Starred), build(i.value if isinstance(i, ast.Starred) else i)) for i in items]
            return lambda scope: tuple(
                v for star, part in parts for v in (part(scope) if star else (part(scope),))
            )
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b, apply = build(left), build(right), _BINARY[type(op)]
            return lambda scope: apply(a(scope), b(scope))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            a = build(operand)
            return lambda scope: -a(scope)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            a = build(operand)
            return lambda scope: not a(scope)
        case ast.BoolOp(op=op, values=values):
            parts, want_all = [build(v) for v in values], isinstance(op, ast.And)
            if want_all:
                return lambda scope: _all_hold(lambda part: part(scope), parts)
            return lambda scope: not _all_hold(lambda part: not part(scope), parts)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            parts = [build(left), *(build(c) for c in comparators)]
            compare = [_COMPARE[type(o)] for o in ops]
            pairs = list(zip(compare, parts, parts[1:], strict=False))
            return lambda scope: _all_hold(lambda pair: pair[0](pair[1](scope), pair[2](scope)), pairs)
        case ast.Subscript(value=target, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            base, bounds = build(target), [build(b) if b is not None else None for b in (lower, upper, step)]
            return lambda scope: base(scope)[slice(*(b(scope) if b else None for b in bounds))]
        case ast.Subscript(value=target, slice=index):
            base, position = build(target), build(index)
            return lambda scope: base(scope)[position(scope)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            a, b, c = build(test), build(body), build(orelse)
            return lambda scope: b(scope) if a(scope) else c(scope)
        case ast.GeneratorExp(elt=elt, generators=[generator]) | ast.ListComp(elt=elt, generators=[generator]):
            return _comprehension(elt, generator, where)
        case ast.Call(func=ast.Name(id="worthwhile"), args=[condition], keywords=[]):
            return _true_if_undecided(build(condition))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if (
            name in FUNCTIONS and all(k.arg for k in keywords)
        ):
            function, parts = FUNCTIONS[name], [build(a) for a in args]
            named = {k.arg: build(k.value) for k in keywords}
            return lambda scope: function(
                *(part(scope) for part in parts), **{name: part(scope) for name, part in named.items()}
            )
    raise RLFlowError(f"{where}: '{ast.unparse(node)}' is not part of the rule language")


def _true_if_undecided(condition: Expression) -> Expression:
    """Return an expression with the value of a condition, and with the value True if symbols decide the condition."""

    def run(scope):
        try:
            return worthwhile(condition(scope))
        except Undecided:
            return True

    return run


def _comprehension(elt: ast.expr, generator: ast.comprehension, where: str) -> Expression:
    source, body = compile_expression(generator.iter, where), compile_expression(elt, where)
    tests = [compile_expression(test, where) for test in generator.ifs]
    target = generator.target
    names = [target.id] if isinstance(target, ast.Name) else [item.id for item in target.elts]

    def run(scope):
        result = []
        for item in source(scope):
            inner = {**scope, **dict(zip(names, (item,) if len(names) == 1 else item, strict=True))}
            if all(test(inner) for test in tests):
                result.append(body(inner))
        return tuple(result)

    return run


def names_in(node: ast.AST) -> set[str]:
    """Return the variables of an expression: all names except functions and the variables of comprehensions."""
    targets = [c.target for c in ast.walk(node) if isinstance(c, ast.comprehension)]
    own = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - FUNCTIONS.keys() - own
