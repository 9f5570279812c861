"""Random values for the inputs of a model, such that the model runs.

Floats are standard normal, booleans are fair coin flips, and integers are 0 or 1, unless the graph demands other values
(`rlflow.graph.input_values`): indices of a table, the shape of a Reshape, a probability, keys of an encoder.

    random_inputs(model, seed=0)                    {"ids": array of int64, "x": array of float32}

The demands of a graph cannot always be derived. MANNERS lists manners of drawing. The first one suits nearly all
models, and `rlflow.graph.feeds` tries the others.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from rlflow.common.errors import RLFlowError
from rlflow.graph.input_values import allowed_values
from rlflow.graph.input_walk import Values
from rlflow.graph.ir import TensorType
from rlflow.graph.limits import check_types
from rlflow.graph.symbols import bind_shapes

# Manners of drawing. "derived": values that the graph allows. "plain": the same, without values that change shapes. The
# other manners set all integers of inputs without a demand, and sizes that nothing determines, to the same
# number: 0 for "zeros", 1 for "ones", and the largest size of an axis of any input for "sizes".
MANNERS = ("derived", "plain", "zeros", "ones", "sizes")
OWN = "pass values of your own with --inputs DATA.npz"
ELEMENTS = 3  # elements of a drawn sequence, and size of an unknown axis of its elements
WORDS = ("red", "green", "blue", "Cat", "the dog", "a1")
FREE = Values()

_INTEGERS = {getattr(onnx.TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)}
FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that must be given: those without a default (an initializer of the same name)."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    defaults |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return [value for value in model.graph.input if value.name not in defaults]


def random_inputs(
    model: onnx.ModelProto | Path | str, seed: int, shapes: Mapping[str, object] | None = None,
    manner: str = MANNERS[0],
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return random values for the inputs of a model.

    Calls with equal seed, manner, inputs (names, types and shapes) and demands of the graph give equal values.

    Args:
      model: path of an ONNX file, or a ModelProto.
      seed: seed of the random generator.
      shapes: sizes of symbolic dimensions, as in `load_graph`.
      manner: the manner of drawing, one of MANNERS.

    Returns:
      Input name → array; for a sequence a list of arrays, for a map a dictionary.

    Raises:
      RLFlowError: the size of an input is unknown, or no values can be drawn for an input.
    """
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load(model, load_external_data=False)
    values = bind_shapes(inputs_of(model), shapes or {})
    return drawn(values, allowed_values(model, values, plain=manner != MANNERS[0]), seed, manner)


def drawn(
    inputs: list[onnx.ValueInfoProto], allowed: Mapping[str, Values], seed: int, manner: str
) -> dict[str, np.ndarray]:
    """Return random values for declared inputs, see `random_inputs`.

    Args:
      inputs: the inputs with numbers as sizes.
      allowed: input name → the values that the graph allows.
      seed: seed of the random generator.
      manner: the manner of drawing, one of MANNERS.
    """
    rng, arrays = np.random.default_rng(seed), {}
    sizes = [dim.dim_value for value in inputs for dim in value.type.tensor_type.shape.dim]
    number = {"zeros": 0, "ones": 1, "sizes": max(sizes, default=1)}.get(manner)
    for value in sorted(inputs, key=lambda value: value.name):
        values = allowed.get(value.name, FREE)
        is_free = values.exact is None and values == FREE  # arrays are not compared
        is_integer = value.type.tensor_type.elem_type in _INTEGERS
        if number is not None and (values.size or (is_free and is_integer)):
            values = values._replace(low=number, high=number)
        arrays[value.name] = _drawn_value(rng, value.type, values, f"input '{value.name}'", value.name)
    return {value.name: arrays[value.name] for value in inputs}


def _drawn_value(rng: np.random.Generator, kind: onnx.TypeProto, values: Values, what: str, name: str):
    """Draw a value of any ONNX type: an array, a list for a sequence, a dictionary for a map."""
    form = kind.WhichOneof("value")
    if form == "optional_type":
        return _drawn_value(rng, kind.optional_type.elem_type, values, what, name)
    if form == "sequence_type":
        return [_drawn_value(rng, kind.sequence_type.elem_type, values, what, name) for _ in range(ELEMENTS)]
    if form == "map_type":
        whole = kind.map_type.key_type != onnx.TensorProto.STRING
        keys = values.words or (tuple(range(ELEMENTS)) if whole else WORDS[:ELEMENTS])
        kept = [key for key in keys if whole != isinstance(key, str)]
        return {key: _drawn_value(rng, kind.map_type.value_type, FREE, what, name).item() for key in kept}
    if form != "tensor_type":
        raise RLFlowError(f"no values can be drawn for {what} of this type: {OWN}")
    tensor = kind.tensor_type
    shape = tuple([dim.dim_value or (0 if dim.HasField("dim_value") else ELEMENTS) for dim in tensor.shape.dim])
    check_types({name: TensorType(tensor.elem_type, shape)})
    return random_array(rng, tensor.elem_type, shape, values, what)


def random_array(
    rng: np.random.Generator, dtype: int, shape: tuple[int, ...], values: Values = FREE, what: str = "a tensor"
) -> np.ndarray:
    """Draw an array of standard normal floats, of integers in {0, 1}, of fair booleans or of words.

    If `values` restricts the elements, numbers are drawn uniformly between its bounds or taken from its words, and the
    elements that it states exactly replace drawn ones.

    Args:
      rng: the random generator.
      dtype: onnx.TensorProto.DataType.
      shape: shape of the array.
      values: the values that are allowed.
      what: description of the array in the error message.

    Raises:
      RLFlowError: the type is not supported.
    """
    if dtype == onnx.TensorProto.STRING:
        words = np.array([*[word for word in values.words if isinstance(word, str)], *WORDS], object)
        return np.asarray(words[rng.integers(0, len(words), shape)], object).reshape(shape)
    if dtype == onnx.TensorProto.BOOL:
        return _with_exact(rng.integers(0, 2, shape).astype(bool), values)
    if dtype in _INTEGERS:
        kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        return _with_exact(_random_integers(rng, kind, shape, values), values)
    if dtype in FLOATS:
        kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        if values.divisor or not (
            values.whole or values.box or math.isfinite(values.low) or math.isfinite(values.high)
        ):
            normal = rng.standard_normal(shape, np.float32) if kind == np.float32 else rng.standard_normal(shape)
            return _with_exact(np.asarray(normal, kind), values)
        if values.whole:
            return _with_exact(_random_integers(rng, np.dtype(np.int64), shape, values).astype(kind), values)
        low = values.low if math.isfinite(values.low) else values.high - 1
        high = values.high if math.isfinite(values.high) else low + 1
        made = rng.uniform(low, high, shape)
        return _with_exact((_corners(made) if values.box else made).astype(kind), values)
    known = onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(dtype) if dtype in known else str(dtype)
    raise RLFlowError(f"no random values are made for {what} of type {name}: {OWN}")


def _random_integers(rng: np.random.Generator, kind: np.dtype, shape: tuple[int, ...], values: Values) -> np.ndarray:
    numbers = [word for word in values.words if not isinstance(word, str)]
    if numbers:
        return np.asarray(np.array(numbers)[rng.integers(0, len(numbers), shape)], kind)
    low = values.low if math.isfinite(values.low) else min(0.0, values.high)
    high = values.high if math.isfinite(values.high) else max(1.0, low + 1 if values.low > -math.inf else 1.0)
    limits = np.iinfo(kind)
    first = int(min(max(math.ceil(low), limits.min), limits.max))
    last = int(min(max(math.floor(high), first), limits.max))
    return rng.integers(first, last, shape, endpoint=True).astype(kind)


def _with_exact(made: np.ndarray, values: Values) -> np.ndarray:
    """Return the drawn array with the elements that the graph determines, if their number fits the shape."""
    exact = values.exact
    if exact is None or exact.size not in (1, made.size):
        return made
    exact = np.broadcast_to(exact.reshape(-1), made.size).reshape(made.shape) if exact.size == 1 else exact
    exact = exact.reshape(made.shape)
    return np.where(np.isnan(exact), made, np.nan_to_num(exact)).astype(made.dtype)


def _corners(made: np.ndarray) -> np.ndarray:
    """Return boxes [..., 4] whose first corner lies below the second one."""
    if not made.ndim or made.shape[-1] != 4:
        return made
    low, high = np.sort(np.stack([made[..., :2], made[..., 2:]]), axis=0)
    return np.concatenate([low, high], axis=-1)
