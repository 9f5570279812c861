"""Models of ai.onnx.ml and models whose inputs or outputs are texts, maps, sequences and optional values."""

from functools import partial

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from tests.field import Case

R = np.random.default_rng(0)
W, U = (R.normal(size=shape).astype("f") for shape in ((3, 4), (4, 4)))
COLOURS = ["red", "green", "blue"]
TREE = {
    "nodes_treeids": [0] * 5, "nodes_nodeids": list(range(5)), "nodes_featureids": [0, 1, 0, 0, 0],
    "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 3, 0, 0, 0], "nodes_falsenodeids": [2, 4, 0, 0, 0],
    "nodes_missing_value_tracks_true": [0] * 5,
}  # fmt: skip
CLASSES = {
    "class_treeids": [0] * 3, "class_nodeids": [2, 3, 4], "class_ids": [0, 1, 2], "class_weights": [1.0] * 3,
    "classlabels_int64s": [3, 5, 9], "post_transform": "NONE",
}  # fmt: skip
TARGETS = {
    "target_treeids": [0] * 3, "target_nodeids": [2, 3, 4], "target_ids": [0] * 3, "target_weights": [1.0, 2.0, 3.0],
    "n_targets": 1, "post_transform": "NONE",
}  # fmt: skip


def numbers(count: int) -> list[float]:
    return [float(value) for value in np.random.default_rng(count).normal(size=count)]


def N(op, operands, results, **attributes):
    domain = "" if onnx.defs.has(op, "") else "ai.onnx.ml"
    return helper.make_node(op, operands.split(), results.split(), domain=domain, **attributes)


def tensor(kind, *shape):
    return helper.make_tensor_type_proto(kind, shape)


FLOATS, LABEL, SCORES = tensor(T.FLOAT, "n", 3), tensor(T.STRING, "n"), tensor(T.FLOAT, "n", 3)
CHANCE = helper.make_map_type_proto(T.STRING, tensor(T.FLOAT))


def built(nodes, inputs, outputs, opset=15) -> onnx.ModelProto:
    """Return a model; `inputs` and `outputs` map names to types, and the weights w [3, 4] and u [4, 4] are there."""
    read = {name for node in nodes for name in node.input}
    held = {"w": W, "u": U, "row": np.array([1, -1]), "zero": np.int64(0)}
    weights = [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items() if name in read]
    ports = [[helper.make_value_info(*pair) for pair in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *ports, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return model


def case(*nodes, inputs, outputs, opset=15, **more) -> Case:
    return Case(partial(built, nodes, inputs, outputs, opset), **more)


PRODUCTS = (N("MatMul", "v w", "p"), N("MatMul", "p u", "y"))
Y = {"y": tensor(T.FLOAT, "n", 4)}
LINEAR = {"coefficients": numbers(9), "intercepts": numbers(3), "classlabels_strings": COLOURS}
WORDS = (
    N("StringNormalizer", "text", "low", case_change_action="LOWER", locale="C", is_case_sensitive=0,
      stopwords=["the"]),
    N("Reshape", "low row", "low1"),
    N("TfIdfVectorizer", "low1", "v", mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
      ngram_counts=[0], ngram_indexes=[0, 1, 2], pool_strings=["cat", "dog", "sun"]),
)  # fmt: skip
WORD = {"word": tensor(T.STRING, "n", 1)}

CASES = {
    "a": case(
        N("Identity", "x", "x1"), N("Scaler", "x1", "s", offset=numbers(3), scale=[1.0, 2.0, 0.5]),
        N("LinearClassifier", "s", "label scores", post_transform="SOFTMAX", **LINEAR),
        N("Normalizer", "scores", "p", norm="L1"), N("ZipMap", "p", "chances", classlabels_strings=COLOURS),
        inputs={"x": FLOATS}, outputs={"label": LABEL, "chances": helper.make_sequence_type_proto(CHANCE)},
    ),
    "b": case(
        N("LabelEncoder", "word", "code", keys_strings=["a", "b"], values_floats=[1.0, 2.0], default_float=-1.0),
        N("Concat", "x code", "all", axis=1), N("Imputer", "all", "full", imputed_value_floats=[0.0]),
        N("TreeEnsembleClassifier", "full", "label scores", **TREE, **CLASSES), N("Identity", "scores", "p"),
        inputs={"x": tensor(T.FLOAT, "n", 2), **WORD}, outputs={"label": tensor(T.INT64, "n"), "p": SCORES},
    ),
    "c": case(*WORDS, *PRODUCTS, inputs={"text": tensor(T.STRING, "words")}, outputs={"y": tensor(T.FLOAT, 1, 4)}),
    "d": case(
        N("MatMul", "x u", "p"), N("MatMul", "p u", "q"),
        N("LinearRegressor", "q", "v", coefficients=numbers(8), intercepts=numbers(2), targets=2),
        N("Identity", "v", "v1"), N("Binarizer", "v1", "y", threshold=0.0),
        inputs={"x": tensor(T.FLOAT, None, 4)}, outputs={"y": tensor(T.FLOAT, None, 2)},
    ),
    "given texts": case(
        *WORDS, *PRODUCTS, inputs={"text": tensor(T.STRING, "words")}, outputs={"y": tensor(T.FLOAT, 1, 4)},
    )._replace(inputs={"text": np.array(["The", "cat", "dog"])}),
    "a map": case(
        N("DictVectorizer", "m", "v", string_vocabulary=["x", "y", "z"]), *PRODUCTS,
        inputs={"m": CHANCE}, outputs={"y": tensor(T.FLOAT, 1, 4)},
    ),
    "a map of numbers": case(
        N("CastMap", "m", "v", cast_to="TO_FLOAT", map_form="DENSE"), N("Identity", "v", "y"),
        inputs={"m": helper.make_map_type_proto(T.INT64, tensor(T.FLOAT))}, outputs={"y": tensor(T.FLOAT, 1, "k")},
    ),
    "a sequence": case(
        N("SequenceAt", "xs zero", "v"), *PRODUCTS,
        inputs={"xs": helper.make_sequence_type_proto(tensor(T.FLOAT, 2, 3))}, outputs={"y": tensor(T.FLOAT, 2, 4)},
    ),
    "an optional value": case(
        N("OptionalGetElement", "o", "v"), *PRODUCTS,
        inputs={"o": helper.make_optional_type_proto(tensor(T.FLOAT, 2, 3))}, outputs={"y": tensor(T.FLOAT, 2, 4)},
    ),
    "categories": case(
        N("OneHotEncoder", "c", "v0", cats_int64s=[4, 6, 8], zeros=0), N("Constant", "", "axis", value_ints=[1]),
        N("Squeeze", "v0 axis", "v"), *PRODUCTS, inputs={"c": tensor(T.INT64, "n", 1)}, outputs=Y,
    ),
    "codes of words": case(
        N("CategoryMapper", "word", "code", cats_strings=["a", "b"], cats_int64s=[2, 3], default_int64=-1),
        N("Cast", "code", "v", to=T.FLOAT), N("Scaler", "v", "y", offset=[1.0], scale=[2.0]),
        inputs=WORD, outputs={"y": tensor(T.FLOAT, "n", 1)},
    ),
    "chosen columns": case(
        N("ArrayFeatureExtractor", "x i", "v"), *PRODUCTS,
        inputs={"x": tensor(T.FLOAT, 5, 8), "i": tensor(T.INT64, 1, 3)}, outputs={"y": tensor(T.FLOAT, 5, 4)},
    ),
    "a regression by trees": case(
        N("MatMul", "x w", "p"), N("MatMul", "p u", "q"), N("TreeEnsembleRegressor", "q", "y", **TREE, **TARGETS),
        inputs={"x": FLOATS}, outputs={"y": tensor(T.FLOAT, "n", 1)},
    ),
    "a support vector machine": case(
        N("SVMRegressor", "x", "y", coefficients=[1.0, -1.0], support_vectors=numbers(6), rho=[0.5], n_supports=2,
          kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0]),
        inputs={"x": FLOATS}, outputs={"y": tensor(T.FLOAT, "n", 1)},
    ),
    "joined features": case(
        N("FeatureVectorizer", "a b", "v", inputdimensions=[1, 2]), *PRODUCTS,
        inputs={"a": tensor(T.FLOAT, "n", 1), "b": tensor(T.FLOAT, "n", 2)}, outputs=Y,
    ),
    "a classifier of integers": case(
        N("LinearClassifier", "x", "label scores", post_transform="LOGISTIC", **LINEAR),
        inputs={"x": tensor(T.INT64, "n", 3)}, outputs={"label": LABEL, "scores": SCORES},
    ),
    "texts passed on": case(
        N("Identity", "word", "again"), N("MatMul", "v w", "p"), N("MatMul", "p u", "y"),
        inputs={"v": FLOATS, **WORD}, outputs={"again": tensor(T.STRING, "n", 1), **Y},
    ),
}  # fmt: skip
