import hashlib
import os
import subprocess
import sys
from math import prod

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from rlflow.common.errors import RLFlowError
from rlflow.zoo import ZOO, load
from tests.suite import at_night, slow

TINY = [name for name in ZOO if name.startswith("tiny_")]
SMALL = [*TINY, "light_squeezenet", "light_shufflenet"]  # models of every family that load quickly

IMAGE = [1, 3, 224, 224]
LIGHT = {  # name → (input, output, shape of the output)
    "light_squeezenet": ("data_0", "softmaxout_1", [1, 1000, 1, 1]),
    "light_resnet50": ("gpu_0/data_0", "gpu_0/softmax_1", [1, 1000]),
    "light_inception_v1": ("data_0", "prob_1", [1, 1000]),
    "light_inception_v2": ("data_0", "prob_1", [1, 1000]),
    "light_densenet121": ("data_0", "fc6_1", [1, 1000, 1, 1]),
    "light_shufflenet": ("gpu_0/data_0", "gpu_0/softmax_1", [1, 1000]),
    "light_vgg19": ("data_0", "prob_1", [1, 1000]),
    "light_bvlc_alexnet": ("data_0", "prob_1", [1, 1000]),
    "light_zfnet512": ("gpu_0/data_0", "gpu_0/softmax_1", [1, 1000]),
}
# Numbers of trained parameters as published with torchvision and Hugging Face (BERT with its pooler).
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "squeezenet1_1": 1_235_496,
    "inception_v3": 23_834_568,
    "shufflenet_v2": 2_278_604,
    "mobilenet_v2": 3_504_872,
    "bert_base": 109_482_240,
    "vit_base": 86_567_656,
}
# Models that take seconds to load and, for a moment, three times the size of their weights (1.8 GB for VGG-19).
HEAVY = {
    "light_vgg19", "light_bvlc_alexnet", "light_zfnet512", "bert_base", "vit_base", "light_resnet50",
    "light_inception_v1", "light_inception_v2", "light_densenet121", "resnet50", "inception_v3",
}  # fmt: skip


def lighter(names) -> list:
    """Return the names as test parameters; heavy models run at night only.

    The order is fixed, as pytest-xdist requires.
    """
    return [name for name in names if name not in HEAVY] + slow(*(name for name in names if name in HEAVY))


def shape(value):
    return [d.dim_value for d in value.type.tensor_type.shape.dim]


def random_inputs(model, seed):
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.integers(0, 2, shape(i))
        if i.type.tensor_type.elem_type == TensorProto.INT64
        else rng.standard_normal(shape(i), dtype=np.float32)
        for i in model.graph.input
    }


def run(model, seed=0):
    """Return the outputs in ONNX Runtime on random inputs, by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in model.graph.output]
    return dict(zip(names, session.run(names, random_inputs(model, seed)), strict=True))


def parameter_count(model):
    """Return the number of elements of the trained tensors.

    Constants (scalars, integers) and running statistics do not count.
    """
    return sum(
        prod(t.dims)
        for t in model.graph.initializer
        if t.data_type == TensorProto.FLOAT and t.dims and ".running_" not in t.name
    )


def digest(model):
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def test_every_entry_is_a_documented_function():
    for name in ZOO:
        assert ZOO.get(name).__doc__.startswith("Build "), name


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_are_valid_and_their_outputs_depend_on_their_input(name):
    model = load(name)
    onnx.checker.check_model(model, full_check=True)
    outputs, others = run(model), run(model, seed=1)
    for value in model.graph.output:
        y = outputs[value.name]
        assert list(y.shape) == shape(value)
        assert np.isfinite(y).all() and 0.1 < y.std() < 10
        assert np.abs(y - others[value.name]).max() > 1e-2


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", *slow("light_inception_v1")])
def test_light_logits_have_unit_scale(name):
    model = load(name)
    softmax = model.graph.node[-1]
    assert softmax.op_type == "Softmax"
    model.graph.output.append(onnx.ValueInfoProto(name=softmax.input[0]))
    logits = run(model)[softmax.input[0]]
    assert np.isfinite(logits).all() and 0.3 < logits.std() < 3


@pytest.mark.parametrize("name", lighter(LIGHT))
def test_light_models_keep_their_interface_and_have_weights(name):
    model = load(name)  # loading ends with the ONNX checker
    (x,), (y,) = model.graph.input, model.graph.output
    assert [(x.name, shape(x)), (y.name, shape(y))] == [(LIGHT[name][0], IMAGE), (LIGHT[name][1], LIGHT[name][2])]
    assert "ConstantOfShape" not in {node.op_type for node in model.graph.node}
    read = {tensor for node in model.graph.node for tensor in node.input}
    assert {t.name for t in model.graph.initializer} <= read
    constant = [t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT
                and t.raw_data[:4] * 4 == t.raw_data[:16]]
    assert not constant


def test_light_variances_are_positive():
    model = load("light_shufflenet")
    weights = {t.name: t for t in model.graph.initializer}
    variances = [weights[n.input[4]] for n in model.graph.node if n.op_type == "BatchNormalization"]
    assert variances and all((onnx.numpy_helper.to_array(v) >= 0.5).all() for v in variances)


@pytest.mark.parametrize("name", lighter(PARAMETERS))
def test_parameter_counts_are_the_published_ones(name):
    assert parameter_count(load(name)) == PARAMETERS[name]


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_determines_the_bytes(name):
    one, again, other = (digest(load(name, seed=seed)) for seed in (3, 3, 4))
    assert one == again != other


def test_the_bytes_do_not_depend_on_the_process():
    code = (
        "import sys, hashlib; from rlflow.zoo import load\n"
        "for n in sys.argv[1:]: print(hashlib.sha256(load(n).SerializeToString(deterministic=True)).hexdigest())"
    )
    here = [digest(load(name)) for name in SMALL]
    for hash_seed in at_night(("1", "2"), ("1",)):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        printed = subprocess.run(
            [sys.executable, "-c", code, *SMALL], env=environment, capture_output=True, text=True, check=True
        )
        assert printed.stdout.split() == here


@pytest.mark.parametrize("name", ["tiny_bert_base", "tiny_vit_base"])
def test_decomposed_and_fused_transformers_agree(name):
    decomposed, fused = load(name), load(f"{name}_fused")
    assert {"LayerNormalization", "Gelu"} <= {node.op_type for node in fused.graph.node}
    assert not {"LayerNormalization", "Gelu"} & {node.op_type for node in decomposed.graph.node}
    expected = run(decomposed)
    for output, y in run(fused).items():
        np.testing.assert_allclose(y, expected[output], rtol=1e-4, atol=1e-5)


def test_bert_ignores_the_tokens_that_are_masked():
    model = load("tiny_bert_base")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = random_inputs(model, seed=0)
    inputs["attention_mask"][:] = np.arange(16) < 8
    before = session.run(["last_hidden_state"], inputs)[0][:, :8]
    inputs["input_ids"][:, 8:] += 1
    np.testing.assert_allclose(session.run(["last_hidden_state"], inputs)[0][:, :8], before, atol=1e-6)
    inputs["input_ids"][:, :8] += 1
    assert np.abs(session.run(["last_hidden_state"], inputs)[0][:, :8] - before).max() > 1e-2


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(RLFlowError, match="did you mean 'resnet50'"):
        load("resnet_50")
