import dataclasses
import inspect
import re
from pathlib import Path
from typing import get_origin

import pytest
import yaml
from omegaconf import OmegaConf

from controllers import CONTROLLERS
from controllers.controller_options import CONFIGS as CONTROLLER_CONFIGS
from controllers.controller_options import controller_config
from rlflow.cli.main import parse
from rlflow.cli.optimise import chosen_options
from rlflow.cli.train_controller import chosen_models
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import shape_words
from rlflow.common.options import options_of
from rlflow.common.system import usable_cores
from rlflow.env import EnvOptions
from rlflow.env.graph_rewrite import EnvSpec
from rlflow.runs.config import PAGE, all_options, load_config, page, parse_shapes, tree
from rlflow.runs.folder import iteration_options
from rlflow.search import SEARCHES, SearchOptions
from tests.suite import check_each
from worldmodel import WORLD_MODELS
from worldmodel.world_model_options import COMMON, CONFIGS, world_model_config

ROOT = Path(__file__).parents[2]
DEFAULT = yaml.safe_load(PAGE.read_text())


def leaves(tree: dict, prefix: str = "") -> list[str]:
    return [
        leaf
        for key, value in tree.items()
        for leaf in (leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"])
    ]


def refusal(*overrides: str, files=(), **changes) -> str:
    with pytest.raises(RLFlowError) as caught:
        load_config(files, overrides, changes=changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- the defaults, and their page ------------------------------------------------------------------


def test_the_page_of_options_is_up_to_date():
    """The page of options is up to date; python -m rlflow.runs.config writes it."""
    assert PAGE.read_text() == page()


def test_the_defaults_load_and_pass_their_own_checks(tmp_path):
    config = load_config()
    assert OmegaConf.to_yaml(config) == OmegaConf.to_yaml(OmegaConf.load(PAGE))
    assert OmegaConf.to_container(load_config([PAGE])) == OmegaConf.to_container(config)
    assert OmegaConf.is_readonly(config)


@pytest.mark.parametrize(
    "group, kind",
    [
        ({name: DEFAULT["world_model"][name] for name in COMMON} | DEFAULT["world_model"][kind], CONFIGS.get(kind))
        for kind in CONFIGS
    ]
    + [(DEFAULT["controller"].get(name), CONTROLLERS.get(name).Config) for name in CONTROLLERS],
    ids=[*CONFIGS, *CONTROLLERS],
)
def test_the_default_file_has_the_options_of_the_dataclasses_and_no_others(group, kind):
    """The default file and the dataclasses have the same options and the same default values."""
    fields = {field.name: field.type for field in dataclasses.fields(kind) if "group" not in field.metadata}
    assert group.keys() == fields.keys()
    group = {key: tuple(value) if isinstance(value, list) else value for key, value in group.items()}
    for key, value in group.items():
        outer = tuple if get_origin(fields[key]) is tuple else fields[key]
        assert isinstance(value, outer) or (outer is float and isinstance(value, int)), key
    assert kind(**{**group, "name": kind.name} if "name" in group else group) == kind()


def test_the_registered_options_of_a_controller_are_the_config_of_its_class():
    assert list(CONTROLLER_CONFIGS) == list(CONTROLLERS)
    for name in CONTROLLERS:
        assert CONTROLLER_CONFIGS.get(name) is CONTROLLERS.get(name).Config


def test_the_section_of_world_models_has_common_options_and_a_group_for_each_model():
    section = DEFAULT["world_model"]
    assert section.keys() == {*COMMON, *CONFIGS} and set(WORLD_MODELS) <= set(CONFIGS)
    for kind in CONFIGS:
        options = CONFIGS.get(kind)
        config = world_model_config(section | {"name": kind, "holdout": 0.25})
        assert type(config) is options and (config.name, config.holdout) == (kind, 0.25)
        assert all(getattr(config, name) == value for name, value in section[kind].items())


def test_an_env_spec_has_the_options_of_env_and_cost():
    names = {field.name for field in dataclasses.fields(EnvSpec)}
    own = {"model", "shapes", "fix", "cost", "threads", "database", "inputs", "custom_ops"}
    assert names == own | DEFAULT["env"].keys()
    assert DEFAULT["cost"].keys() == {"name", "threads", "database"}
    spec = EnvSpec("model.onnx")
    assert DEFAULT["cost"]["threads"] is None  # None stands for the cores of this machine.
    assert (spec.cost, spec.threads, spec.database) == (DEFAULT["cost"]["name"], usable_cores(), None)
    for name in options_of(EnvOptions):
        value = getattr(spec, name)
        assert DEFAULT["env"][name] == (list(value) if isinstance(value, tuple) else value)


def test_every_option_is_used():
    """Check that code outside its class reads each option as an attribute; `EnvSpec` reads the options of `env`
    itself."""
    packages = (ROOT / name for name in ("rlflow", "worldmodel", "controllers"))
    text = "\n".join(path.read_text() for package in packages for path in package.rglob("*.py"))
    groups = "config|options|env|cost|collect|dream|eval|controller|world_model|iterations|placement"
    readers = rf"(?=(?:{groups})\w*\.(\w+))"  # A lookahead, because the matches may overlap.
    used = set(re.findall(readers, text))
    own = set(re.findall(r"self\.(\w+)", (ROOT / "rlflow" / "env" / "graph_rewrite.py").read_text()))

    def check(leaf: str) -> None:
        key = leaf.split(".")[-1]
        assert key in used or (leaf.startswith("env.") and key in own), "nothing reads it"

    check_each(check, [leaf for leaf in leaves(DEFAULT) if not re.match(r"search\.[^.]+\.", leaf)])


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_takes_exactly_the_options_of_its_group(name):
    parameters = inspect.signature(SEARCHES.get(name)).parameters
    assert list(parameters) == ["search", *DEFAULT["search"][name]]
    assert list(SearchOptions.groups) == list(SEARCHES)


def test_every_option_has_a_comment_and_every_choice_is_in_it():
    for line in PAGE.read_text().splitlines():
        if re.match(r"\s*[\w-]+: *[^\s#]", line):
            assert re.search(r"\S +# \w", line), f"no comment: {line}"
        assert len(line) <= 120
    for name, option in all_options().items():
        assert all(choice in option.help for choice in option.choices), name


def test_every_option_is_known_by_its_dotted_name_and_its_default_is_allowed():
    assert list(all_options()) == leaves(DEFAULT) == leaves(tree().defaults)
    for name, option in all_options().items():
        assert option.kind is dict or option.error_of(option.default) is None, name
        assert not option.choices or option.kind is str
        assert option.kind in (int, float) or (option.at_least is None and option.at_most == float("inf")), name


# -- layers ----------------------------------------------------------------------------------------


def test_later_sources_of_an_option_override_earlier_ones(tmp_path):
    base, first, second = (tmp_path / name for name in ("base.yaml", "first.yaml", "second.yaml"))
    base.write_text("seed: 1\nworkers: 3\nenv: {alpha: 0.1, beta: 0.1}\n")
    first.write_text("seed: 2\nenv: {alpha: 0.3}\n")
    second.write_text("seed: 3\n")
    config = load_config([first, second], ["seed=4", "seed=5", "dream.temperatures=[0.5,1]"], base, {"seed": 6})
    assert (config.seed, config.workers, config.env.alpha, config.env.beta) == (6, 3, 0.3, 0.1)
    assert list(config.dream.temperatures) == [0.5, 1]
    assert load_config([first, second], ["seed=4", "seed=5"], base).seed == 5
    assert load_config([first, second], base=base).seed == 3
    assert load_config([second, first], base=base).seed == 2
    assert load_config(base=base).seed == 1
    assert config.collect.episodes == DEFAULT["collect"]["episodes"]


@pytest.mark.parametrize(
    "path", ["run #1/r.json", "2024", "null", "a: b.json", "[x]", "it's \"so\"", "größer/😀.json", "1e3"]
)  # fmt: skip
def test_a_path_on_the_command_line_is_taken_literally(path):
    """A path is never read as a comment, a number, null, a mapping or a list."""
    files = ["--receipt", path, "--controller", path]
    chosen = chosen_options(parse(["optimise", "tiny_resnet18", "--out", "x.onnx", *files]))
    models = chosen_models(parse(["train-controller", "--run", "x", "--models", f"tiny_resnet18, {path}"]))
    config = load_config(overrides=[*chosen, *models])
    assert config.optimise.receipt == config.optimise.controller == path
    assert list(config.controller.xrlflow.also) == ["tiny_resnet18", path]


def test_a_file_may_set_few_options_or_none(tmp_path):
    for path in (ROOT / "configs").glob("*.yaml"):
        load_config([path])
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    assert load_config([empty]) == load_config()
    (tmp_path / "small.yaml").write_text("controller:\n  cma-es:\n    sigma0: 5e-1\n")
    assert load_config([tmp_path / "small.yaml"]).controller["cma-es"].sigma0 == 0.5


def test_a_shipped_file_is_found_from_any_folder_after_the_users_own_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(["configs/demo.yaml"]) == load_config([ROOT / "configs" / "demo.yaml"]) != load_config()
    assert "cannot read configs/other.yaml: No such file" in refusal(files=["configs/other.yaml"])
    assert "cannot read demo.yaml: No such file" in refusal(files=["demo.yaml"])
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "demo.yaml").write_text("seed: 5\n")
    assert load_config(["configs/demo.yaml"]).seed == 5


def test_shapes_accept_any_input_or_symbol_name():
    config = load_config([PAGE], changes={"shapes": {"input": [1, 8], "batch": 2, "seq": [16, 128]}})
    assert config.shapes == {"input": [1, 8], "batch": 2, "seq": [16, 128]}


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override, near",
    [
        ("env.max_step=3", "env.max_steps"), ("sed=1", "seed"), ("worldmodel.steps=3", "world_model"),
        ("controller.ppo.lerning_rate=1", "controller.ppo.learning_rate"), ("max_steps=3", "env.max_steps"),
        ("controller.cmaes.popsize=3", "controller.cma-es"), ("cost.nam=analytic", "cost.name"),
    ],
)  # fmt: skip
def test_the_error_for_an_unknown_key_names_the_nearest_one(override, near):
    message = refusal(override)
    assert "unknown option" in message and f"did you mean '{near}" in message


def test_the_error_for_an_unknown_key_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("env: {rewrad: combined}\n")
    assert refusal(files=[path]) == f"{path}: unknown option 'env.rewrad'; did you mean 'env.reward'?"


@pytest.mark.parametrize(
    "override, message",
    [
        ("env.max_steps=many", "'env.max_steps' is a int, not 'many'"),
        ("env.max_steps=1.5", "'env.max_steps' is a int, not 1.5"),
        ("env.max_steps=true", "'env.max_steps' is a int, not True"),
        ("env.max_steps=", "'env.max_steps' is a int, not None"),
        ("env.alpha=high", "'env.alpha' is a float"),
        ("controller.ppo.anneal=1", "'controller.ppo.anneal' is a bool, not 1"),
        ("env.rules=fusion", "'env.rules' is a list, not 'fusion'"),
        ("env.rules=[1]", "'env.rules' is a list of str"),
        ("dream.temperatures=[hot]", "'dream.temperatures' is a list of float"),
        ("eval.seeds=[0.5]", "'eval.seeds' is a list of int"),
        ("controller=ppo", "'controller' is a group of options: name, seed, tag, max_steps, train_on"),
        ("controller.name=3", "'controller.name' is a str, not 3"),
        ("model=3", "'model' is a str, not 3"), ("model=[a]", "'model' is a str"),
        ("dream.max_steps=long", "'dream.max_steps' is a int, not 'long'"),
        ("cost.database=7", "'cost.database' is a str, not 7"),
        ("shapes=3", "'shapes' maps names to sizes"), ("shapes.x=0", "'shapes' maps names to sizes"),
        ("shapes.x=[1,a]", "'shapes' maps names to sizes"), ("shapes.x=[]", "'shapes' maps names to sizes"),
        ("novalue", "'novalue' is not of the form key=value"), ("=3", "'=3' is not of the form key=value"),
        ("env.rules=[a", "cannot read 'env.rules=[a'"),
        ("controller.train_on=dreams", "'controller.train_on' is one of dream, real, not 'dreams'"),
        ("controller.ppo.policy=kinds", "'controller.ppo.policy' is one of match-classes, two-stage, not 'kinds'"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused(override, message):
    assert message in refusal(override)


COUNTS = [
    "workers", "env.max_locations", "env.max_steps", "collect.episodes", "world_model.mdn-rnn.latent",
    "world_model.mdn-rnn.hidden",
    "world_model.mdn-rnn.gaussians", "world_model.mdn-rnn.steps", "world_model.mdn-rnn.batch_episodes",
    "world_model.mdn-rnn.max_sequence",
    "world_model.mdn-rnn.learning_rate", "world_model.mdn-rnn.gradient_clip", "cost.threads", "dream.max_steps",
    "controller.ppo.updates", "controller.ppo.envs", "controller.ppo.minibatches",
    "controller.cma-es.sigma0", "controller.random.dreams", "eval.sessions", "eval.tolerance",
]  # fmt: skip


def test_no_budget_or_size_may_be_zero_or_negative():
    def check(key: str) -> None:
        assert refusal(f"{key}=0").endswith(f"'{key}' must be above 0, not 0")
        assert refusal(f"{key}=-1").endswith(f"'{key}' must be above 0, not -1")

    check_each(check, COUNTS)
    load_config(overrides=[f"{key}=1" for key in COUNTS])


def test_options_with_minimum_zero_accept_zero_and_no_negative_number():
    keys = sorted(name for name, option in all_options().items() if option.at_least == 0)
    value = {key: (lambda n: f"[{n}]") if all_options()[key].many else str for key in keys}

    def check(key: str) -> None:
        assert f"'{key}' must be 0 or more, not -1" in refusal(f"{key}={value[key](-1)}")

    check_each(check, keys)
    load_config(overrides=[f"{key}={value[key](0)}" for key in keys])


def test_a_generation_has_at_least_four_individuals():
    for size in (-1, 0, 3):
        assert refusal(f"controller.cma-es.popsize={size}").endswith(
            f"'controller.cma-es.popsize' must be 4 or more, not {size}"
        )
    load_config(overrides=["controller.cma-es.popsize=4"])


@pytest.mark.parametrize(
    "override",
    [
        "seed=2147483648", "world_model.holdout=1.0", "controller.ppo.gamma=1.01", "env.alpha=.nan", "env.beta=.inf",
        f"env.beta={10**400}", f"collect.episodes={10**400}",
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_refused(override):
    assert "must be" in refusal(override)


def test_an_empty_or_repeating_list_is_refused():
    for override in ("eval.seeds=[]", "dream.temperatures=[]", "dream.temperatures=[1.0,1.0]", "eval.seeds=[1,1]"):
        assert "needs at least one value, and none twice" in refusal(override)


def test_the_seed_of_the_command_line_is_checked_too():
    assert refusal(seed=-1) == "command line: 'seed' must be 0 or more, not -1"


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "${seed}", "x${oc.env:HOME}y", "${oc.decode:3}"])
def test_no_interpolation_reads_the_environment(tmp_path, monkeypatch, text):
    monkeypatch.setenv("HOME", "a-secret")
    path = tmp_path / "leak.yaml"
    for key in ("model", "cost.database", "env.reward"):
        message = refusal(f"{key}={text}")
        assert "interpolation" in message and "a-secret" not in message
    for content in (f"model: '{text}'", f"env: {{rules: ['{text}']}}", f"shapes: {{x: '{text}'}}", f"shapes: '{text}'"):
        path.write_text(content)
        message = refusal(files=[path])
        assert "a-secret" not in message and str(path) in message


@pytest.mark.parametrize(
    "content",
    [
        "model: !!python/object/apply:os.mkdir [{path}]", "model: !!python/object/new:os.mkdir [{path}]",
        "!!python/object/apply:os.mkdir [{path}]", "model: !!python/name:os.mkdir", "model: !!python/module:os",
    ],
)  # fmt: skip
def test_no_yaml_tag_is_executed(tmp_path, content):
    path = tmp_path / "evil.yaml"
    path.write_text(content.format(path=tmp_path / "made"))
    assert "evil.yaml" in refusal(files=[path])
    assert not (tmp_path / "made").exists()
    refusal(content.format(path=tmp_path / "made").replace("model: ", "model="))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [b"- a\n- b\n", b"just text", b"a: [", b"seed: 1\nseed: 2\n", b"\xff\xfe\x00"])
def test_a_malformed_file_is_named(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    assert "bad.yaml" in refusal(files=[path])
    assert "bad.yaml" in refusal(files=[tmp_path / "gone" / "bad.yaml"])
    assert "cannot read" in refusal(files=[tmp_path])


# -- options of other groups -----------------------------------------------------------------------


def test_the_planner_takes_the_options_of_its_searches_from_their_groups():
    chosen = "controller.name=planner"
    changed = load_config(overrides=[chosen, "search.beam.width=2", "search.annealing.focus=0"])
    planner = controller_config(changed)
    assert (planner.beam_search.width, planner.beam_search.depth, planner.annealing_search.focus) == (
        2,
        DEFAULT["search"]["beam"]["depth"],
        0,
    )
    assert controller_config(load_config(overrides=[chosen])) == CONTROLLER_CONFIGS.get("planner")()


def test_options_of_other_groups_count_only_for_iterations_of_controllers_that_read_them():
    planner, ppo = (
        iteration_options(load_config(overrides=[f"controller.name={name}", "search.beam.width=2"]))
        for name in ("planner", "ppo")
    )
    assert (
        planner["search.beam.width"] == 2 and "search.annealing.steps" in planner and "search.taso.alpha" not in planner
    )
    assert not any(name.startswith("search") for name in ppo)


# -- --shape ---------------------------------------------------------------------------------------


def test_shapes_on_the_command_line_are_parsed():
    assert parse_shapes(["input_ids=1x128", "batch=4", "a=b=2x3"]) == {"input_ids": [1, 128], "batch": 4, "a=b": [2, 3]}
    assert parse_shapes(["seq=16,128,512", "past + seq=8"]) == {"seq": [16, 128, 512], "past + seq": 8}
    assert parse_shapes([]) == {}


def test_shapes_written_as_arguments_are_parsed_to_the_same_shapes():
    for shapes in ({}, {"input_ids": [1, 128], "batch": 4}, {"seq": [16, 128, 512]}):
        words = shape_words(shapes, fix=False)
        assert parse_shapes(words[1::2]) == shapes and set(words[::2]) <= {"--shape"}
        assert shape_words(shapes, fix=True) == [*words, "--fix"]


@pytest.mark.parametrize(
    "text",
    ["x", "=3", "x=", "x=0", "x=1x0", "x=-1", "x=1x", "x=1,", "x=1,0", "x=1x2,3", "x=a", "x=1.5", "x=²"],
)
def test_a_malformed_shape_is_refused(text):
    with pytest.raises(RLFlowError, match="--shape takes NAME=128, NAME=16,128 or NAME=1x128"):
        parse_shapes([text])


# -- dotted keys in files --------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "controller.ppo.updates: 5", "controller: {ppo.updates: 5}", "controller: {ppo: {updates: 5}}",
    "controller.ppo: {updates: 5}", "controller.ppo: {updates: 4}\ncontroller: {ppo.updates: 5}",
    "controller.name: cma-es\ncontroller: {ppo: {updates: 5}}\nenv.max_steps: 7",
    "controller: {name: cma-es}\ncontroller.ppo.updates: 5",
])  # fmt: skip
def test_a_file_may_name_an_option_by_its_dotted_name(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    config = load_config([tmp_path / "x.yaml"])
    assert config.controller.ppo.updates == 5
    assert config.controller.name == ("cma-es" if "name" in text else load_config().controller.name)
    assert config.env.max_steps == (7 if "env" in text else load_config().env.max_steps)


def test_names_in_a_model_keep_their_dots_and_unknown_names_are_refused(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("shapes: {x.1: 4}\nshapes.batch: 3")
    assert OmegaConf.to_container(load_config([file]).shapes) == {"x.1": 4, "batch": 3}
    for text in ("controller.ppo.update: 5", "controller: {ppo.update: 5}", "controller.ppo: {update: 5}"):
        file.write_text(text)
        assert "unknown option 'controller.ppo.update'; did you mean 'controller.ppo.updates'?" in refusal(files=[file])
    file.write_text("controller.ppo.updates: '${seed}'")
    assert "interpolation" in refusal(files=[file])
    file.write_text("controller.ppo: 5")
    assert "'controller.ppo' is a group of options" in refusal(files=[file])
