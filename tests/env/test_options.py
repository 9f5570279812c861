"""Test that `gymnasium.make` and `rlflow.load_task` refuse wrong options with the messages of the command line."""

import gymnasium
import numpy as np
import pytest

import rlflow
from rlflow.common.errors import RLFlowError
from rlflow.runs.config import load_config

MODEL = "tiny_squeezenet1_1"
FLAT = "rlflow/GraphRewriteFlat-v0"
WRONG = [  # Options of gymnasium.make, and KEY=VALUE of the command line.
    ({"moves": "alik"}, "env.moves=alik"),
    ({"max_steps": 0}, "env.max_steps=0"),
    ({"max_steps": -5}, "env.max_steps=-5"),
    ({"max_steps": "20"}, 'env.max_steps="20"'),
    ({"exact": "no"}, 'env.exact="no"'),
    ({"alpha": -1.0, "reward": "combined"}, "env.alpha=-1.0"),
    ({"threads": -2}, "cost.threads=-2"),
    ({"measure_every": 0, "reward": "measured"}, "env.measure_every=0"),
    # variants
    ({"exact": 1}, "env.exact=1"),
    ({"max_steps": 2.5}, "env.max_steps=2.5"),
    ({"max_steps": True}, "env.max_steps=true"),
    ({"max_locations": None}, "env.max_locations=null"),
    ({"rules": "fusion"}, "env.rules=fusion"),
    ({"rules": [1]}, "env.rules=[1]"),
    ({"beta": float("nan")}, "env.beta=.nan"),
    ({"unmeasured_reward": float("inf")}, "env.unmeasured_reward=.inf"),
    ({"measure_seconds": 0.0}, "env.measure_seconds=0.0"),
    ({"standard_operators_only": "false"}, 'env.standard_operators_only="false"'),
    ({"database": 3}, "cost.database=3"),
    ({"threads": "all"}, "cost.threads=all"),
    ({"reward": 5}, "env.reward=5"),
]


@pytest.mark.parametrize("options, text", WRONG, ids=[text for _, text in WRONG])
def test_a_wrong_value_gives_the_same_message_as_on_the_command_line(options, text):
    with pytest.raises(RLFlowError) as said:
        load_config(overrides=[text])
    words = str(said.value).removeprefix(f"{text}: ")
    for name in ("rlflow/GraphRewrite-v0", FLAT):
        with pytest.raises(RLFlowError) as mine:
            gymnasium.make(name, model=MODEL, **{"cost": "analytic", **options})
        assert str(mine.value) == words
    with pytest.raises(RLFlowError) as mine:
        rlflow.load_task(MODEL, **{"cost": "analytic", **options})
    assert str(mine.value) == words


@pytest.mark.parametrize(
    "options, words",
    [
        ({"max_step": 5}, "unknown option 'max_step'; did you mean 'max_steps'"),
        ({"reward": "relativ"}, "unknown reward 'relativ'; did you mean 'relative'"),
        ({"cost": "analytical"}, "did you mean 'analytic'"),
        ({"rules": ["fusio"]}, "unknown rule family 'fusio'"),
        ({"fix": "no"}, "'fix' is a bool, not 'no'"),
        ({"shapes": {"batch": 0}}, "'batch' is a size such as 128"),
        ({"shapes": [1, 3]}, "shapes map names to sizes"),
        ({"model": 5}, "a model is a path or a zoo name, not a int"),
    ],
)
def test_unknown_names_and_wrong_sizes_are_refused(options, words):
    with pytest.raises(RLFlowError, match=words):
        gymnasium.make("rlflow/GraphRewrite-v0", **{"model": MODEL, "cost": "analytic", **options})


def test_numbers_of_numpy_and_paths_are_accepted(tmp_path):
    env = gymnasium.make(
        "rlflow/GraphRewrite-v0", model=MODEL, cost="analytic", max_steps=np.int64(3), alpha=np.float32(0.5),
        rules=["fusion"], exact=np.bool_(True), database=tmp_path / "costs.sqlite",
    ).unwrapped  # fmt: skip
    assert env.max_steps == 3 and {rule.family for rule in env.task.rules} <= {"fusion"}
