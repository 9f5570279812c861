"""Test that hostile model files give one clear line within a second and a gigabyte, whatever they declare.

Every file is loaded in its own process (tests/hostile.py). The program measures the memory and survives a crash.
"""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.commands import ROOT
from tests.suite import at_night, check_each

SECONDS, BYTES, WAIT = 1.0, 1e9, 600.0
HUGE = 2**40


def floats(name: str, shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes, inputs=None, weights=(), outputs=None, functions=(), opsets=(("", 17),)) -> onnx.ModelProto:
    """Return a model with one input x and one output y, float [2], unless others are given."""
    graph = helper.make_graph(nodes, "g", inputs or [floats("x", [2])], outputs or [floats("y", [2])], list(weights))
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))


def node(op: str, inputs: str, outputs: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


RELU = node("Relu", "x", "y")
ADD = node("Add", "x w", "y")


def weight(name="w", dims=(2,), dtype=TensorProto.FLOAT, **content) -> onnx.TensorProto:
    return TensorProto(name=name, dims=dims, data_type=dtype, **content)


def integers(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


# -- external data -------------------------------------------------------------------------------


def external(location="w.bin", dims=(2,), **entries) -> onnx.ModelProto:
    """Return a model whose weight lies in an external file."""
    tensor = weight(dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model([ADD], weights=[tensor])


def outside(folder: Path) -> Path:
    """Write a file of the right size outside the model's folder and return its path."""
    path = folder.parent / f"secret-{folder.name}"
    path.write_bytes(bytes(8))
    return path


def linked(folder: Path, link) -> onnx.ModelProto:
    link(outside(folder), folder / "w.bin")
    return external()


def linked_folder(folder: Path) -> onnx.ModelProto:
    (folder / "sub").symlink_to(folder.parent)
    return external(f"sub/{outside(folder).name}")


def with_data(folder: Path, size: int, made: onnx.ModelProto) -> onnx.ModelProto:
    (folder / "w.bin").write_bytes(bytes(size))
    return made


def twice_named(folder: Path) -> onnx.ModelProto:
    made = with_data(folder, 8, external())
    made.graph.initializer[0].external_data.add(key="location", value=f"../{outside(folder).name}")
    return made


def in_a_constant(folder: Path) -> onnx.ModelProto:
    made = external(f"../{outside(folder).name}")
    tensor = onnx.TensorProto.FromString(made.graph.initializer[0].SerializeToString())
    return model([node("Constant", "", "w", value=tensor), ADD])


def in_a_subgraph(folder: Path) -> onnx.ModelProto:
    constant = in_a_constant(folder).graph.node[0]
    branch = helper.make_graph([constant], "branch", [], [floats("w", [2])])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    chosen = node("If", "flag", "y", then_branch=branch, else_branch=branch)
    return model([chosen], [flag])


def in_a_function(folder: Path) -> onnx.ModelProto:
    constant = in_a_constant(folder).graph.node[0]
    steps = [constant, node("Add", "x w", "y")]
    return with_functions(helper.make_function("own", "f", ["x"], ["y"], steps, [helper.make_opsetid("", 17)]))


def sparse(folder: Path) -> onnx.SparseTensorProto:
    values = external(f"../{outside(folder).name}").graph.initializer[0]
    return onnx.SparseTensorProto(values=values, indices=integers("", 0, 1), dims=(2,))


def in_a_sparse_weight(folder: Path) -> onnx.ModelProto:
    return edited(model([ADD]), lambda made: made.graph.sparse_initializer.append(sparse(folder)))


def in_a_sparse_constant(folder: Path) -> onnx.ModelProto:
    return model([node("Constant", "", "w", sparse_value=sparse(folder)), ADD])


# -- structure -----------------------------------------------------------------------------------


def calling(name: str, callees, **extra) -> onnx.FunctionProto:
    """Return a function x → y that calls each of the callees in turn."""
    steps = [helper.make_node(callee, [f"t{k}"], [f"t{k + 1}"], domain="own") for k, callee in enumerate(callees)]
    nodes = [node("Identity", "x", "t0"), *steps, node("Identity", f"t{len(steps)}", "y")]
    return helper.make_function(
        "own", name, ["x"], ["y"], nodes, [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    )


def with_functions(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    call = helper.make_node(functions[0].name, ["x"], ["y"], domain="own")
    return model([call], functions=functions, opsets=(("", 17), ("own", 1)))


def calls(depth: int) -> list[onnx.FunctionProto]:
    """Return functions that each call the next function twice."""
    return [calling(f"f{k}", [f"f{k + 1}"] * 2 if k < depth else []) for k in range(depth + 1)]


def nested(depth: int) -> bytes:
    """Return `depth` nested Ifs as bytes, because protobuf's own builder would refuse the depth."""
    def field(number: int, data: bytes) -> bytes:
        return _varint(8 * number + 2) + _varint(len(data)) + data

    def branch(name: bytes, graph: bytes) -> bytes:
        return field(5, field(1, name) + _varint(8 * 20) + b"\x05" + field(6, graph))

    plain = helper.make_graph([RELU], "g", [], [floats("y", [2])]).SerializeToString()
    graph = plain
    for _ in range(depth):
        chosen = (
            field(1, b"flag")
            + field(2, b"y")
            + field(4, b"If")
            + branch(b"then_branch", graph)
            + branch(b"else_branch", plain)
        )
        graph = field(1, chosen) + field(2, b"g") + field(12, floats("y", [2]).SerializeToString())
    inputs = (floats("x", [2]), helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    graph += b"".join(field(11, value.SerializeToString()) for value in inputs)
    return b"\x08\x0a" + field(7, graph) + field(8, b"\x10\x11")


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def doubling(op: str, times: int, **attributes) -> onnx.ModelProto:
    """Return a model with a shape whose length doubles in every step; shape inference would compute the shape."""
    nodes = [node("Shape", "x", "s0")]
    nodes += [node(op, f"s{k} s{k}", f"s{k + 1}", **attributes) for k in range(times)]
    nodes += [node("ReduceSum", f"s{times}", "s", keepdims=0), node("Cast", "s", "y", to=TensorProto.FLOAT)]
    return model(nodes, outputs=[floats("y", [])])


def constant_expression(op: str, *inputs, **attributes) -> onnx.ModelProto:
    """Return x plus a constant expression with a huge result."""
    names = [f"c{k}" for k in range(len(inputs))]
    weights = [numpy_helper.from_array(np.asarray(value), name) for value, name in zip(inputs, names, strict=True)]
    nodes = [
        helper.make_node(op, names, ["big"], **attributes),
        node("ReduceSum", "big", "sum", keepdims=0),
        node("Add", "x sum", "y"),
    ]
    return model(nodes, weights=weights)


def edited(made: onnx.ModelProto, edit) -> onnx.ModelProto:
    edit(made)
    return made


def changed(made: onnx.ModelProto, old: bytes, new: bytes) -> bytes:
    data = made.SerializeToString()
    assert data.count(old) and len(old) == len(new)
    return data.replace(old, new)


F32, I64 = np.float32, np.int64
WHOLE = model([ADD], weights=[numpy_helper.from_array(np.zeros(2, F32), "w")]).SerializeToString()

# name → (function from the folder to the file, part of the message)
REFUSED = {
    "empty": (lambda f: b"", "it has no graph"),
    "garbage": (lambda f: np.random.default_rng(0).bytes(1 << 20), "is not an ONNX file"),
    "zeros": (lambda f: bytes(1 << 20), "is not an ONNX file"),
    "truncated": (lambda f: WHOLE[: len(WHOLE) // 2], "is not an ONNX file"),
    "a length beyond the end": (lambda f: WHOLE[:2] + b"\x3a\xff\xff\xff\xff\x07", "is not an ONNX file"),
    "no graph": (lambda f: b"\x08\x0a", "it has no graph"),
    # cycles, names
    "a cycle": (lambda f: model([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "a", "y")]),
        "topologically sorted, however input 'b'"),
    "a node that reads itself": (lambda f: model([node("Add", "x y", "y")]), "topologically sorted, however input 'y'"),
    "two nodes give one tensor": (lambda f: model([RELU, node("Sigmoid", "x", "y")]),
        "'y' has been used as output names multiple times"),
    "one node gives a tensor twice": (lambda f: model([node("Split", "x", "y y")]),
        "'y' has been used as output names multiple times"),
    "two weights of one name": (lambda f: model([ADD], weights=[weight(float_data=[1, 2]), weight(float_data=[3, 4])]),
        "w initializer name is not unique"),
    "two inputs of one name": (lambda f: model([RELU], [floats("x", [2]), floats("x", [2])]),
        "'x' has been used as graph input names multiple times"),
    "a node gives an input": (lambda f: model([node("Relu", "x", "x"), RELU]), "'x' has been used as output names"),
    "a node gives a weight": (lambda f: model([node("Relu", "x", "w"), ADD], weights=[weight(float_data=[1, 2])]),
        "'w' has been used as output names"),
    "a weight, a node and an input of one name": (lambda f: model([node("Relu", "x", "w"), ADD],
        [floats("x", [2]), floats("w", [2])], [weight(float_data=[1, 2])]), "'w' has been used as output names"),
    "two functions of one name": (lambda f: with_functions(calling("f", []), calling("f", [])),
        "multiple local functions"),
    "a name that is not text": (lambda f: changed(model([node("Relu", "x", "name"), node("Relu", "name", "y")]),
        b"name", b"\xff\xfe\xff\xfe"), "is not UTF-8"),
    "a node's name that is not text": (lambda f: changed(model([node("Relu", "x", "y", name="name")]), b"name",
        b"\xff\xfe\xff\xfe"), "is not UTF-8"),
    "an attribute's name that is not text": (lambda f: changed(model([helper.make_node("F", ["x"], ["y"], domain="own",
        name_=1)], opsets=(("", 17), ("own", 1))), b"name_", b"\xff\xfe\xff\xfe_"), "is not UTF-8"),
    "an input's name that is not text": (lambda f: changed(model([node("Relu", "name", "y")], [floats("name", [2])]),
        b"name", b"\xff\xfe\xff\xfe"), "is not UTF-8"),
    "an operator that is not text": (lambda f: changed(model([RELU]), b"Relu", b"\xff\xfe\xff\xfe"),
        "can't decode byte 0xff"),
    "an input that nothing gives": (lambda f: model([ADD]), "however input 'w'"),
    "an output that nothing gives": (lambda f: model([node("Relu", "x", "z")]), "'y' is not an output of any node"),
    # external data
    "external: above the folder": (lambda f: external(f"../{outside(f).name}"), "points outside the directory"),
    "external: below and above": (lambda f: external(f"sub/../../{outside(f).name}"), "points outside the directory"),
    "external: absolute": (lambda f: external(str(outside(f))), "it is an absolute path"),
    "external: a symbolic link": (lambda f: linked(f, lambda to, at: at.symlink_to(to)), "it is a symbolic link"),
    "external: a hard link": (lambda f: linked(f, os.link), "multiple hard links"),
    "external: a linked folder": (lambda f: linked_folder(f), "resolves outside model directory"),
    "external: a device": (lambda f: external("/dev/zero"), "it is an absolute path"),
    "external: a linked device": (lambda f: ((f / "w.bin").symlink_to("/dev/zero"), external())[1],
        "it is a symbolic link"),
    "external: a pipe": (lambda f: (os.mkfifo(f / "w.bin"), external())[1], "not regular file"),
    "external: a folder": (lambda f: ((f / "w.bin").mkdir(), external())[1], "not regular file"),
    "external: missing": (lambda f: external(), "w.bin"),
    "external: no location": (lambda f: external(""), "should not be empty"),
    "external: named twice": (twice_named, "points outside the directory"),
    "external: outside, in a Constant": (in_a_constant, "points outside the directory"),
    "external: outside, in a subgraph": (in_a_subgraph, "points outside the directory"),
    "external: outside, in a function": (in_a_function, "points outside the directory"),
    "external: outside, in a sparse weight": (in_a_sparse_weight, "points outside the directory"),
    "external: outside, in a sparse Constant": (in_a_sparse_constant, "points outside the directory"),
    "external: too short": (lambda f: with_data(f, 7, external()), "cannot read the external weight 'w'"),
    "external: an offset beyond the end": (lambda f: with_data(f, 8, external(offset=9)),
        "cannot read the external weight 'w'"),
    "external: an offset near the end": (lambda f: with_data(f, 8, external(offset=4)),
        "cannot read the external weight 'w'"),
    "external: a huge offset": (lambda f: with_data(f, 8, external(offset=2**70)),
        "cannot read the external weight 'w'"),
    "external: a negative offset": (lambda f: with_data(f, 8, external(offset=-8)),
        "cannot read the external weight 'w'"),
    "external: a length beyond the end": (lambda f: with_data(f, 8, external(length=HUGE)),
        "cannot read the external weight 'w'"),
    "external: a length that does not fit": (lambda f: with_data(f, 64, external(length=64)),
        "cannot read the external weight 'w'"),
    "external: an offset that is no number": (lambda f: with_data(f, 8, external(offset="eight")),
        "cannot read the external weight 'w'"),
    "external: huge dimensions": (lambda f: with_data(f, 8, external(dims=(HUGE,))), "the limit is"),
    # sizes
    "a weight of huge dimensions": (lambda f: model([ADD], weights=[weight(dims=(HUGE,))]),
        "one and only one value field"),
    "a weight of dimensions that overflow": (lambda f: model([ADD],
        weights=[weight(dims=(2**32, 2**32), raw_data=b"")]), "dimension product overflow"),
    "a weight of negative dimensions": (lambda f: model([ADD], weights=[weight(dims=(-2,), raw_data=bytes(8))]),
        "Negative dimension"),
    "a weight of two negative dimensions": (lambda f: model([ADD], weights=[weight(dims=(-1, -2), raw_data=bytes(8))]),
        "Negative dimension"),
    "a huge sparse weight": (lambda f: edited(model([ADD]),
        lambda m: m.graph.sparse_initializer.append(onnx.SparseTensorProto(
        values=weight(dims=(1,), float_data=[1]), indices=integers("", 0), dims=(HUGE,)))), "the limit is"),
    "a huge Constant": (lambda f: model([node("Constant", "", "w", value=weight("", (HUGE,))), ADD]),
        "one and only one value field"),
    "a huge Constant with a little data": (lambda f: model([node("Constant", "", "w",
        value=weight("", (HUGE, HUGE), raw_data=bytes(8))), ADD]), "dimension product overflow"),
    "an input of huge dimensions": (lambda f: model([RELU], [floats("x", [HUGE, HUGE])],
        outputs=[floats("y", ["a", "b"])]), "the limit is"),
    "a huge outer product": (lambda f: model([node("MatMul", "x t", "y"), ],
        [floats("x", [2**30, 1]), floats("t", [1, 2**30])], outputs=[floats("y", ["a", "b"])]), "the limit is"),
    "a shape that doubles": (lambda f: doubling("Concat", 40, axis=0), "more than 1000000 elements"),
    "ConstantOfShape": (lambda f: constant_expression("ConstantOfShape", np.array([HUGE], I64)), "the limit is"),
    "Expand": (lambda f: constant_expression("Expand", np.zeros(1, F32), np.array([HUGE, HUGE], I64)), "the limit is"),
    "Tile": (lambda f: constant_expression("Tile", np.zeros(1, F32), np.array([HUGE], I64)), "the limit is"),
    "Pad": (lambda f: constant_expression("Pad", np.zeros(1, F32), np.array([HUGE, HUGE], I64)), "the limit is"),
    "Resize": (lambda f: constant_expression("Resize", np.zeros((1, 1), F32), np.zeros(0, F32), np.zeros(0, F32),
        np.array([HUGE, HUGE], I64)), "the limit is"),
    "Upsample by scales": (lambda f: constant_expression("Resize", np.zeros((1, 1), F32), np.zeros(0, F32),
        np.array([1e12, 1e12], F32)), "the limit is"),
    "ConstantOfShape of 4 GiB": (lambda f: constant_expression("ConstantOfShape", np.array([2**30], I64)),
        "the limit is 2 GiB"),
    "Range": (lambda f: constant_expression("Range", np.array(0, I64), np.array(HUGE, I64), np.array(1, I64)),
        "the limit is"),
    "OneHot": (lambda f: constant_expression("OneHot", np.zeros(2, I64), np.array(HUGE, I64), np.array([0, 1], F32)),
        "the limit is"),
    "EyeLike of huge dimensions": (lambda f: model([node("EyeLike", "x", "e"), node("ReduceSum", "e", "y", keepdims=0)],
        [floats("x", [2**30, 2**30])], outputs=[floats("y", [])]), "the limit is"),
    # types
    "raw data too short": (lambda f: model([ADD], weights=[weight(raw_data=bytes(7))]),
        "raw_data size (7 bytes) is too small"),
    "raw data too long": (lambda f: model([ADD], weights=[weight(raw_data=bytes(12))]), "cannot read the weight 'w'"),
    "raw data of another type": (lambda f: model([ADD], weights=[weight(dtype=TensorProto.DOUBLE, raw_data=bytes(8))]),
        "raw_data size (8 bytes) is too small"),
    "a type that does not exist": (lambda f: model([ADD], weights=[weight(dtype=999, raw_data=bytes(8))]),
        "cannot read the weight 'w'"),
    "an undefined type": (lambda f: model([ADD], weights=[weight(dtype=0, raw_data=bytes(8))]), "UNDEFINED"),
    "texts among integers": (lambda f: model([ADD],
        weights=[weight(dtype=TensorProto.INT64, string_data=[b"a", b"b"])]), "instead of 'string_data'"),
    "floats among integers": (lambda f: model([ADD], weights=[weight(dtype=TensorProto.INT64, float_data=[1, 2])]),
        "instead of 'float_data'"),
    "texts that are raw": (lambda f: model([node("Identity", "w", "y")],
        weights=[weight(dtype=TensorProto.STRING, raw_data=b"ab")]), "should not be stored in raw_data"),
    "an input of no type": (lambda f: model([RELU], [onnx.ValueInfoProto(name="x")]), "Field 'type'"),
    "an input of a type that does not exist": (lambda f: model([RELU], [helper.make_tensor_value_info("x", 999, [2])]),
        "element type 999"),
    "an attribute of another type": (lambda f: model([node("Softmax", "x", "y", axis="last")]),
        "Mismatched attribute type"),
    "an attribute that says it is another": (lambda f: edited(model([node("Softmax", "x", "y", axis=0)]),
        lambda m: setattr(m.graph.node[0].attribute[0], "type", 3)), "type field and data field mismatch"),
    "an attribute that does not exist": (lambda f: model([node("Relu", "x", "y", axis=0)]),
        "Unrecognized attribute: axis"),
    "an attribute twice": (lambda f: edited(model([node("Softmax", "x", "y", axis=0)]),
        lambda m: m.graph.node[0].attribute.add(name="axis", type=2, i=-1)), "appeared multiple times"),
    "a Constant without a value": (lambda f: model([node("Constant", "", "w"), ADD]), "must have one value, not 0"),
    "a Constant of two values": (lambda f: model([node("Constant", "", "w", value_float=1.0, value_int=1), ADD]),
        "must have one value, not 2"),
    "too many inputs": (lambda f: model([node("Relu", "x x x", "y")]), "input size 3"),
    # nesting, functions, opsets
    "2,000 nested subgraphs": (lambda f: nested(2000), "MaxDepth"),
    "a function that calls itself": (lambda f: with_functions(calling("f", ["f"])), "must not be recursive"),
    "functions that call each other": (lambda f: with_functions(calling("f", ["g"]), calling("g", ["f"])),
        "must not be recursive"),
    "5,000 functions deep": (lambda f: with_functions(*(calling(f"f{k}", [f"f{k + 1}"]) for k in range(5000)),
        calling("f5000", [])), "depth exceeds limit"),
    "functions that call two others, 60 deep": (lambda f: with_functions(*calls(60)), "more than 50000 nodes"),
    "no opset": (lambda f: edited(model([RELU]), lambda m: m.ClearField("opset_import")), "No opset import"),
    "opset 0": (lambda f: model([RELU], opsets=[("", 0)]), "domain_version of 0"),
    "opset -1": (lambda f: model([RELU], opsets=[("", -1)]), "domain_version of -1"),
    "opset 2^62": (lambda f: model([RELU], opsets=[("", 2**62)]), "out of supported range"),
    "an opset of the operator's domain missing": (lambda f: model([helper.make_node("Relu", ["x"], ["y"],
        domain="nowhere")]), "No opset import"),
    "IR version 2^40": (lambda f: edited(model([RELU]), lambda m: setattr(m, "ir_version", HUGE)), "is higher than"),
    "no IR version": (lambda f: edited(model([RELU]), lambda m: m.ClearField("ir_version")), "ir_version"),
}  # fmt: skip

GOOD = {
    "two outputs of one name": lambda f: model([RELU], outputs=[floats("y", [2]), floats("y", [2])]),
    "two opsets of one domain": lambda f: model([RELU], opsets=[("", 1), ("", 17)]),
    "a weight": lambda f: model([ADD], weights=[weight(float_data=[1, 2])]),
    "an external weight": lambda f: with_data(f, 8, external(offset=0, length=8)),
    "functions that call two others, 10 deep": lambda f: with_functions(*calls(10)),
    "a name": lambda f: model([node("Relu", "x", "name"), node("Relu", "name", "y")]),
    "nested subgraphs": lambda f: nested(5),
    "a constant of 1.8 GiB": lambda f: constant_expression("ConstantOfShape", np.array([29 * 2**24], I64)),
    "a shape of 1,024 elements": lambda f: doubling("Concat", 10, axis=0),
}


def written(folder: Path, made) -> Path:
    """Write the file of a kind and return its path."""
    folder.mkdir()
    data = made(folder)
    path = folder / "m.onnx"
    path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
    return path


def loaded(folder: Path, kinds: dict) -> dict[str, dict]:
    """Return the result of tests/hostile.py for each kind."""
    if not hasattr(psutil.Process, "rlimit"):
        pytest.skip("this system does not limit what a process may use")
    paths = [written(folder / str(position), made) for position, made in enumerate(kinds.values())]
    command = [sys.executable, "-m", "tests.hostile", *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=WAIT)
    return dict(zip(kinds, map(json.loads, done.stdout.splitlines()), strict=True))


def long_chain(_) -> onnx.ModelProto:
    names = ["x", *(f"t{k}" for k in range(1, at_night(200_000, 3_000))), "y"]
    return model([onnx.NodeProto(op_type="Relu", input=[a], output=[b]) for a, b in pairwise(names)])


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict]:
    """Return the results of one process of tests/hostile.py for all kinds."""
    refused = {kind: made for kind, (made, _) in REFUSED.items()}
    assert not refused.keys() & GOOD.keys()
    return loaded(tmp_path_factory.mktemp("files"), refused | GOOD | {"chain": long_chain})


def test_a_hostile_file_is_refused_at_once(results):
    def check(kind):
        result = results[kind]
        assert result["kind"] == "RLFlowError", result
        assert REFUSED[kind][1] in result["error"] and "\n" not in result["error"]
        assert result["seconds"] <= SECONDS and result["peak"] <= BYTES, result

    check_each(check, REFUSED)


def test_harmless_variants_of_the_hostile_files_are_accepted(results):
    """Valid files with the elements of the hostile files are accepted, and nothing huge is computed on the way."""
    for kind in GOOD:
        result = results[kind]
        assert result["error"] is None and result["seconds"] <= SECONDS and result["peak"] <= BYTES, (kind, result)


def test_a_long_chain_is_loaded(results):
    """A chain of 200,000 operators is valid: it loads in bounded time, though not within a second."""
    result = results["chain"]
    # Three times what two slow cores take at night, and half of the time after which tests/hostile.py ends the process.
    assert result["error"] is None and result["seconds"] <= at_night(60, 10) and result["peak"] <= BYTES, result
