"""Test the note about options without effect: one line names the options and their cause."""

import pytest

from rlflow.runs.config import all_options, load_config, tree
from rlflow.runs.effects import given_options, without_effect
from rlflow.runs.folder import RunFolder

REAL = ["controller.name=xrlflow", "controller.train_on=real"]
CASES = [  # Options, cause, options without effect.
    (["controller.name=planner", "controller.ppo.updates=5"], "controller.name=planner", "controller.ppo.updates"),
    (["controller.name=ppo", "controller.ppo.updates=5"], None, None),
    (["controller.ppo.updates=60"], None, None),  # This is the default value.
    (
        ["world_model.name=edits", "world_model.graph-mdn.width=8"],
        "world_model.name=edits", "world_model.graph-mdn.width",
    ),
    (["env.alpha=0.5", "env.beta=0.1"], "env.reward=relative", "env.alpha, env.beta"),
    (["env.alpha=0.5", "env.reward=combined"], None, None),
    (["env.measure_every=null"], "env.reward=relative", "env.measure_every"),
    (["dream.temperatures=[0.5]", "controller.name=planner"], "controller.name=planner", "dream.temperatures"),
    (["dream.temperatures=[0.5]"], None, None),
    (["dream.max_steps=5", *REAL], "controller.train_on=real", "dream.max_steps"),
    (["controller.interactions=5"], "controller.train_on=dream", "controller.interactions"),
    (["controller.measurement_seconds=5", *REAL], "env.reward=relative", "controller.measurement_seconds"),
    (["iterations.interactions=5", "iterations.count=1"], "iterations.count=1", "iterations.interactions"),
    (["iterations.interactions=5"], None, None),
    (
        ["controller.name=cma-es", "controller.cma-es.hidden=4"],
        "controller.cma-es.policy=linear", "controller.cma-es.hidden",
    ),
    (
        ["world_model.name=mdn-rnn", "world_model.mdn-rnn.evaluate_every=7"],
        "world_model.mdn-rnn.patience=0", "world_model.mdn-rnn.evaluate_every",
    ),
]  # fmt: skip


@pytest.mark.parametrize("given, cause, names", CASES, ids=[" ".join(given) for given, *_ in CASES])
def test_an_option_without_effect_is_named_with_its_cause(given, cause, names):
    lines = [f"note: with {cause} there is no effect of {names}"] if names else []
    assert without_effect(load_config(overrides=given), given_options([], given)) == lines


def test_a_file_may_configure_several_components(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("controller: {ppo: {updates: 5}}\nenv: {alpha: 0.5}\n")
    lines = without_effect(load_config([file]), given_options([file], []))
    assert lines == ["note: with env.reward=relative there is no effect of env.alpha"]


def test_every_condition_names_an_option_and_allows_one_of_its_values():
    for name, option in all_options().items():
        for other, values in option.used_if.items():
            named = all_options()[other if "." in other else f"{name.rpartition('.')[0]}.{other}"]
            choices = named.choices or (range(1000) if named.kind is int else values)
            assert any(value in values for value in choices), (name, other)
    assert "name" in tree().entries["controller"].entries  # The rule for components relies on this entry.


def test_an_option_without_effect_is_noted_once_when_the_option_is_given(tmp_path, capsys):
    options = ["cost.name=analytic", "env.measure_every=3"]
    with RunFolder.open(tmp_path / "run", "tiny_squeezenet1_1", overrides=options).working():
        pass  # Opening the folder stores the options.
    assert capsys.readouterr().err.count("no effect") == 1
    RunFolder.open(tmp_path / "run")
    assert capsys.readouterr().err == ""
