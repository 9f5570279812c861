"""Episodes of the real environment, and the shards that store them.

A shard is one .npz file of plain arrays (no pickle). Each array is the concatenation of the arrays of several episodes;
further arrays store the lengths of the parts. The graphs of an episode share most rows of features. A `KeptGraph`
therefore stores row numbers into common tables; it has the attributes of a `GraphArrays`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlflow.collect.edits import SignatureFeatures, merged_signatures
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, write_arrays
from rlflow.common.task import GraphArrays


class Tables(NamedTuple):
    """All distinct feature rows of several graphs.

    Attributes:
      nodes: float32 [N, F], the distinct rows of `GraphArrays.nodes`.
      edges: float32 [E, Fe], the distinct rows of `GraphArrays.edges`.
    """

    nodes: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class KeptGraph:
    """A graph that stores row numbers into shared tables, and has the attributes of `GraphArrays`.

    Attributes:
      ops, senders, receivers, globals: as in `GraphArrays` (rlflow/common/task.py).
      node_rows: int32 [n], rows in `tables.nodes`.
      edge_rows: int32 [e], rows in `tables.edges`.
      tables: the shared tables.
    """

    ops: np.ndarray
    node_rows: np.ndarray
    edge_rows: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    globals: np.ndarray
    tables: Tables

    @property
    def nodes(self) -> np.ndarray:
        return self.tables.nodes[self.node_rows]

    @property
    def edges(self) -> np.ndarray:
        return self.tables.edges[self.edge_rows]

    def __iter__(self) -> Iterator[np.ndarray]:
        """Iterate over the arrays in the order of the fields of `GraphArrays`."""
        return (getattr(self, name) for name in GraphArrays._fields)


def with_shared_tables(graphs: Sequence[GraphArrays | KeptGraph]) -> list[KeptGraph]:
    """Return the graphs as `KeptGraph` objects that all share one new `Tables`."""
    node_rows, nodes = _distinct_rows(graph.nodes for graph in graphs)
    edge_rows, edges = _distinct_rows(graph.edges for graph in graphs)
    tables = Tables(nodes, edges)
    return [
        KeptGraph(graph.ops, *rows, graph.senders, graph.receivers, graph.globals, tables)
        for graph, *rows in zip(graphs, node_rows, edge_rows, strict=True)
    ]


def _distinct_rows(arrays: Iterable[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return, for each array, int32 row numbers into a table, and the table.

    The table, float32, contains each distinct row of all arrays once, in the order of first occurrence.
    """
    numbers, rows, width = _Numbers(), [], 0
    for array in arrays:
        width = array.shape[1]
        keys = np.ascontiguousarray(array, np.float32).view(f"V{4 * width}")[:, 0].tolist()
        rows.append(np.fromiter(map(numbers.__getitem__, keys), np.int32, len(keys)))
    return rows, np.frombuffer(b"".join(numbers), np.float32).reshape(-1, width)


class _Numbers(dict):
    """A dictionary that gives each new key the next number, from 0."""

    def __missing__(self, key: bytes) -> int:
        number = self[key] = len(self)
        return number


MEASUREMENT = np.dtype([("graph", "S64"), ("seconds", np.float64)])  # hexadecimal hash of the graph, duration
# Arrays of a shard that contain indices or counts.
COUNTED = (
    "index", "steps", "copied", "version", "n_node", "n_edge", "n_edits", "n_measurements", "node_rows", "edge_rows",
    "senders", "receivers",
)  # fmt: skip
# The fields of KeptGraph with one entry per node, and the fields with one entry per edge.
BY_NODE, BY_EDGE = ("ops", "node_rows"), ("edge_rows", "senders", "receivers")
# The fields of Episode with one number per episode, and the arrays with one entry per step and per state.
BY_EPISODE, BY_STEP = ("index", "copied", "version"), ("actions", "rewards", "terminated", "truncated")
BY_STATE = ("costs", "counts")


@dataclass
class Episode:
    """One played episode of T steps; it visits T + 1 graphs.

    Attributes:
      actions: int32 [T, 2], (xfer_id, location); xfer_id == N is NO-OP.
      rewards: float32 [T].
      terminated, truncated: bool [T]; only the last entry may be True.
      costs: float64 [T + 1], the objective of each graph in the unit of the task (`Task.unit`), such as ms.
      counts: int32 [T + 1, N], number of locations of each rule, at most max_locations.
      graphs: T + 1 graphs, each a GraphArrays or a KeptGraph.
      index: number of the episode in its collection; together with the run's seed, it determines the episode.
      edits: int64 [k], the packed edits of the episode (see `rlflow.collect.edits.unpack`); None for other tasks.
      signatures: features of all signatures in the edits, and perhaps of further ones; None for other tasks.
      copied: number of first steps that were copied from another episode; these steps are not interactions.
      version: version of the observation (`EncodingSpec.version`).
      measurements: hash of each graph measured for the rewards → seconds that the measurement took.
    """

    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    costs: np.ndarray
    counts: np.ndarray
    graphs: list[GraphArrays | KeptGraph]
    index: int = 0
    edits: np.ndarray | None = None
    signatures: SignatureFeatures | None = None
    copied: int = 0
    version: int = 1
    measurements: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def interactions(self) -> int:
        """Number of steps of the real environment that the episode took."""
        return len(self) - self.copied


def interactions_of(episodes: Iterable[Episode]) -> int:
    """Return the number of real steps that were played for some episodes."""
    return sum(episode.interactions for episode in episodes)


def write_shard(path: Path | str, episodes: list[Episode]) -> None:
    """Write episodes to a file atomically; equal episodes give equal bytes.

    Args:
      path: the file.
      episodes: the episodes.
    """
    graphs = with_shared_tables([graph for episode in episodes for graph in episode.graphs])
    arrays = {
        "steps": np.array([len(episode) for episode in episodes], np.int64),
        "n_node": np.array([len(graph.ops) for graph in graphs], np.int64),
        "n_edge": np.array([len(graph.senders) for graph in graphs], np.int64),
    }
    for name in BY_EPISODE:
        arrays[name] = np.array([getattr(episode, name) for episode in episodes], np.int64)
    for name in (*BY_STEP, *BY_STATE):
        arrays[name] = np.concatenate([getattr(episode, name) for episode in episodes])
    for name in (*BY_NODE, *BY_EDGE):
        arrays[name] = np.concatenate([getattr(graph, name) for graph in graphs])
    arrays |= graphs[0].tables._asdict()
    none = np.zeros(0, np.int64)
    varying = {
        "edits": [none if episode.edits is None else episode.edits for episode in episodes],
        "measurements": [np.array(list(episode.measurements.items()), MEASUREMENT) for episode in episodes],
    }
    for name, parts in varying.items():
        arrays[name] = np.concatenate(parts)
        arrays[f"n_{name}"] = np.array([len(part) for part in parts], np.int64)
    arrays["globals"] = np.stack([graph.globals for graph in graphs])
    if known := [episode.signatures for episode in episodes if episode.signatures is not None]:
        arrays |= merged_signatures(known)._asdict()
    write_arrays(path, arrays)


def read_shard(path: Path | str) -> list[Episode]:
    """Read the episodes from a file that `write_shard` wrote.

    Raises:
      RLFlowError: the file is missing or damaged.
    """
    arrays = read_arrays(path)
    try:
        steps, n_node, n_edge = arrays["steps"], arrays["n_node"], arrays["n_edge"]
        arrays.setdefault("copied", np.zeros_like(steps))  # Older shards have no copied steps.
        arrays.setdefault("n_measurements", np.zeros_like(steps))  # Older shards have no measurements.
        arrays.setdefault("measurements", np.zeros(0, MEASUREMENT))
        _check(arrays)
        tables, signatures = Tables(arrays["nodes"], arrays["edges"]), _signatures(arrays)
        fields = [np.split(arrays[name], np.cumsum(n_node)[:-1]) for name in BY_NODE]
        fields += [np.split(arrays[name], np.cumsum(n_edge)[:-1]) for name in BY_EDGE]
        graphs = [KeptGraph(*parts, tables) for parts in zip(*fields, arrays["globals"], strict=True)]
        edits = np.split(arrays["edits"], np.cumsum(arrays["n_edits"])[:-1])
        episodes, step, state = [], 0, 0
        measured = np.split(arrays["measurements"], np.cumsum(arrays["n_measurements"])[:-1])
        for number, (length, edit, measurements) in enumerate(zip(steps, edits, measured, strict=True)):
            last_step, last_state = step + length, state + length + 1
            episodes.append(
                Episode(
                    **{name: int(arrays[name][number]) for name in BY_EPISODE},
                    **{name: arrays[name][step:last_step] for name in BY_STEP},
                    **{name: arrays[name][state:last_state] for name in BY_STATE},
                    graphs=graphs[state:last_state],
                    edits=edit if len(edit) else None,
                    signatures=signatures,
                    measurements={graph.decode(): seconds for graph, seconds in measurements.tolist()},
                )
            )
            step, state = last_step, last_state
        return episodes
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RLFlowError(f"{path} is not an episode shard: {error}") from error


def _check(arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError, KeyError or TypeError if the arrays of a shard do not fit together."""
    for name in COUNTED:
        if arrays[name].dtype.kind not in "iu" or (arrays[name] < 0).any() or (arrays[name] >= 2**31).any():
            raise ValueError(f"{name} contains a negative number, a fraction or a number above 2³¹")
    steps, n_node, n_edge = arrays["steps"], arrays["n_node"], arrays["n_edge"]
    for names, length in (
        (BY_EPISODE, len(steps)),
        (BY_STEP, steps.sum()),
        ((*BY_STATE, "globals", "n_node", "n_edge"), (steps + 1).sum()),
        (BY_NODE, n_node.sum()),
        (BY_EDGE, n_edge.sum()),
        (("n_edits", "n_measurements"), len(steps)),
        (("edits",), arrays["n_edits"].sum()),
        (("measurements",), arrays["n_measurements"].sum()),
    ):
        for name in names:
            if len(arrays[name]) != length:
                raise ValueError(f"{name} has {len(arrays[name])} entries, not {length}")
    if arrays["measurements"].dtype != MEASUREMENT:
        raise ValueError("the measurements are of another type")
    if (arrays["copied"] > steps).any():
        raise ValueError("an episode has more copied steps than steps")
    for rows, table in (("node_rows", "nodes"), ("edge_rows", "edges")):
        if (arrays[rows] >= len(arrays[table])).any():
            raise ValueError(f"{rows} contains a row that {table} lacks")
    for ends in ("senders", "receivers"):
        if (arrays[ends] >= np.repeat(n_node, n_edge)).any():
            raise ValueError(f"{ends} contains a node that its graph lacks")


def _signatures(arrays: dict[str, np.ndarray]) -> SignatureFeatures | None:
    """Return the signature features in the arrays of a shard, or None if the shard has none.

    Raises:
      ValueError: the numbers of signatures and of feature rows differ.
    """
    if "operators" not in arrays:
        return None
    result = SignatureFeatures(*[arrays[name] for name in SignatureFeatures._fields])
    if len(result.operators) != len(result.operator_features) or len(result.tensors) != len(result.tensor_features):
        raise ValueError("the numbers of signatures and feature rows differ")
    return result


def read_episodes(folder: Path | str, count: int | None = None) -> list[Episode]:
    """Read the episodes of a folder of shards, in the order of their index.

    Args:
      folder: the folder.
      count: number of episodes to read; None to read all.

    Raises:
      RLFlowError: a shard is damaged, or one of the first `count` episodes is missing.
    """
    episodes: list[Episode] = []
    try:
        for shard in sorted(Path(folder).glob("shard-*.npz")):
            episodes += read_shard(shard)
    except RLFlowError as error:
        raise RLFlowError(f"{error}; run `collect` again to replace the shard") from error
    episodes.sort(key=lambda episode: episode.index)
    if count is not None:
        complete = isinstance(count, int) and len(episodes) >= count
        episodes = episodes[: count if complete else 0]
        if not complete or any(episode.index != place for place, episode in enumerate(episodes)):
            raise RLFlowError(f"{folder} lacks some of {count} episodes; run `collect` again to play them")
    return episodes
