"""Write files whose nodes stand in a chosen order, and observe the order and the memory of real sessions.

A session with optimisations does not keep the node order of its file. Therefore the optimised model that such a session
saves is reordered. A session then runs this file without optimisations and in the order of the file
(`Setup.as_written`).

Every optimising session of a model saves the same nodes, but if ONNX Runtime blocks channels, the orders can differ.
Therefore an order is a list of names, where the name of a node is the name of its first output. The order in which a
session runs its nodes is read from its profile.

`added_by_runs` measures the memory that runs add to a fresh process; `same_bits` compares the results of two files.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime

from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.processes import fresh_processes
from rlflow.common.system import peak_memory_during, return_freed_memory
from rlflow.graph import custom_ops
from rlflow.graph.ir import ABSENT, Graph, TensorType
from rlflow.graph.onnx_reader import external_files, file_bytes, weights_folder
from rlflow.graph.onnx_runtime import PROVIDERS, Setup, run, session
from rlflow.graph.onnx_writer import EXTERNAL_DATA_THRESHOLD, save_model, serialised, write_weights_to
from rlflow.graph.random_numbers import Draws
from rlflow.memory.allocation import BLOCKED

RAN = "_kernel_time"  # suffix of the name of a profile's event that shows the run of a node


def save_optimised(source: Path, path: Path, inputs: dict, declared: Sequence[onnx.ValueInfoProto] = ()) -> list[str]:
    """Write the model after ONNX Runtime's optimisations, and return the order in which a session runs its nodes.

    Large weights go to `<name>.data` beside the file if the model has external weights or is too large for one file.

    Args:
      source: the path of the model.
      path: the path of the optimised file.
      inputs: name of an input → array, for the one run that shows the order.
      declared: declarations of inputs, such as inputs with fixed sizes, that replace the model's declarations of the
        same names.

    Returns:
      The names of the first outputs of the nodes, in the order in which the session runs the nodes.

    Raises:
      RLFlowError: ONNX Runtime refuses the model, the run fails, or the order cannot be determined (`order_shown`).
    """
    model, options = onnx.load(source, load_external_data=False), onnxruntime.SessionOptions()
    name_nodes(model.graph)
    others = {value.name: value for value in declared}
    _replace(model.graph.input, [others.get(value.name, value) for value in model.graph.input])
    options.optimized_model_filepath = str(path)
    if external_files(source) or file_bytes(source) > EXTERNAL_DATA_THRESHOLD:
        folder = weights_folder(model, source)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        write_weights_to(options, f"{path.name}.data")
    return order_run(serialised(model), options, inputs, path)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give a unique name to every node that has no name or shares its name with another node."""
    counts = Counter(node.name for node in graph.node)
    for node in graph.node:
        if not node.name or counts[node.name] > 1:
            node.name = f"{_name(node)} of {node.op_type}"


def order_run(source: bytes | str, options: onnxruntime.SessionOptions, inputs: dict, path: Path) -> list[str]:
    """Run a session once and return the order of its nodes by its profile, as names of their first outputs.

    Args:
      source: a serialised model or its path.
      options: the session's options; this function switches profiling on.
      inputs: name of an input → array.
      path: a file with the nodes that the session runs; it is read after the run.

    Raises:
      RLFlowError: ONNX Runtime refuses the model, the run fails, or the order cannot be determined (`order_shown`).
    """
    options.log_severity_level = 4
    custom_ops.register(options)
    with TemporaryDirectory() as folder:
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        try:
            running = onnxruntime.InferenceSession(source, options, providers=PROVIDERS)
        except Exception as error:  # ONNX Runtime raises its own, undocumented classes
            reason = custom_ops.unknown_operator(error) or first_line(error)
            raise RLFlowError(f"ONNX Runtime refuses the model: {reason}") from error
        run(running, inputs)
        events = json.loads(Path(running.end_profiling()).read_text(encoding="utf-8"))
    ran = [event["name"].removesuffix(RAN) for event in events if event["cat"] == "Node"]
    return order_shown(onnx.load(path, load_external_data=False).graph.node, ran)


def order_shown(nodes: Sequence[onnx.NodeProto], ran: Sequence[str]) -> list[str]:
    """Return the order in which the nodes of a file ran, as names of their first outputs.

    A profile identifies nodes by their names. Nodes that ONNX Runtime expands from functions have no unique name. With
    such nodes the order of the file is returned, provided that the profile shows all other nodes in the same order.

    Args:
      nodes: the nodes of the file, in its order.
      ran: the names of nodes in the order of the profile, including nodes of subgraphs.

    Raises:
      RLFlowError: there are nodes without a unique name, and the order of the file disagrees with the profile.
    """
    counts = Counter(node.name for node in nodes)
    named = {node.name: _name(node) for node in nodes if node.name and counts[node.name] == 1}
    shown = list(dict.fromkeys(named[name] for name in ran if name in named))
    if len(named) == len(nodes):
        return shown
    listed, known = [_name(node) for node in nodes], set(shown)
    if [name for name in listed if name in known] != shown:
        raise RLFlowError("ONNX Runtime runs nodes without names, and profile and saved file disagree on the order")
    return listed


def reorder(path: Path, order: Sequence[str]) -> None:
    """Rewrite a model file with its nodes in a given order; equal models and orders give equal bytes.

    Nodes without inputs that the order does not name come first, and other nodes that it does not name come last.

    Args:
      path: the file.
      order: the names of the first outputs of the nodes.
    """
    model = onnx.load(path, load_external_data=False)
    graph, position = model.graph, {name: at for at, name in enumerate(order)}
    nodes = sorted(graph.node, key=lambda node: position.get(_name(node), len(order) if node.input else -1))
    name_nodes(graph)
    for node in nodes:
        if node.domain == BLOCKED:
            node.name = _name(node)  # ONNX Runtime numbers these nodes differently in each session.
    _replace(graph.node, nodes)
    save_model(model, path)


def _replace(field, content: list) -> None:
    del field[:]
    field.extend(content)


def _name(node: onnx.NodeProto) -> str:
    return next(filter(None, node.output), "")


def names(graph: Graph, order: Sequence[int]) -> list[str]:
    """Return the name of the first output of each node, in the given order.

    Args:
      graph: the graph that holds the nodes.
      order: ids of nodes.
    """
    outputs = (next(tensor for tensor in graph.nodes[node].outputs if tensor != ABSENT) for node in order)
    return [graph.interface.names[tensor] for tensor in outputs]


def is_blocked(path: Path) -> bool:
    """Return whether the file has operators on blocked channels.

    The width of the blocks depends on the processor, so such a file suits only processors like the one that saved it.
    """
    return any(node.domain == BLOCKED for node in onnx.load(path, load_external_data=False).graph.node)


def with_sizes_of_a_run(graph: Graph, path: Path, inputs: dict) -> Graph:
    """Return the graph of a file, in which tensors of unknown shape have the types and shapes that one run shows.

    Values that are not tensors remain unknown.

    Args:
      graph: the graph of the file.
      path: the file.
      inputs: name of an input → array, for the run.

    Raises:
      RLFlowError: the run fails.
    """
    made = [tensor for node in graph.nodes.values() for tensor in node.outputs if tensor != ABSENT]
    unknown = [tensor for tensor in made if not is_known(graph, tensor)]
    if not unknown:
        return graph
    watched, model = path.with_name("watched.onnx"), onnx.load(path, load_external_data=False)
    outputs = {value.name for value in model.graph.output}
    wanted = [graph.interface.names[tensor] for tensor in unknown]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in outputs)
    save_model(model, watched)
    arrays = run(session(watched, 1, optimise=False), inputs, wanted)
    types = {tensor: graph.types.get(tensor) for tensor in (*graph.inputs, *graph.constants, *made)}
    for tensor, array in zip(unknown, arrays, strict=True):
        if hasattr(array, "dtype"):
            types[tensor] = TensorType(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    return graph.with_types({tensor: kind for tensor, kind in types.items() if kind is not None})


def is_known(graph: Graph, tensor: int) -> bool:
    """Return whether the graph knows the shape of the tensor with this id."""
    kind = graph.types.get(tensor)
    return kind is not None and kind.shape is not None


RUNS = 3  # The first run allocates buffers, and the second run may place its buffers differently.

Inputs = dict[str, np.ndarray]


def added_by_runs(path: Path, inputs: Inputs, threads: int, setup: Setup) -> int | None:
    """Measure how many bytes of resident memory RUNS runs add, at their peak, to a fresh process that holds a session.

    The result includes activations, outputs and the workspace of kernels. It excludes weights, which are in memory
    before the runs.

    Args:
      path: the file of the model.
      inputs: name of an input → array.
      threads: the number of threads of the session.
      setup: the session's options.

    Returns:
      Bytes, or None if the system does not report resident memory (it does on Linux with glibc).

    Raises:
      RLFlowError: the model cannot be run.
    """
    return in_a_users_process(setup, _added, path, inputs, threads, setup)


def _added(path: Path, inputs: Inputs, threads: int, setup: Setup) -> int | None:
    run(session(path, threads, setup=setup), inputs)  # loads the code that runs need, and is freed again
    running = session(path, threads, setup=setup)

    def runs() -> None:
        for _ in range(RUNS):
            run(running, inputs)

    before = peak_memory_during(lambda: None)
    after = peak_memory_during(runs)
    return None if before is None or after is None else after - before


def in_a_users_process(setup: Setup, act: Callable, *given):
    """Call a function in a fresh process, like a user's process that runs a model, and return its result.

    If the setup has no arena, the process returns freed memory to the system at once.

    Args:
      setup: the session's options.
      act: the function; it and its result must be picklable.
      *given: the arguments of the function.

    Raises:
      RLFlowError: `act` raises it, or the process dies.
    """
    try:
        with fresh_processes(1, partial(_begin, setup, custom_ops.loaded())) as process:
            return process.submit(act, *given).result()
    except BrokenProcessPool as error:
        text = "the process that measured a model died, possibly out of memory; free memory or pass a smaller --shape"
        raise RLFlowError(text) from error


def _begin(setup: Setup, libraries: Sequence[str]) -> None:
    """Prepare a fresh process for runs with a setup; `libraries` are the parent's libraries of custom operators."""
    custom_ops.load(libraries)
    if not setup.arena:
        return_freed_memory()


def same_bits(sides: Sequence[tuple[Path, Setup]], inputs: Sequence[Inputs], threads: int) -> bool:
    """Return whether the outputs of two models are equal bit for bit on all inputs.

    Outputs of the first model that depend on random numbers are not compared. The session of the first model is freed
    only after the session of the second model exists.

    Args:
      sides: (path, session options) of each of the two models.
      inputs: for each run a dictionary name of an input → array.
      threads: the number of threads of each session.
    """
    results, outputs = [], Draws(onnx.load(sides[0][0], load_external_data=False)).others
    for path, setup in sides if outputs else ():
        running = session(path, threads, setup=setup)
        results.append([_bits(value) for one in inputs for value in run(running, one, outputs)])
    return not outputs or results[0] == results[1]


def _bits(value) -> tuple:
    """Return a value that is equal for outputs with equal bits.

    For an array it holds dtype, shape and bytes; for a sequence the same of each element; for a map its text.
    """
    if isinstance(value, list):
        return tuple(map(_bits, value))
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else (repr(value),)
