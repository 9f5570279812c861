"""The immutable computation graph: nodes, tensors with their types, and constants.

A `Graph` is a value. `rewrite` returns a new graph that shares all unchanged nodes and constants with the old graph.
Integer ids name nodes and tensors; `Interface.names` maps the original tensors to their ONNX names. Tensors keep their
ids through a rewrite: the outputs of a replacement take over the ids of the tensors that they replace, so consumers
need no change. A rewrite never reads the content of a weight (`Constant`); only the conditions of a few rules do. Sizes
are integers or polynomials in the model's symbols (dims.py); `Graph.at` evaluates the polynomials at given sizes of the
symbols.
"""

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx

from rlflow.common.layers import layered
from rlflow.graph import contrib
from rlflow.graph.dims import at
from rlflow.graph.order import Edit, Order, after, walk


class TensorType(NamedTuple):
    """The data type, shape and, for small shape-like tensors, the content of a tensor.

    Attributes:
      dtype: onnx.TensorProto.DataType.
      shape: sizes (int or Dim); None if unknown.
      content: elements (int, Dim, float or bool) in row-major order of a small computed tensor whose elements are known
        before the model runs, such as a shape; None for other tensors, and for weights and literals (`Constant`).
    """

    dtype: int
    shape: tuple | None
    content: tuple | None = None

    @property
    def size(self) -> int:
        """The number of elements, an int or Dim; 0 if the shape is unknown."""
        return prod(self.shape) if self.shape is not None else 0

    @property
    def nbytes(self) -> int:
        return self.size * itemsize(self.dtype)

    def __repr__(self) -> str:
        held = f", content={self.content}" if self.content is not None else ""
        return f"TensorType(dtype={self.dtype}, shape={self.shape}{held})"


def itemsize(dtype: int) -> int:
    """Return the bytes that NumPy takes for one element of an ONNX data type; 4 for a type that NumPy cannot hold.

    NumPy takes 1 byte for a 4-bit integer, and 8 bytes (a pointer) for a string.
    """
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype)).itemsize
    except (KeyError, TypeError):
        return 4


class TypesAt(Mapping):
    """A mapping tensor id → type with numeric sizes, evaluated on access at given sizes of the symbols."""

    def __init__(self, types: dict[int, TensorType], sizes: Mapping[str, int]):
        self._types, self._sizes = types, tuple(sorted(sizes.items()))

    def __getitem__(self, tensor: int) -> TensorType:
        return _type_at(self._types[tensor], self._sizes)

    def __iter__(self):
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


@lru_cache(maxsize=65536)
def _type_at(kind: TensorType, sizes: tuple[tuple[str, int], ...]) -> TensorType:
    known = dict(sizes)
    shape, content = (part and tuple([at(v, known) for v in part]) for part in (kind.shape, kind.content))
    return TensorType(kind.dtype, shape, content)


MAX_ORIGINS = 4  # largest number of original nodes that a new node remembers; its name shows one less
ABSENT = -1  # an omitted optional input or output of a node
# ONNX Runtime's own domain. Rules may use its operators even if the model does not import the domain.
RUNTIME_OPSET = {contrib.DOMAIN: contrib.VERSION}


class Opaque(NamedTuple):
    """A serialised AttributeProto (such as a tensor or a subgraph) that is exported unchanged."""

    data: bytes


class Body(NamedTuple):
    """A graph in an attribute of an If, Loop or Scan; its nodes are nodes of the whole graph (`Node.body`).

    The owner captures the body's outputs (`Node.captured`), and the nodes of a body read outer tensors directly.

    Attributes:
      attribute: name of the owner's attribute, such as "then_branch".
      inputs: ids of the tensors that the owner feeds at each run; they are never constant.
      constants: ids of the initialisers and literals of the body.
      outer: id of the body that contains the owner; 0 for the main graph.
      path: name for people, such as "loop_3/body".
      runs: number of runs in one run of the outer graph, an int or Dim; 1 if unknown.
    """

    attribute: str
    inputs: tuple[int, ...]
    constants: frozenset[int]
    outer: int
    path: str
    runs: Any = 1


class Constant:
    """A weight or literal whose content may stay on disk.

    Attributes:
      digest: SHA-256 of data type, shape and content, in hexadecimal.
      type: the TensorType.
      load: function without arguments that returns the content as an array.
    """

    __slots__ = ("digest", "type", "load")

    def __init__(self, digest: str, type: TensorType, load: Callable[[], np.ndarray]):
        self.digest, self.type, self.load = digest, type, load

    def __reduce__(self):
        # The content travels, not the path: another process may have no such file, or a file that has changed.
        return _held, (self.digest, self.type, self.load())

    @classmethod
    def of(cls, array: np.ndarray) -> "Constant":
        array = np.asarray(array, order="C")  # np.ascontiguousarray would make a 0-d array 1-d.
        return cls.lazy(array, lambda: array)

    @classmethod
    def lazy(cls, array: np.ndarray, load: Callable[[], np.ndarray]) -> "Constant":
        """Create a constant that does not keep its array in memory.

        Args:
          array: the content, which is hashed now.
          load: function that returns the content later.
        """
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        header = f"{dtype}:{array.shape}:".encode()
        digest = hashlib.sha256(header)
        if array.dtype == object:
            digest.update(repr(array.tolist()).encode())  # Strings: the raw bytes of the array are addresses.
        elif array.size:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return cls(digest.hexdigest(), TensorType(dtype, tuple(array.shape)), load)


def _held(digest: str, type: TensorType, array: np.ndarray) -> Constant:
    """Return a constant that keeps its content in memory; the arguments are its digest, type and content."""
    return Constant(digest, type, lambda: array)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator of the graph.

    Attributes:
      inputs, outputs: tensor ids; ABSENT for an omitted optional input or output.
      attributes: sorted (name, value) pairs; a value is an int, float, bytes, a tuple of these types, or Opaque.
      captured: (outer name, tensor id) pairs of the tensors that subgraphs in the attributes read. For a node with
        `bodies`, these are the outputs of the bodies with their places, such as "then_branch/0".
      constant: True if all outputs are known before the model runs. If a rule added such a node, an export computes its
        result and stores the result as a weight (constant folding, `onnx_writer.folds`).
      made_by_rule: True if a rewrite added the node.
      name: the ONNX name; "" for a node that a rule added, which gets its name when it is written (naming.py).
      overload: the overload of a model function that the node calls; "" if the function has no overloads.
      body: id of the body that contains the node (`Interface.bodies`); 0 for the main graph.
      bodies: ids of the node's own bodies. Their graphs in the attributes hold only declarations.
      origins: for a node that a rule added, ids of the first original nodes that it replaces (at most MAX_ORIGINS).
      draw: a number for a node that draws random numbers (random_numbers.py), different for each such node of a model;
        0 for other nodes. No rewrite changes, merges, copies or removes a node that draws.
    """

    id: int
    op: str
    domain: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    captured: tuple[tuple[str, int], ...] = ()
    constant: bool = False
    made_by_rule: bool = False
    name: str = ""
    overload: str = ""
    body: int = 0
    bodies: tuple[int, ...] = ()
    origins: tuple[int, ...] = ()
    draw: int = 0

    def reads(self) -> Iterable[int]:
        """Yield the ids of all tensors that the node or its subgraphs read, in order."""
        for tensor in self.inputs:
            if tensor != ABSENT:
                yield tensor
        for _, tensor in self.captured:
            yield tensor

    def attribute(self, name: str, default=None):
        for key, value in self.attributes:
            if key == name:
                return value
        return default

    def key(self) -> tuple:
        """Return (domain, operator, attributes), which is equal for nodes that apply one operator in the same way."""
        return self.domain, f"{self.op}:{self.overload}" if self.overload else self.op, self.attributes


@dataclass(frozen=True)
class Interface:
    """The parts of a model that rewrites never change and that an export restores.

    Attributes:
      template: a ModelProto with opsets, functions, metadata and default values of inputs, but without the weights that
        nodes read. The nodes of the template are notes: each holds the documentation and metadata of one node of the
        model, and the name of its only output is the id of that node.
      inputs, outputs: the declared ValueInfoProtos, including symbolic dimensions.
      names: tensor id → ONNX name of the original tensors.
      opsets: domain → version.
      bindings: symbolic dimension that the user fixed → its size.
      symbols: symbolic dimension that is not fixed → its smallest possible size (0 or 1).
      bodies: id → Body, for each body whose nodes are nodes of the graph.
      inlined: names of the model's functions that were inlined when the model was read.
      keep: names of tensors and nodes that the user protected (`--keep`).
      kept: names of the tensors that rewrites keep like outputs for this reason; their ids follow in `Graph.outputs`.
      protected: ids of nodes that no rewrite replaces.
      labels: id of an original node → its name, or the name of its first output if it has none.
      notes: initialisers without data that hold the documentation and metadata of the model's weights.
    """

    template: onnx.ModelProto
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    names: Mapping[int, str]
    opsets: Mapping[str, int]
    bindings: Mapping[str, int] = field(default_factory=dict)
    symbols: Mapping[str, int] = field(default_factory=dict)
    bodies: Mapping[int, Body] = field(default_factory=dict)
    inlined: tuple[str, ...] = ()
    labels: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[onnx.TensorProto, ...] = ()
    keep: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    protected: frozenset[int] = frozenset()

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the tensors in `Graph.outputs`."""
        return (*[value.name for value in self.outputs], *self.kept)

    @cached_property
    def semantics(self) -> bytes:
        """The imported opsets and the model's own functions, serialised; together they define what operators mean."""
        functions = [f.SerializeToString(deterministic=True) for f in self.template.functions]
        declared = self.opsets.items() - RUNTIME_OPSET.items()
        return repr((sorted(declared), functions)).encode()


class Graph:
    """An immutable computation graph; treat every attribute as read-only.

    Attributes:
      interface: the parts of the model that rewrites never change.
      nodes: node id → Node.
      types: tensor id → TensorType.
      constants: tensor id → Constant (initialisers and literals).
      producers: tensor id → id of the node that computes the tensor.
      consumers: tensor id → ids of the nodes that read the tensor, ascending and without repetition.
      inputs, outputs: tensor ids in the order of the interface; after the outputs come the tensors of
        `Interface.kept`.
      next_id: the smallest unused id for a new node or tensor.
      is_rewritten: True if `rewrite` made this graph. If the user has fixed symbolic dimensions, it is then valid only
        at these sizes, because types and the equality of both sides are checked at them alone.
      draws: ids of the nodes that draw random numbers (random_numbers.py), which every rewrite keeps.
      lost: (node id, reason) for each original node whose output shape cannot be inferred.
      sizes: symbol → size in a view (`at`), else empty.
    """

    lost: tuple[tuple[int, str], ...] = ()
    draws: tuple[int, ...] = ()
    sizes: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self, interface, nodes, types, constants, producers, consumers, inputs, outputs, next_id, is_rewritten=False
    ):
        self.interface: Interface = interface
        self.nodes: dict[int, Node] = nodes
        self.types: dict[int, TensorType] = types
        self.constants: dict[int, Constant] = constants
        self.producers: dict[int, int] = producers
        self.consumers: dict[int, tuple[int, ...]] = consumers
        self.inputs: tuple[int, ...] = inputs
        self.outputs: tuple[int, ...] = outputs
        self.next_id: int = next_id
        self.is_rewritten: bool = is_rewritten

    @classmethod
    def build(cls, interface, nodes: Iterable[Node], types, constants, inputs, outputs) -> "Graph":
        """Create a graph from its parts, without the nodes and constants that no output and no draw depends on.

        Args:
          interface, types, constants, inputs, outputs: the attributes of the graph.
          nodes: the nodes in any order.
        """
        nodes = {node.id: node for node in nodes}
        producers = {t: node.id for node in nodes.values() for t in node.outputs if t != ABSENT}
        consumers = {tensor: tuple(sorted(ids)) for tensor, ids in _reads_of(nodes.values()).items()}
        next_id = 1 + max([0, *nodes, *types, *constants])
        graph = cls(
            interface, nodes, dict(types), dict(constants), producers, consumers, tuple(inputs), tuple(outputs), next_id
        )
        graph.draws = tuple(node.id for node in nodes.values() if node.draw)
        graph._remove_dead(list(nodes), set())
        for tensor in [t for t in graph.constants if not graph.is_used(t)]:
            del graph.constants[tensor], graph.types[tensor]
        for name in ("nodes", "types", "constants", "producers", "consumers"):
            setattr(graph, name, layered(getattr(graph, name)))
        return graph

    def __getstate__(self) -> dict:
        derived = ("_walk", "order", "_edit")  # computed again on first access
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    # -- questions ---------------------------------------------------------------------------------

    def is_used(self, tensor: int) -> bool:
        return bool(self.consumers.get(tensor)) or tensor in self.output_set

    def is_constant(self, tensor: int) -> bool:
        """Return True if the tensor is a weight, a literal, or computed from constants alone."""
        if tensor in self.constants:
            return True
        producer = self.producers.get(tensor)
        return producer is not None and self.nodes[producer].constant

    def opset(self, domain: str) -> int:
        """Return the version of an operator domain; 0 if the model does not import it and rules may not use it."""
        return self.interface.opsets.get(domain, RUNTIME_OPSET.get(domain, 0))

    @property
    def output_set(self) -> frozenset[int]:
        """The ids in `outputs`."""
        if self._output_set is None or self._output_set[0] is not self.outputs:
            self._output_set = self.outputs, frozenset(self.outputs)
        return self._output_set[1]

    _output_set: tuple[tuple[int, ...], frozenset[int]] | None = None

    @cached_property
    def _walk(self) -> Order:
        edit, self._edit = self._edit, None  # The edit is used once; keeping it would keep the previous graph alive.
        result = after(edit) if edit is not None else None
        return result or walk(
            [self.producers[tensor] for tensor in self.outputs if tensor in self.producers] + list(self.draws),
            lambda node_id: self.sources(self.nodes[node_id]),
        )

    def sources(self, node: Node) -> tuple[int, ...]:
        """Return the ids of the nodes that compute the inputs of `node`, in the order of the inputs."""
        producers, tensors = self.producers, node.reads() if node.captured else node.inputs
        return tuple([producers[tensor] for tensor in tensors if tensor in producers])

    @property
    def rank(self) -> dict[int, int]:
        """A dictionary node id → number; the numbers increase along the canonical order (rlflow.graph.order)."""
        return self._walk.finished

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The node ids in canonical order: a topological order that depends only on the structure of the graph."""
        return tuple(sorted(self.nodes, key=self.rank.__getitem__))

    @cached_property
    def hash(self) -> str:
        """The SHA-256 digest of structure and weights.

        Graphs that differ only in ids and in the names of nodes and tensors have equal digests. The names of symbols
        count as structure, and so do names inside attributes: in subgraphs, and in the declarations of bodies.
        """
        refs: dict[int, str] = {tensor: f"i{k}" for k, tensor in enumerate(self.inputs)}
        refs[ABSENT] = "-"
        places = self._places()
        for body, place in places.items():
            refs |= {tensor: f"b{place}.{k}" for k, tensor in enumerate(self.interface.bodies[body].inputs)}
        digest = hashlib.sha256(self.interface.semantics)

        def ref(tensor: int) -> str:
            if tensor not in refs:
                refs[tensor] = self.constants[tensor].digest
            return refs[tensor]

        digest.update(repr([self.types.get(tensor) for tensor in self.inputs]).encode())
        for position, node_id in enumerate(self.order):
            node = self.nodes[node_id]
            captured = [(name, ref(tensor)) for name, tensor in node.captured]
            where = (places[node.body],) if node.body else ()
            digest.update(repr((node.key(), [ref(t) for t in node.inputs], captured, *where)).encode())
            for slot, tensor in enumerate(node.outputs):
                refs.setdefault(tensor, f"n{position}.{slot}")
        digest.update(repr([ref(tensor) for tensor in self.outputs]).encode())
        return digest.hexdigest()

    def _places(self) -> dict[int, str]:
        """Return id of a body → text that depends only on the position of its owner in the canonical order."""
        if not self.interface.bodies:
            return {}
        owners = ((position, self.nodes[node_id].bodies) for position, node_id in enumerate(self.order))
        return {body: f"{position}.{k}" for position, bodies in owners for k, body in enumerate(bodies)}

    def path(self, node_id: int) -> str:
        """Return the path of the body that contains a node, such as "loop_3/body"; "" for the main graph."""
        body = self.nodes[node_id].body
        return self.interface.bodies[body].path if body else ""

    def at(self, sizes: Mapping[str, int]) -> "Graph":
        """Return the graph with the types of its tensors at given sizes of its symbols; everything else is shared.

        Args:
          sizes: symbol → size, for all symbols of the model.
        """
        if not self.interface.symbols:
            return self
        view = self.with_types(TypesAt(self.types, sizes))
        view.sizes = sizes
        return view

    def with_types(self, types: Mapping[int, TensorType]) -> "Graph":
        """Return the graph with the tensor types `types` (tensor id → type); everything else is shared."""
        view = Graph.__new__(Graph)
        view.__dict__.update(self.__dict__)
        view.types = types
        return view

    # -- edits -------------------------------------------------------------------------------------

    def rewrite(
        self,
        removed: Iterable[int],
        added: Iterable[Node],
        types: Mapping[int, TensorType],
        constants: Mapping[int, Constant],
        rewired: Mapping[int, int],
        next_id: int,
    ) -> "Graph":
        """Return a new graph in which some nodes replace others.

        An added node may keep the tensor id of a removed node's output; then the consumers need no change. Nodes and
        constants that become unused disappear. The result states its differences in `changed` and `touched`.

        Args:
          removed: ids of the nodes to remove.
          added: the nodes to add.
          types, constants: tensor id → TensorType or Constant of the new tensors.
          rewired: old tensor id → new tensor id. Consumers and graph outputs that use the old tensor then use the new
            tensor. An entry is needed for each used output of a removed node whose id no added node keeps.
          next_id: the smallest unused id after the edit.
        """
        graph = Graph(
            self.interface, self.nodes.copy(), self.types.copy(), self.constants.copy(), self.producers.copy(),
            self.consumers.copy(), self.inputs, self.outputs, next_id, True,
        )
        graph.lost, graph.draws, graph._output_set = self.lost, self.draws, self._output_set
        changed: set[int] = set()
        around: set[int] = set()  # tensors that gain or lose a consumer
        gone = [graph.nodes.pop(node_id) for node_id in removed]
        for node in gone:
            changed.add(node.id)
            for tensor in node.outputs:
                if tensor != ABSENT:
                    del graph.producers[tensor]
        graph.types.update(types)
        graph.constants.update(constants)
        for node in added:
            graph.nodes[node.id] = node
            changed.add(node.id)
            for tensor in node.outputs:
                if tensor != ABSENT:
                    graph.producers[tensor] = node.id
                    changed.update(self.consumers.get(tensor, ()))
        readers = _reads_of(added)
        for tensor, new in readers.items():
            graph.consumers[tensor] = tuple(sorted((*graph.consumers.get(tensor, ()), *new)))
        around.update(readers)
        # This step must follow the addition, so that tensors that only the added nodes read do not count as unused.
        candidates = graph._drop_readers(_reads_of(gone), around, rewired.values())
        graph._rewire(rewired, changed, around)
        for tensor in (t for node in gone for t in node.outputs if t not in graph.producers):
            graph.types.pop(tensor, None)
        dead = graph._remove_dead([n for n in candidates if n in graph.nodes] + [n.id for n in added], around)
        graph.changed = frozenset(changed.union(dead))
        graph.touched = graph.changed.union(self._nodes_around(graph, around))
        if "_walk" in self.__dict__ and not self.draws:  # A draw can leave the walk from the outputs.
            graph._edit = self._edit_to(graph, rewired)
        return graph

    # Ids of the nodes that the last rewrite added or removed, or that read another tensor or producer since then.
    changed: frozenset[int] = frozenset()
    # `changed`, and the ids of the producers and consumers of tensors that gained or lost a consumer.
    touched: frozenset[int] = frozenset()
    _edit: Edit | None = None  # difference from the graph before the last rewrite, to update the order

    def _edit_to(self, graph: "Graph", rewired: Mapping[int, int]) -> Edit:
        """Return the input of `order.after` for the order of `graph`, which is this graph after a rewrite.

        `rewired` is the argument of that rewrite.
        """
        removed = {n: self.nodes[n] for n in sorted(graph.changed) if n in self.nodes and n not in graph.nodes}
        outputs, consumers, targets = self.output_set, self.consumers, {}
        for node in removed.values():
            used = [t for t in node.outputs if t in outputs or any(c not in removed for c in consumers.get(t, ()))]
            targets[node.id] = frozenset(graph.producers.get(rewired.get(t, t)) for t in used)
        return Edit(
            self._walk,
            {node_id: self.sources(node) for node_id, node in removed.items()},
            targets,
            {
                n: graph.sources(graph.nodes[n])
                for n in sorted(graph.changed)
                if n in graph.nodes and n not in self.nodes
            },
        )

    def _nodes_around(self, graph: "Graph", tensors: Iterable[int]) -> Iterator[int]:
        """Yield the ids of the consumers of tensors before and after a rewrite, and of their producers after it.

        Weights and literals are skipped.

        Args:
          graph: this graph after the rewrite.
          tensors: ids of tensors that gained or lost a consumer.
        """
        for tensor in tensors:
            if tensor not in self.constants and tensor not in graph.constants:
                yield from self.consumers.get(tensor, ())
                yield from graph.consumers.get(tensor, ())
                if tensor in graph.producers:
                    yield graph.producers[tensor]

    def _drop_readers(self, readers: Mapping[int, set[int]], around: set[int], kept: Container[int] = ()) -> list[int]:
        """Remove nodes from the consumers of tensors, and return the producers of tensors that nothing reads now.

        Constants that nothing reads now are deleted.

        Args:
          readers: tensor id → ids of the nodes to remove.
          around: set to which the tensors are added.
          kept: tensors that nodes will read after the rewrite; they are not deleted.
        """
        orphans = []
        around.update(readers)
        for tensor, lost in readers.items():
            rest = tuple([c for c in self.consumers.get(tensor, ()) if c not in lost])
            if rest:
                self.consumers[tensor] = rest
                continue
            self.consumers.pop(tensor, None)
            if tensor in self.producers:
                orphans.append(self.producers[tensor])
            elif tensor in self.constants and tensor not in self.output_set and tensor not in kept:
                del self.constants[tensor], self.types[tensor]
        return orphans

    def _rewire(self, rewired: Mapping[int, int], changed: set[int], around: set[int]) -> None:
        moved: dict[int, set[int]] = {}  # new tensor → ids of nodes that read it now
        for old, new in rewired.items():
            readers = {*self.consumers.pop(old, ()), *moved.pop(old, ())}
            changed.update(readers)
            for node_id in readers:
                node = self.nodes[node_id]
                inputs = tuple([new if t == old else t for t in node.inputs])
                captured = tuple([(name, new if t == old else t) for name, t in node.captured])
                self.nodes[node_id] = replace(node, inputs=inputs, captured=captured)
            moved.setdefault(new, set()).update(readers)
            if old in self.output_set:
                self.outputs = tuple([new if t == old else t for t in self.outputs])
            around.add(new)
            self.types.pop(old, None)
        for new, readers in moved.items():
            if readers:
                self.consumers[new] = tuple(sorted(readers.union(self.consumers.get(new, ()))))

    def _remove_dead(self, candidates: list[int], around: set[int]) -> list[int]:
        """Remove candidate nodes whose outputs are unused, then nodes that become unused; return all removed ids.

        Nodes that draw random numbers stay.
        """
        dead: list[int] = []
        lost: dict[int, set[int]] = {}  # tensor → ids of removed nodes that read it

        def is_unused(tensor: int) -> bool:
            return len(lost.get(tensor, ())) == len(self.consumers.get(tensor, ())) and tensor not in self.output_set

        while candidates:
            node = self.nodes.get(candidates.pop())
            if node is None or node.draw or not all(t == ABSENT or is_unused(t) for t in node.outputs):
                continue
            del self.nodes[node.id]
            dead.append(node.id)
            for tensor in node.outputs:
                if tensor != ABSENT:
                    del self.producers[tensor]
                    self.types.pop(tensor, None)
            for tensor in node.reads():
                lost.setdefault(tensor, set()).add(node.id)
                if is_unused(tensor) and tensor in self.producers:
                    candidates.append(self.producers[tensor])
        self._drop_readers(lost, around)
        return dead


def _reads_of(nodes: Iterable[Node]) -> dict[int, set[int]]:
    """Return tensor id → ids of the nodes that read the tensor."""
    result: dict[int, set[int]] = {}
    for node in nodes:
        for tensor in node.reads():
            result.setdefault(tensor, set()).add(node.id)
    return result
