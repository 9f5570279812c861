"""Write files whose nodes stand in a chosen order, and observe what real sessions do with these files.

A user runs the graph that ONNX Runtime makes of a file. With optimisation on, the order of the file is lost. Therefore
the file that an optimising session saves is reordered, and a session runs it without optimisation, by priority
(`Setup.as_written`). The saved file has the same nodes every time, but where ONNX Runtime blocks channels, sessions may
run them in different orders. So an order is a list of names, where a node is named after its first output, and the
order of a session is read from its profile.

`added_by_runs` measures the memory that runs add to a fresh process; `same_bits` compares the results of two files.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime

from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.processes import fresh_processes
from rlflow.common.system import peak_memory_during, return_freed_memory
from rlflow.graph.ir import ABSENT, Graph, TensorType
from rlflow.graph.onnx_reader import external_files, file_bytes
from rlflow.graph.onnx_runtime import PROVIDERS, Setup, run, session
from rlflow.graph.onnx_writer import EXTERNAL_DATA_THRESHOLD, SMALLEST_OUTSIDE, save_model, serialised
from rlflow.memory.allocation import BLOCKED

RAN = "_kernel_time"  # suffix of a node's name in a profile


def save_optimised(source: Path, path: Path, inputs: dict, declared: Sequence[onnx.ValueInfoProto] = ()) -> list[str]:
    """Write the model that ONNX Runtime's optimisations make of a model, and return the order of its nodes.

    Large weights go to `<name>.data` beside the file if the model has external weights or is too large for one file.

    Args:
      source: the path of the model.
      path: the path to write.
      inputs: name → array, for one run.
      declared: declarations of inputs that replace the model's declarations.

    Returns:
      The names of the nodes in the order in which the session runs them.

    Raises:
      RLFlowError: if ONNX Runtime refuses the model.
    """
    model, options = onnx.load(source, load_external_data=False), onnxruntime.SessionOptions()
    name_nodes(model.graph)
    others = {value.name: value for value in declared}
    _replace(model.graph.input, [others.get(value.name, value) for value in model.graph.input])
    options.optimized_model_filepath = str(path)
    if external_files(source) or file_bytes(source) > EXTERNAL_DATA_THRESHOLD:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(source.parent))
        weights = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{weights}_file_name", f"{path.name}.data")
        options.add_session_config_entry(f"{weights}_min_size_in_bytes", str(SMALLEST_OUTSIDE))
    return order_run(serialised(model), options, inputs, path)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give a unique name to every node that has none."""
    counts = Counter(node.name for node in graph.node)
    for node in graph.node:
        if not node.name or counts[node.name] > 1:
            node.name = f"{_name(node)} of {node.op_type}"


def order_run(source: bytes | str, options: onnxruntime.SessionOptions, inputs: dict, path: Path) -> list[str]:
    """Return the names of the nodes that a session runs, in order, as its profile shows them.

    Args:
      source: a serialised model or its path.
      options: the session's options; profiling is switched on.
      inputs: name → array, for one run.
      path: the file that holds the session's nodes once the session exists.

    Raises:
      RLFlowError: if the model does not run, or as `order_shown` does.
    """
    options.log_severity_level = 4
    with TemporaryDirectory() as folder:
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        try:
            running = onnxruntime.InferenceSession(source, options, providers=PROVIDERS)
        except Exception as error:  # ONNX Runtime raises its own, undocumented classes
            raise RLFlowError(f"ONNX Runtime refuses the model: {first_line(error)}") from error
        run(running, inputs)
        events = json.loads(Path(running.end_profiling()).read_text(encoding="utf-8"))
    ran = [event["name"].removesuffix(RAN) for event in events if event["cat"] == "Node"]
    return order_shown(onnx.load(path, load_external_data=False).graph.node, ran)


def order_shown(nodes: Sequence[onnx.NodeProto], ran: Sequence[str]) -> list[str]:
    """Return the order in which nodes ran, as names of first outputs.

    Nodes that ONNX Runtime expands from functions have no name of their own, so the profile does not identify them. The
    saved file has the order of the session. This order is used if it agrees with the order of all named nodes.

    Args:
      nodes: the nodes of the file.
      ran: the names in the profile, including nodes of subgraphs.

    Raises:
      RLFlowError: if the order of the file disagrees with the profile.
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
    """Rewrite a file with its nodes in a given order; equal content gives equal bytes.

    Constants come first, and nodes that the order does not name come last.

    Args:
      path: the file.
      order: names of first outputs.
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
    """Return the names of the first outputs of nodes.

    Args:
      graph: the graph that holds the nodes.
      order: node ids.
    """
    outputs = (next(tensor for tensor in graph.nodes[node].outputs if tensor != ABSENT) for node in order)
    return [graph.interface.names[tensor] for tensor in outputs]


def is_blocked(path: Path) -> bool:
    """Return whether the file uses blocked channels, so that it suits only processors like the one that saved it."""
    return any(node.domain == BLOCKED for node in onnx.load(path, load_external_data=False).graph.node)


def with_sizes_of_a_run(graph: Graph, path: Path, inputs: dict) -> Graph:
    """Return the graph of a file with unknown sizes replaced by the sizes in one run.

    Args:
      graph: the graph of the file.
      path: the file.
      inputs: name → array, for the run. Values that are not tensors stay unknown.

    Raises:
      RLFlowError: if the run fails.
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
    """Return whether the shape of a tensor, given by id, is known."""
    kind = graph.types.get(tensor)
    return kind is not None and kind.shape is not None


RUNS = 3  # The first run allocates; the second may place its buffers anew.

Inputs = dict[str, np.ndarray]


def added_by_runs(path: Path, inputs: Inputs, threads: int, setup: Setup) -> int | None:
    """Return the bytes that runs add to the resident memory of a fresh process at the peak, after the session exists.

    The count includes activations, outputs and the workspace of kernels. Weights are in memory before.

    Args:
      path: the model.
      inputs: name → array.
      threads: of the session.
      setup: the session's options.

    Returns:
      Bytes, or None if the system does not report them (other than Linux with glibc).

    Raises:
      RLFlowError: if the model cannot be run.
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
    """Return the result of act(*given) in a fresh process, which returns freed memory at once if sessions have no
    arena.

    Args:
      setup: the session's options.
      act: a function that can be pickled.
      *given: its arguments.

    Raises:
      RLFlowError: as `act` does, and if the process dies.
    """
    try:
        with fresh_processes(1, None if setup.arena else return_freed_memory) as process:
            return process.submit(act, *given).result()
    except BrokenProcessPool as error:
        text = "the process that measured a model died, possibly out of memory; free memory or pass a smaller --shape"
        raise RLFlowError(text) from error


def same_bits(sides: Sequence[tuple[Path, Setup]], inputs: Sequence[Inputs], threads: int) -> bool:
    """Return whether two models give the same bits on all inputs. Only one session exists at a time.

    Args:
      sides: (path, session options) of the two models.
      inputs: one dictionary per run.
      threads: number of threads of each session.
    """
    results = []
    for path, setup in sides:
        running = session(path, threads, setup=setup)
        results.append([_bits(value) for one in inputs for value in run(running, one)])
    return results[0] == results[1]


def _bits(value) -> tuple:
    """Return type, shape and bytes of an array, the bits of all elements of a sequence, or the text of a map."""
    if isinstance(value, list):
        return tuple(map(_bits, value))
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else (repr(value),)
