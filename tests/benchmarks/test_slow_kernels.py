"""Test the catalogue of slow kernels: all forms of an operator agree, and a rule that makes a form is found."""


from benchmarks.slow_kernels import CATALOGUE, TINY, USUAL
from benchmarks.slow_kernels import __main__ as page
from rlflow.graph.onnx_runtime import run, session
from rlflow.optimisation.validate import relative_error
from tests.suite import each_of

# Dequantised forms do not round activations, so they differ from the quantised form.
TOLERANCES = {"quantised_conv": 0.3, "dynamic_matmul": 0.02}


@each_of(TINY)
def test_all_forms_of_an_operator_compute_the_same(name):
    build, sizes = TINY[name]
    kernel = build(*sizes)
    usual, *others = (run(session(model, 1), kernel.inputs)[0] for model in kernel.models().values())
    assert next(iter(kernel.forms)) == USUAL and others
    for output in others:
        assert output.shape == usual.shape
        assert relative_error(usual, output) < TOLERANCES.get(name, 1e-5)


def test_the_catalogue_has_tiny_sizes_of_every_operator_and_no_label_twice():
    assert {entry.build.__name__ for entry in CATALOGUE.values()} == set(TINY) and len(TINY) >= 30
    labels = [entry.label for entry in CATALOGUE.values()]
    assert len(set(labels)) == len(labels)


def test_the_rule_that_makes_a_form_is_named_and_results_of_other_rules_are_further_forms():
    build, sizes = TINY["group_norm"]
    rules, others = page.by_rules(build(*sizes).models())
    assert rules["InstanceNormalization, BatchNormalization"] == "mul-add-as-batchnorm"
    assert "mul-add-as-batchnorm" not in others
    build, sizes = TINY["dilated"]
    kernel = build(*sizes)
    rules, others = page.by_rules(kernel.models())
    usual, made = (run(session(one, 1), kernel.inputs)[0] for one in (kernel.models()[USUAL], others["conv-bias-out"]))
    assert relative_error(usual, made) < 1e-5


def test_the_tables_show_ratios_and_shares_of_the_longer_bound():
    name = "reduce_mean-64-256"
    seconds = {USUAL: 0.02, page.PRODUCT: 0.01, page.CONVOLUTION: 0.01, page.COPY: 0.005}
    turns = {"seconds": seconds, "ratios": {"other": [0.5, 0.4, 0.6], "good": [0.9] * 3, "bad": [1.0] * 3}}
    figures = {name: {"flops": 0, "bytes": 10**8, "errors": dict.fromkeys(("other", "good", "bad"), 1e-7),
                      "rules": {"other": None}, "threads": {"1": turns, "2": turns}}}  # fmt: skip
    tables = page.tables(figures)
    assert [list(row) for row in tables["forms"].rows] == [
        [CATALOGUE[name].label, "other", "no rule", "0.50", "0.50", "1e-07"],
        [CATALOGUE[name].label, "by the rule", "good", "0.90", "0.90", "1e-07"],
    ]
    assert list(tables["kernels"].rows[0])[2:] == ["memory", "20.000", "0.25", "0.25"]
    assert list(tables["bounds"].rows[2]) == ["copy, GB/s", "20", "20"]
