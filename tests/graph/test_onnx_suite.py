"""Test a sample of the onnx package's backend tests; `python -m tests.nightly.onnx_suite` runs all of them."""

import sys
from functools import cache
from types import ModuleType

import numpy as np
import pytest

from tests.graph.test_onnx_files import RULES, model
from tests.nightly.onnx_cases import Case, Difference, compare, load_cases
from tests.nightly.onnx_suite import carried_through, examine, stamped_older, with_weights
from tests.suite import NIGHTLY, slow

SAMPLE = {
    "element by element": """add_bcast add_uint8 and_bcast4v3d bitwise_and_ui64_bcast_3v1d bitshift_left_uint8
        pow_bcast_array
        div_int32_trunc mod_mixed_sign_float16 clip_default_int8_max clip_expanded elu_example_expanded_ver18
        max_float16
        sum_two_inputs mean_one_input where_long_example isinf_float16 prelu_broadcast_expanded hardswish_expanded""",
    "types": """cast_FLOAT_to_BFLOAT16 cast_FLOAT16_to_FLOAT8E4M3FN cast_FLOAT_to_INT4
        castlike_BFLOAT16_to_FLOAT_expanded
        castlike_DOUBLE_to_FLOAT16 bitcast_float64_to_int64 range_bfloat16_type_positive_delta_expanded""",
    "shapes": """concat_3d_axis_negative_2 expand_dim_changed flatten_axis1 reshape_allowzero_reordered
        squeeze_negative_axes
        unsqueeze_three_axes slice_neg_steps split_variable_parts_2d_opset13 split_equal_parts_1d_opset18 tile
        transpose_all_permutations_0 constant_pad_axes wrap_pad center_crop_pad_crop_and_pad_expanded shape_clip_end
        depthtospace_example spacetodepth_example""",
    "picks": """gather_2d_indices gathernd_example_int32_batch_dim1 scatter_elements_with_reduction_max scatternd_add
        top_k
        onehot_with_axis nonzero_example compress_0 unique_sorted_with_axis reversesequence_time triu_one_row
        eyelike_with_dtype""",
    "empty and scalar": """constantofshape_int_shape_zero reduce_sum_empty_set reduce_max_empty_set
        split_zero_size_splits_opset18 sce_mean_3d identity size nllloss_NC string_concat_zero_dimensional
        nonmaxsuppression_single_box""",
    "reductions": """reduce_l2_keep_dims_random_expanded reduce_log_sum_exp_default_axes_keepdims_random_expanded
        reduce_mean_negative_axes_keepdims_random reduce_sum_square_do_not_keepdims_example
        argmax_negative_axis_keepdims_example
        cumsum_2d_axis_0 hardmax_axis_1""",
    "convolutions": """basic_conv_with_padding conv_with_autopad_same convtranspose_group_2 deform_conv_with_mask_bias
        globalaveragepool maxunpool_export_without_output_shape col2im_pads gridsample_bicubic
        resize_downsample_scales_cubic upsample_nearest affine_grid_2d""",
    "normalisations": """batchnorm_example batchnorm_epsilon_training_mode instancenorm_epsilon
        group_normalization_example_expanded layer_normalization_2d_axis0_expanded_ver18
        layer_normalization_default_axis
        rms_normalization_2d_axis1_expanded lrn mvn_expanded_ver18 l2normalization_axis_1 softmax_axis_0_expanded_ver18
        logsoftmax_large_number""",
    "products": """gemm_all_attributes gemm_default_matrix_bias gemm_default_scalar_bias matmul_1d_3d matmul_4d
        einsum_batch_matmul
        attention_3d_expanded attention_4d_with_past_and_present
        attention_23_boolmask_fullymasked_row_nan_robustness_expanded
        rotary_embedding_interleaved_expanded gelu_tanh_1_expanded""",
    "recurrent": "gru_seq_length lstm_with_peepholes lstm_bidirectional simple_rnn_with_initial_bias rnn_seq_length",
    "quantised": """quantizelinear_axis quantizelinear_e4m3fn quantizelinear_int4 dequantizelinear_blocked
        dequantizelinear_uint4
        dynamicquantizelinear_max_adjusted_expanded qlinearconv qlinearmatmul_3D_int8_float16 matmulinteger
        convinteger_without_padding""",
    "sequences and optionals": """sequence_insert_at_back sequence_map_add_1_sequence_1_tensor_expanded
        sequence_map_identity_1_sequence sequence_map_extract_shapes identity_sequence identity_opt
        optional_get_element_optional_sequence optional_has_element_empty_optional_input
        split_to_sequence_nokeepdims""",
    "subgraphs": "if if_opt if_seq loop11 loop13_seq loop16_seq_none scan_sum scan9_multi_state",
    "strings and other domains": """equal_string_broadcast string_concat_utf8 string_split_basic
        regex_full_match_email_domain
        strnormalizer_nostopwords_nochangecase tfidfvectorizer_tf_batch_onlybigrams_skip5 ai_onnx_ml_binarizer
        ai_onnx_ml_label_encoder_string_int ai_onnx_ml_tree_ensemble_set_membership""",
    "training and chance": """dropout_default_mask dropout_default_old training_dropout_mask training_dropout_zero_ratio
        training_dropout_default""",
    "signals": "blackmanwindow_expanded hannwindow_symmetric_expanded melweightmatrix",
}
MODELS = """simple/expand_shape_model1 simple/sequence_model1 simple/sequence_model6 simple/sequence_model8
    simple/sign_model
    pytorch-converted/Conv1d_dilated pytorch-converted/Conv2d_depthwise_with_multiplier
    pytorch-converted/ConvTranspose2d
    pytorch-converted/Embedding pytorch-converted/MaxPool3d_stride pytorch-converted/ReflectionPad2d
    pytorch-converted/log_softmax_lastdim pytorch-operator/operator_chunk pytorch-operator/operator_concat2
    pytorch-operator/operator_convtranspose real/squeezenet real/shufflenet""".split()
POOLS = """averagepool_2d_ceil averagepool_2d_pads_count_include_pad maxpool_with_argmax_2d_precomputed_strides
    maxpool_2d_uint8 lppool_2d_dilations"""
SLOW_MODULES = ("averagepool", "lppool", "maxpool")  # these modules compute their data in loops, for ten seconds
if NIGHTLY:
    SAMPLE["pools"] = POOLS
    MODELS.append("real/inception_v2")
NAMES = [f"node/{name}" for names in SAMPLE.values() for name in names.split()] + MODELS


@cache
def cases() -> dict[str, Case]:
    for name in () if NIGHTLY else SLOW_MODULES:
        name = f"onnx.backend.test.case.node.{name}"
        sys.modules.setdefault(name, ModuleType(name))  # an empty module prevents the import of the slow one
    names = {f"{case.kind}/{case.name.removeprefix('test_')}": case for case in load_cases()}
    return {name: names[name] for name in NAMES}


@pytest.mark.parametrize("name", [*NAMES[::6], *slow(*(name for k, name in enumerate(NAMES) if k % 6))])
def test_every_case_of_the_onnx_test_suite_survives_the_round_trip_and_rewrites(name):
    case = cases()[name]
    case = stamped_older(case) or case
    wanted = "equal in type and shape" if case.random else "equal"
    outcome = examine(case, RULES)
    assert outcome.verdict == wanted, outcome.reason
    weighted = with_weights(case)
    if weighted is not None:
        outcome = examine(weighted, RULES)
        assert outcome.verdict == wanted, outcome.reason


# -- the comparison itself ---------------------------------------------------------------------------

NAN, ONE = np.float32("nan"), np.float32(1)
UNEQUAL = [
    # (expected, result, relative tolerance)
    ([ONE], [ONE, ONE], 1),
    ([[ONE]], [ONE], 1),
    ([None], [ONE], 1),
    ([ONE], [np.float64(1)], 1),
    ([ONE], [np.ones(1, np.float32)], 1),
    ([ONE], [np.nextafter(ONE, np.float32(2))], 0),
    ([np.float32(0)], [np.float32(-0.0)], 0),
    ([ONE], [np.float32(1.001)], 1e-4),
    ([ONE], [NAN], 1e-4),
    ([NAN], [ONE], 1e-4),
    ([np.float32("inf")], [np.float32("-inf")], 1e-4),
    ([np.int64(10**6)], [np.int64(10**6 + 1)], 1e-4),
    ([np.array(["a"], object)], [np.array(["b"], object)], 1),
    ([[ONE, ONE]], [[ONE, np.float32(2)]], 1e-4),
]


@pytest.mark.parametrize("expected, result, tolerance", UNEQUAL, ids=range(len(UNEQUAL)))
def test_the_comparison_sees_every_difference(expected, result, tolerance):
    compare(expected, expected, tolerance, 0)
    with pytest.raises(Difference):
        compare(expected, result, tolerance, 0)


@pytest.mark.parametrize("change", ["attribute", "input", "name"])
def test_a_node_that_differs_from_the_original_is_noticed(change):
    before = model("g (float[2,2] x) => (float[2,2] y) { y = Gemm <alpha = 0.5, transA = 1> (x, x) }")
    after = model("g (float[2,2] x) => (float[2,2] y) { y = Gemm <transA = 1, alpha = 0.5> (x, x) }")
    carried_through(before, after)
    node = after.graph.node[0]
    match change:
        case "attribute":
            node.attribute[0].i = 2
        case "input":
            node.input.append("x")
        case "name":
            node.name = "gemm"
    with pytest.raises(Difference, match="Gemm is not as it was"):
        carried_through(before, after)
