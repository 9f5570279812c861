"""Kernels as the timing database names them: operators, types and attributes, read from a signature's text.

`signatures.signature_text` writes the signature of a group of operators as one line. `read_kernel` reads such
a line again, so a kernel that was timed on another machine and a kernel of a graph that is searched now have one form.
A kernel holds no names, no weights and no ids.
"""

import re
from functools import cached_property
from typing import NamedTuple

from rlflow.common.errors import RLFlowError
from rlflow.graph.ir import TensorType

# The tokens of a signature: parentheses and commas, texts, bytes, hashes of large attributes, and other values.
_TOKEN = re.compile(r"""[(),]|b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|<[0-9a-f]+>|[^(),'"]+""")
_PLAIN = {"None": None, "True": True, "False": False}


class Operand(NamedTuple):
    """An input or output of an operator.

    Attributes:
      kind: the data type and shape.
      constant: True for a weight or another constant.
      number: number of the tensor within the kernel; equal numbers are one tensor.
    """

    kind: TensorType
    constant: bool
    number: int


class Operator(NamedTuple):
    """An operator of a kernel.

    Attributes:
      domain, op: domain and name of the operator.
      attributes: (name, value) pairs.
      inputs, outputs: the operands; None for an absent input.
    """

    domain: str
    op: str
    attributes: tuple
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]

    def attribute(self, name: str, default=None):
        return next((value for key, value in self.attributes if key == name), default)


class Kernel:
    """One kernel: the operators that ONNX Runtime computes together.

    Attributes:
      operators: the operators in topological order.
      in_blocks: True if the kernel reads tensors in blocks of channels.
    """

    def __init__(self, operators: tuple[Operator, ...], in_blocks: bool):
        self.operators, self.in_blocks = operators, in_blocks

    @property
    def has_subgraph(self) -> bool:
        """True if an operator has a subgraph, or another attribute that the signature replaces by a hash."""
        values = (value for op in self.operators for _, value in op.attributes)
        return any(isinstance(value, str) and value.startswith("<") for value in values)

    @cached_property
    def external(self) -> tuple[list[Operand], list[Operand], list[Operand]]:
        """(varying inputs, constants, outputs) of the whole kernel; each tensor once, tensors inside it left out."""
        made = {one.number: one for op in self.operators for one in op.outputs}
        read = {one.number: one for op in self.operators for one in op.inputs if one is not None}
        varying = [one for number, one in read.items() if number not in made and not one.constant]
        constants = [one for number, one in read.items() if number not in made and one.constant]
        return varying, constants, [one for number, one in made.items() if number not in read]


def read_kernel(text: str) -> Kernel | None:
    """Return the kernel of a signature, or None for a stored timing of something else, such as a calibration.

    The result is also None if the shape of a tensor is not known.

    Args:
      text: a signature as `signature_text` or the column `signature` of the database holds it.

    Raises:
      RLFlowError: the text is no signature.
    """
    if not text.startswith("("):
        return None
    group, *blocked = _parsed(text)
    try:
        if isinstance(group, str):  # a reorder: ("ReorderInput", type)
            kind = TensorType(*blocked[0][:2])
            operand = (Operand(kind, False, 0),), (Operand(kind, False, 1),)
            return Kernel((Operator("com.microsoft.nchwc", group, (), *operand),), True)
        kinds = [one[0] if isinstance(one[0], tuple) else one for one in group]
        places = [one[1] if isinstance(one[0], tuple) else None for one in group]
        operators = tuple(_operator(*pair) for pair in zip(kinds, places, strict=True))
    except (IndexError, TypeError, ValueError) as error:
        raise RLFlowError(f"not a signature of a kernel ({error}): {text[:80]}") from error
    if any(one is not None and one.kind.shape is None for op in operators for one in (*op.inputs, *op.outputs)):
        return None
    return Kernel(operators, bool(blocked and blocked[0]))  # the positions of the inputs in blocks


def _operator(signature: tuple, numbers: tuple | None) -> Operator:
    domain, op, _, attributes, inputs, outputs = signature
    numbers = range(len(inputs) + len(outputs)) if numbers is None else numbers
    taken = [
        None if one is None else Operand(TensorType(*(one[0] or (0, None))[:2]), one[1], number)
        for one, number in zip(inputs, numbers, strict=False)
    ]
    made = [
        Operand(TensorType(*kind[:2]), False, number)
        for kind, number in zip(outputs, numbers[len(inputs) :], strict=False)
        if kind is not None
    ]
    return Operator(domain, op, attributes, tuple(taken), tuple(made))


def _parsed(text: str) -> tuple:
    """Return the nested tuples that a signature's text stands for."""
    stack: list[list] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            if not stack:
                break
            stack[-1].append(done)
        elif token != ",":
            stack[-1].append(_value(token))
    if len(stack) != 1 or len(stack[0]) != 1:
        raise RLFlowError(f"not a signature of a kernel (its parentheses do not match): {text[:80]}")
    return stack[0][0]


def _value(token: str):
    if token in _PLAIN:
        return _PLAIN[token]
    if token[0] in "'\"":
        return token[1:-1]
    if token[0] == "b":
        return token[2:-1].encode()
    if token[0] == "<":
        return token
    return float(token) if re.search(r"[.enai]", token) else int(token)
