"""Test the commands and scripts in README.md and docs/.

`make test` parses every command and script in a code block, and `make nightly` runs them. The commands of a page run in
their order, each page in its own folder. A command in `ELSEWHERE` is run by the test or benchmark that is named there.
For `python -m benchmarks.NAME` only the arguments are parsed, because a run takes long; for `tensorboard` the curves
to be shown are read. A command within a sentence must have a known subcommand and known options.

Commands and scripts run unchanged. To take only seconds, the options of tests/tiny.yaml become defaults, which options
of a command override, and the shipped sweeps are cut to one value, one seed and a tiny model.
"""

import argparse
import importlib
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlflow.cli.main import main, parse
from rlflow.graph.onnx_writer import save_model
from rlflow.runs import config, folder
from rlflow.runs.config import all_options
from rlflow.zoo import load
from tests.commands import TINY
from tests.docs.steps import PAGES, ROOT, Step, inline_of, steps_of
from tests.suite import check_each
from tests.toys import template
from tests.toys.weights import with_other_weights
from worldmodel.boards import read_curves

pytestmark = pytest.mark.usefixtures("eager")

ELSEWHERE = {  # pattern of commands → (the file that runs such a command, the text in this file that shows it)
    r"make( PYTHON=\S+)?( demo)?": ("benchmarks/first_use.py", '"demo"'),
    r"make demo-learn": ("Makefile", "run.py train-controller $(LEARN)"),
    r"make test": ("benchmarks/first_use.py", '"test"'),
    r"make nightly": ("Makefile", "-m tests.nightly"),
    r"make results.*": ("Makefile", "-m benchmarks $("),
    r"pip install \.": ("tests/nightly/installation.py", '"install", "--quiet"'),
    r"pip install \.\[learn\]": ("Makefile", "--editable '.[learn]'"),
    r"pip install \.\[agents\]": ("tests/nightly/installation.py", "[agents]"),
    r"ray start --head": ("tests/collect/test_ray.py", "Cluster("),
    r"RAY_ADDRESS=\S+ python run.py collect .*--executor ray.*": ("tests/collect/test_ray.py", '"--executor", "ray"'),
}
EXTRAS = {"sb3_contrib": "agents", "torch": "agents"}  # module → the extra of setup.py that provides it
# each of these pages ends with a file to look at
WAYS = ("docs/OPTIMISE_A_MODEL.md", "docs/TRAIN_AN_AGENT.md", "docs/REPRODUCE_A_TABLE.md")
BEFORE_AND_AFTER = re.compile(r"estimated: (\S+) ms, then (\S+) ms")
# recorded results name commands of the commit that made them
RECORDS = re.compile(r"<!-- begin: .*?<!-- end -->", re.DOTALL)
TEXTS = {page: RECORDS.sub(lambda block: "\n" * block[0].count("\n"), (ROOT / page).read_text()) for page in PAGES}
STEPS = {page: steps for page in PAGES if (steps := steps_of(page, TEXTS[page]))}


def extra_of(step: Step) -> str | None:
    """Return the extra that a script needs and that is not installed with the tests, or None."""
    modules = re.findall(r"^(?:from|import) (\w+)", step.script, re.MULTILINE)
    return next((EXTRAS[module] for module in modules if module in EXTRAS), None)


APART = [step for steps in STEPS.values() for step in steps if extra_of(step)]


# -- a reader's folder -----------------------------------------------------------------------------


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Prepare the working folder of a reader and return it.

    The folder has models of the reader and files that pages name; configurations and sweeps are short.
    """
    models = {"MODEL.onnx": load("tiny_resnet18"), "DYNAMIC.onnx": with_open_batch(load("tiny_resnet18"))}
    models["model.onnx"] = models["MODEL.onnx"]
    models["RETRAINED.onnx"] = with_other_weights(models["MODEL.onnx"])
    for name, model in models.items():
        save_model(model, tmp_path / name)
    short = yaml.safe_load(Path(TINY[1]).read_text(encoding="utf-8"))
    short["world_model"]["name"], short["controller"]["name"] = "edits", "planner"  # so that no stage needs TensorFlow
    short["controller"]["planner"]["steps"] = 500
    del short["env"]["max_locations"]  # scripts build tasks that must agree with the default
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(short))
    for file in (ROOT / "configs" / "sweeps").glob("*.yaml"):
        cut_sweep(file, tmp_path / "configs" / "sweeps" / file.name, short)

    def load_short(files=(), overrides=(), base=None, changes=None):
        files = list(files) if base else [tmp_path / "short.yaml", *files]
        return config.load_config(files, overrides, base, changes)

    monkeypatch.setattr(folder, "load_config", load_short)
    monkeypatch.setenv("HOME", str(tmp_path))  # no timings from outside the folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    template.register(tmp_path, monkeypatch)
    return tmp_path


def with_open_batch(model):
    """Return the model with an open batch size."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    return model


def cut_sweep(file: Path, target: Path, short: dict) -> None:
    """Write the sweep, cut to its first value and seed, on a tiny model without training."""
    sweep = yaml.safe_load(file.read_text(encoding="utf-8"))
    name, values = next(iter(sweep["parameters"].items()))
    first = values[:1] if isinstance(values, list) else dict(list(values.items())[:1])
    base = short | {"controller": {"name": "random", "random": {"dreams": 2}}}
    target.parent.mkdir(parents=True, exist_ok=True)
    cut = {"model": "tiny_resnet18", "base": base, "parameters": {name: first}, "seeds": sweep["seeds"][:1]}
    target.write_text(yaml.safe_dump(sweep | cut), encoding="utf-8")


# -- running ---------------------------------------------------------------------------------------


def run(step: Step, capsys) -> None:
    """Run a step in the working folder; fail if the step fails or if no test or benchmark runs such a command."""
    if step.script:
        run_script(step, capsys)
    elif step.words[0] == "rlflow":
        assert main(list(step.words[1:])) == 0, f"{where(step)}: {''.join(capsys.readouterr())}"
    elif step.words[:2] == ("python", "-m"):
        parse_module(step)
    elif step.words[0] == "tensorboard":
        logs = Path(step.words[step.words.index("--logdir") + 1])
        assert any(read_curves(events.parent) for events in logs.rglob("events.out.tfevents.*")), where(step)
    else:
        file, essence = runs_elsewhere(step)
        assert essence in (ROOT / file).read_text(), f"{where(step)}: {file} does not run it any more"


def runs_elsewhere(step: Step) -> tuple[str, str]:
    said = [entry for pattern, entry in ELSEWHERE.items() if re.fullmatch(pattern, step.text)]
    assert said, f"{where(step)}: no test and no benchmark runs this command"
    return said[0]


def run_script(step: Step, capsys) -> None:
    Path(step.file).write_text(step.script, encoding="utf-8")
    sys.modules.pop(Path(step.file).stem, None)  # a script of another page with the same name
    capsys.readouterr()
    runpy.run_path(step.file, run_name="__main__")
    check_gain(step, capsys.readouterr().out)


def check_gain(step: Step, said: str) -> None:
    """Check that no model costs more after a script has optimised it."""
    for before, after in BEFORE_AND_AFTER.findall(said):
        assert float(after) <= float(before), where(step)


class Parsed(Exception):
    pass


def parse_module(step: Step) -> None:
    """Check that the module exists and that its own parser accepts the arguments, without running the module."""
    name, arguments = step.words[2], [word for word in step.words[3:] if word != "…"]
    found = importlib.util.find_spec(name)
    assert found, f"{where(step)}: there is no {name}"
    module = f"{name}.__main__" if found.submodule_search_locations else name
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Parsed):
        parse_args = argparse.ArgumentParser.parse_args

        def parse_only(parser, *given):
            parse_args(parser, *given)
            raise Parsed

        patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        patch.setattr(sys, "argv", [name, *arguments])
        importlib.import_module(module).main()


def where(step: Step) -> str:
    return f"{step.page}:{step.line}: {step.text.splitlines()[0]}"


# -- tests -----------------------------------------------------------------------------------------


def test_every_command_of_a_page_can_be_parsed(capsys):
    """Commands are parsed and scripts compiled here without running them; `make nightly` also runs them."""
    check_each(check_understood, [step for steps in STEPS.values() for step in steps], where)


def check_understood(step: Step) -> None:
    if step.script:
        compile(step.script, where(step), "exec")
    elif step.words[0] == "rlflow":
        try:
            overrides = parse(list(step.words[1:])).overrides
        except SystemExit as ended:
            raise AssertionError(f"the command line leaves with {ended.code}") from None
        unknown = {option.partition("=")[0] for option in overrides} - all_options().keys()
        assert unknown <= {"seed", "workers", "model"}, unknown
    elif step.words[:2] == ("python", "-m"):
        parse_module(step)
    elif step.words[0] == "tensorboard":
        assert "--logdir" in step.words
    else:
        file, essence = runs_elsewhere(step)
        assert essence in (ROOT / file).read_text(), f"{file} does not run it any more"


@pytest.mark.nightly
@pytest.mark.parametrize("page", STEPS)
def test_every_command_of_a_page_runs(page, reader, capsys):
    for step in STEPS[page]:
        if step not in APART:
            run(step, capsys)
    if page in WAYS:
        missing = [name for name in looked_at(TEXTS[page]) if not (reader / name).exists()]
        assert looked_at(TEXTS[page]) and not missing


@pytest.mark.nightly
@pytest.mark.parametrize("step", APART, ids=where)
def test_a_script_with_extra_requirements_runs(step, reader):
    """The script runs in a process without TensorFlow, as its page says: PyTorch and TensorFlow may conflict."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (pip install '.[{extra_of(step)}]')")
    (reader / step.file).write_text(step.script)
    program = f"import runpy, sys; sys.modules['tensorflow'] = None; runpy.run_path({step.file!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    check_gain(step, done.stdout)


def looked_at(text: str) -> list[str]:
    """Return the files that a page tells its reader to look at: quoted names of files that its commands make."""
    return re.findall(r"`([\w./-]+\.(?:html|png|csv))`", text)


def test_commands_in_sentences_exist(capsys):
    """Each command in a sentence has an existing subcommand or module and existing options; … is a placeholder."""

    def check(step: Step) -> None:
        if step.words[0] == "rlflow":
            check_options(step, capsys)
        elif step.words[:2] == ("python", "-m") and "…" not in step.text:
            parse_module(step)

    check_each(check, [step for page in PAGES for step in inline_of(page, TEXTS[page])], where)


def check_options(step: Step, capsys) -> None:
    """Check subcommand and options against the help text, because a sentence may leave out required options."""
    first = next((k for k, word in enumerate(step.words) if word.startswith("-")), len(step.words))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        parse([*step.words[1:first], "--help"])
    assert not ended.value.code, f"{where(step)}: there is no such command"
    known = re.findall(r"--[\w-]+", capsys.readouterr().out)
    assert [word for word in step.words if word.startswith("--") and word not in known] == [], where(step)
    options = [word.partition("=")[0] for word in step.words if re.match(r"[a-z_.-]+=", word)]
    assert set(options) <= all_options().keys() | {"seed", "workers", "model"}, where(step)


@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
def test_the_extras_that_scripts_need_are_declared(extra):
    assert f'"{extra}": [' in (ROOT / "setup.py").read_text()


@pytest.mark.parametrize("text, reason", [
    ("```\nmake publish\n```", "no test and no benchmark"),
    ("```\nrlflow zoo  # shows them\ndocker run x\n```", "no test and no benchmark"),
    ("```\npython run.py validate MODEL.onnx gone.onnx\n```", "the two models do NOT compute the same"),
    ("```\ntensorboard --logdir runs/x\n```", "tensorboard"),
    ("```\npython -m benchmarks.gone\n```", "there is no benchmarks.gone"),
])  # fmt: skip
def test_commands_that_fail_or_that_no_test_runs_are_refused(text, reason, reader, capsys):
    with pytest.raises(AssertionError, match=re.escape(reason)):
        for step in steps_of("page.md", text):
            run(step, capsys)


def test_a_script_without_a_gain_is_refused(reader, capsys):
    with pytest.raises(AssertionError):
        run_script(Step("page.md", 1, script='print("estimated: 1.0 ms, then 1.5 ms")\n'), capsys)


@pytest.mark.parametrize("text", ["~~~\nrlflow zoo\n~~~\n", "  ```\n  rlflow zoo\n  ```\n", "```\nrlflow 'x\n```\n"])
def test_code_blocks_that_would_not_be_read_are_refused(text):
    with pytest.raises(ValueError):
        steps_of("page.md", text)


def test_the_commands_and_scripts_of_a_page_are_extracted(capsys):
    text = "Say `run.py zoo --jsn x`.\n```\n$ .venv/bin/python run.py zoo   # all\n```\n```python\n# a.py\nx = 1\n```\n"
    command, script = steps_of("page.md", text)
    assert command.words == ("rlflow", "zoo") and command.line == 3
    assert script.file == "a.py" and script.line == 6
    (inline,) = inline_of("page.md", text)
    with pytest.raises(AssertionError, match="--jsn"):
        check_options(inline, capsys)
    (inline,) = inline_of("page.md", "Say `rlflow optimise MODEL.onnx --out x.onnx cost.nmae=analytic`.")
    with pytest.raises(AssertionError, match="cost.nmae"):
        check_options(inline, capsys)
    assert steps_of("page.md", "```\nrlflow zoo \\\n  --json x\n```\n")[0].words == ("rlflow", "zoo", "--json", "x")
    assert steps_of("page.md", "```\na rule => another\n```") == []
