"""What benchmarks.platforms asks for and reads; the network is its own."""

import pytest
from packaging.requirements import Requirement
from packaging.tags import cpython_tags
from packaging.utils import canonicalize_name

from benchmarks import platforms
from benchmarks.platforms import TARGETS, bars_of, manylinux, pinned, reason, requirements, table

X86_LINUX = {"sys_platform": "linux", "platform_machine": "x86_64"}
OTHERS = [
    {"sys_platform": "linux", "platform_machine": "aarch64"},
    {"sys_platform": "darwin", "platform_machine": "arm64"},
    {"sys_platform": "win32", "platform_machine": "AMD64"},
]
WHOLE = {
    "system": "A", "python": "3.11", "packages": ["a==1", "b==2"], "unpinned": [], "error": None,
    "wheels": {"a": "a-1-any.whl", "b": "b-2-any.whl"}, "extras": {},
}  # fmt: skip


@pytest.mark.parametrize("system", [X86_LINUX, *OTHERS], ids=lambda system: "-".join(system.values()))
def test_every_system_has_one_tensorflow(system):
    asked = [Requirement(line) for line in requirements()["learn"]]
    wanted = {one.name for one in asked if one.marker is None or one.marker.evaluate(system)}
    assert wanted & {"tensorflow", "tensorflow-cpu"} == {"tensorflow-cpu" if system is X86_LINUX else "tensorflow"}


def test_the_set_pins_what_setup_py_asks_for_and_within_its_bounds():
    pins = dict(pin.split("==") for pin in pinned())
    parts = requirements()
    for extra in ("", "learn", "test", "prove", "distributed", "platforms"):
        for one in map(Requirement, parts[extra]):
            assert one.specifier.contains(pins[canonicalize_name(one.name)]), str(one)


def test_wheels_for_an_older_glibc_run_and_those_for_a_newer_one_do_not():
    tags = manylinux("x86_64", 28, 5)
    assert tags[:2] == ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64") and tags[-1] == "manylinux1_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux2010_x86_64"} < set(tags)
    assert manylinux("aarch64", 28, 17)[-1] == "manylinux2014_aarch64"
    for target in TARGETS:
        assert len({str(tag) for tag in cpython_tags((3, 13), platforms=target.tags)}) > len(target.tags)


def test_the_reason_is_one_line_of_what_was_said():
    said = "error: No solution\n  cause: Because z3 has no\n\nhint: Wheels are needed\n"
    assert reason(said) == "Because z3 has no"
    assert reason("WARNING: x\nERROR: Could not find it\nERROR: No matching one for z3\n") == "No matching one for z3"
    assert reason("gone") == "gone"


def test_a_bar_holds_if_every_package_is_pinned_and_has_a_wheel():
    for change, holds in (
        ({}, True), ({"unpinned": ["b==2"]}, False), ({"wheels": {"a": "a-1-any.whl"}}, False),
        ({"error": "no"}, False), ({"packages": [], "wheels": {}}, False),
    ):  # fmt: skip
        (bar,) = bars_of([WHOLE | change])
        assert bar["holds"] is holds, change


def test_the_table_says_what_does_not_resolve_and_each_reason_once():
    lacking = WHOLE | {"system": "B", "extras": {"prove": "z3 has no wheel", "test": "z3 has no wheel"}}
    text = table({"resolved": {"a": WHOLE, "b": lacking, "c": WHOLE | {"error": "c has none"}}})
    assert "| A | 3.11 | 2 wheels | all |" in text and "| B | 3.11 | 2 wheels | all but `prove`, `test` |" in text
    assert "| A | 3.11 | **no** | all |" in text and text.count("z3 has no wheel") == 1 and "- c has none" in text


def test_extras_are_tried_one_by_one_only_where_they_do_not_resolve_together(monkeypatch, tmp_path):
    asked = []

    def resolved(wanted, *_):
        asked.append(wanted)
        if "bad" in wanted:
            raise platforms.RLFlowError("bad has no wheel")
        return wanted

    monkeypatch.setattr(platforms, "resolved", resolved)
    assert platforms.refused(["a"], {"x": ["good"], "y": ["fine"]}, TARGETS[0], "3.11", tmp_path) == {}
    assert asked == [["a", "good", "fine"]]
    extras = {"x": ["good"], "y": ["bad"]}
    assert platforms.refused(["a"], extras, TARGETS[0], "3.11", tmp_path) == {"y": "bad has no wheel"}
