"""Schemas of ONNX Runtime's own operators (domain com.microsoft) that rules use and the onnx package lacks.

Importing this module registers the schemas with onnx, so that its checker and shape inference accept the operators.
Names, attributes and defaults follow ONNX Runtime. Operators that share a name with an ONNX operator (Gelu, Attention)
are omitted, because the reference implementation of the onnx package requires unique names.

An export imports the domain only if the graph contains one of its nodes. A rule may add such a node only if the
installed ONNX Runtime has a kernel for it (`onnx_runtime.has_kernel`). The option `env.standard_operators_only`
disables all rules that add nodes of other domains.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from onnx import AttributeProto, TensorShapeProto, TypeProto, defs, helper, shape_inference

DOMAIN = "com.microsoft"
VERSION = 1  # the only version of the domain

SIZE = "size:"  # prefix of the unique dimension names that symbolic.py gives to sizes

FLOATS = ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"]
REQUIRED, INT, FLOAT, TEXT, INTS, FLOATS_LIST = object(), *(
    defs.OpSchema.AttrType.__members__[name] for name in ("INT", "FLOAT", "STRING", "INTS", "FLOATS")
)


class Operator(NamedTuple):
    """The schema of one operator, in short form.

    Attributes:
      inputs, outputs: names, separated by spaces; `?` follows the name of an optional tensor, `?i` the name of an
        optional int32 tensor.
      attributes: name → default value, or the attribute's type if it has no default.
      infer: function that computes the type of the first output and sets it in an onnx InferenceContext.
    """

    inputs: str
    outputs: str
    attributes: dict[str, Any]
    infer: Callable


# -- types of results ------------------------------------------------------------------------------


def _like_first(context) -> None:
    _set_output_type(context, _type(context, 0))


def _inferred_as(op: str, n_inputs: int, without: tuple[str, ...] = ()) -> Callable:
    """Return a function that infers the type of the first output as for the standard operator `op`.

    Args:
      op: operator of ONNX's own domain.
      n_inputs: number of leading inputs to pass to this operator.
      without: names of attributes not to pass to this operator.
    """

    def infer(context) -> None:
        schema = defs.get_schema(op, 13)
        result = (context.get_attribute(name) for name in schema.attributes if name not in without)
        inputs = [_type(context, slot) for slot in range(min(n_inputs, context.get_num_inputs()))]
        _set_output_type(context, _inferred(op, [a for a in result if a is not None], inputs))

    return infer


def _conv(context) -> None:
    """Infer the type of FusedConv as for Conv; raise InferenceError if the summand Z has another known shape."""
    _inferred_as("Conv", 2, ACTIVATION)(context)
    summand, result = _type(context, 3), context.get_output_type(0)
    sizes = [list(map(_size, kind.tensor_type.shape.dim)) for kind in (summand, result) if kind is not None]
    if summand is not None and sizes[0] != sizes[-1] and all(map(all, sizes)):
        raise shape_inference.InferenceError("the summand and the convolution's result have different shapes")


def _matmul(context) -> None:
    a, b = (
        _transposed(_type(context, slot)) if _int_attribute(context, name) else _type(context, slot)
        for slot, name in enumerate(("transA", "transB"))
    )
    if not _int_attribute(context, "transBatchA") and not _int_attribute(context, "transBatchB"):
        _set_output_type(context, _inferred("MatMul", [], [a, b]))


def _attention(context) -> None:
    """Infer the shape [B, S, V] of MultiHeadAttention from query [B, S, K], key [B, T, K] and value [B, T, V].

    K and V must be multiples of the number of heads.
    """
    query, key, value = (_type(context, slot) for slot in range(3))
    if not all(kind is not None and len(kind.tensor_type.shape.dim) == 3 for kind in (query, key, value)):
        _set_output_type(context, query and helper.make_tensor_type_proto(query.tensor_type.elem_type, None))
        return  # The input is packed or has an axis of heads: the shape stays unknown.
    (batch, length, width), (_, keys, key_width), (_, values, _) = (
        k.tensor_type.shape.dim for k in (query, key, value)
    )
    heads = _int_attribute(context, "num_heads")
    pairs = ((width, key_width), (keys, values), *((batch, k.tensor_type.shape.dim[0]) for k in (key, value)))
    if heads < 1 or any(_size(a) != _size(b) for a, b in pairs if _size(a) and _size(b)):
        raise shape_inference.InferenceError("the shapes of query, key and value do not agree")
    if any(kind.tensor_type.shape.dim[2].dim_value % heads for kind in (query, value)):
        raise shape_inference.InferenceError("the number of features is no multiple of the number of heads")
    result = TypeProto()
    result.CopyFrom(value)
    result.tensor_type.shape.dim[1].CopyFrom(length)
    _set_output_type(context, result)


def _type(context, slot: int) -> TypeProto | None:
    """Return the type of an input; None if the input is absent or its shape is unknown."""
    kind = context.get_input_type(slot) if slot < context.get_num_inputs() and context.has_input(slot) else None
    return kind if kind is not None and kind.tensor_type.HasField("shape") else None


def _size(dim: TensorShapeProto.Dimension) -> int | str:
    """Return the size of a dimension as a number, or its unique name with the prefix SIZE; "" if it is unknown.

    Other names are ignored: models and ONNX's inference may give two names to the same size.
    """
    return dim.dim_value or (dim.dim_param if dim.dim_param.startswith(SIZE) else "")


def _set_output_type(context, kind: TypeProto | None) -> None:
    if kind is not None:
        context.set_output_type(0, kind)


def _int_attribute(context, name: str) -> int:
    attribute = context.get_attribute(name)
    return attribute.i if attribute is not None else 0


def _inferred(op: str, attributes: list[AttributeProto], inputs: list[TypeProto | None]) -> TypeProto | None:
    if inputs.count(None):
        return None
    node = helper.make_node(op, [f"i{slot}" for slot in range(len(inputs))], ["o"])
    node.attribute.extend(attributes)
    types = dict(zip(node.input, inputs, strict=True))
    return shape_inference.infer_node_outputs(defs.get_schema(op, 13), node, types).get("o")


def _transposed(kind: TypeProto | None) -> TypeProto | None:
    """Return the type with its last two sizes exchanged; scalars and vectors stay unchanged."""
    if kind is None or len(kind.tensor_type.shape.dim) < 2:
        return kind
    result = TypeProto()
    result.CopyFrom(kind)
    *_, rows, columns = kind.tensor_type.shape.dim
    result.tensor_type.shape.dim[-2].CopyFrom(columns)
    result.tensor_type.shape.dim[-1].CopyFrom(rows)
    return result


# -- the operators ---------------------------------------------------------------------------------

ACTIVATION = ("activation", "activation_alpha", "activation_beta", "activation_gamma", "activation_params")
WINDOW = dict(
    auto_pad="NOTSET", kernel_shape=INTS, strides=INTS, dilations=INTS, pads=INTS, group=1, activation=TEXT,
    activation_params=FLOATS_LIST,
)  # fmt: skip

OPERATORS = {
    "BiasGelu": Operator("A B", "C", {}, _like_first),
    "QuickGelu": Operator("X", "Y", dict(alpha=1.702), _like_first),
    "SkipLayerNormalization": Operator(
        "input skip gamma beta? bias?", "output mean? inv_std_var? input_skip_bias_sum?", dict(epsilon=1e-12),
        _like_first
    ),
    "FusedMatMul": Operator("A B", "Y", dict(alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0), _matmul),
    "FusedGemm": Operator(
        "A B C?", "Y",
        dict(alpha=1.0, beta=1.0, transA=0, transB=0, activation=TEXT, activation_alpha=FLOAT, activation_beta=FLOAT,
             activation_gamma=FLOAT),
        _inferred_as("Gemm", 3, ACTIVATION),
    ),
    "FusedConv": Operator("X W B? Z?", "Y", WINDOW, _conv),
    "MultiHeadAttention": Operator(
        "query key? value? bias? key_padding_mask?i attention_bias? past_key? past_value? past_sequence_length?i "
        "cache_indirection?i", "output present_key? present_value? qk?",
        dict(num_heads=REQUIRED, scale=FLOAT, mask_filter_value=FLOAT, unidirectional=0), _attention,
    ),
}  # fmt: skip


def _parameter(text: str) -> defs.OpSchema.FormalParameter:
    name, optional, kind = text.partition("?")
    options = defs.OpSchema.FormalParameterOption
    return defs.OpSchema.FormalParameter(
        name, "M" if kind else "T", param_option=options.Optional if optional else options.Single
    )


def _attribute(name: str, default) -> defs.OpSchema.Attribute:
    if default is REQUIRED:
        return defs.OpSchema.Attribute(name, INT, required=True)
    if isinstance(default, defs.OpSchema.AttrType):
        return defs.OpSchema.Attribute(name, default, required=False)
    return defs.OpSchema.Attribute(name, helper.make_attribute(name, default))


def _register() -> None:
    for name, operator in OPERATORS.items():
        if not defs.has(name, DOMAIN):
            inputs, outputs = (
                [_parameter(text) for text in names.split()] for names in (operator.inputs, operator.outputs)
            )
            schema = defs.OpSchema(
                name, DOMAIN, VERSION, inputs=inputs, outputs=outputs,
                type_constraints=[("T", FLOATS, ""), ("M", ["tensor(int32)"], "")],
                attributes=[_attribute(*item) for item in operator.attributes.items()],
            )  # fmt: skip
            schema.set_type_and_shape_inference_function(operator.infer)
            defs.register_schema(schema)


_register()
