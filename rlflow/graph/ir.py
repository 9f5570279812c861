"""The immutable computation graph: nodes, tensors with their types, and constants.

A `Graph` is a value. `rewrite` returns a new graph that shares every untouched part with the old one. Small integers
name nodes and tensors; `Interface.names` maps the original tensors to their ONNX names. A rewrite moves weights
(`Constant`) without reading them. A `TensorType` holds the data type, the shape and, for small computed tensors, the
content. Sizes are numbers or polynomials in the model's symbols (dims.py); `TypesAt` evaluates them at given sizes.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx

from rlflow.graph import contrib
from rlflow.graph.dims import at
from rlflow.graph.order import Edit, Order, after, walk


class TensorType(NamedTuple):
    """`dtype` is onnx.TensorProto.DataType; `shape` is None where it is not known, its sizes are int or Dim.

    `content`: the elements (int, Dim, float or bool) of a small computed tensor, in row-major order, where they follow
    from sizes; None where they do not, and for constants.
    """

    dtype: int
    shape: tuple | None
    content: tuple | None = None

    @property
    def size(self) -> int:
        """Number of elements (0 if the shape is unknown)."""
        return prod(self.shape) if self.shape is not None else 0

    @property
    def nbytes(self) -> int:
        return self.size * itemsize(self.dtype)

    def __repr__(self) -> str:
        held = f", content={self.content}" if self.content is not None else ""
        return f"TensorType(dtype={self.dtype}, shape={self.shape}{held})"


def itemsize(dtype: int) -> int:
    """Bytes per element of an ONNX data type (4 for types without a fixed width)."""
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype)).itemsize
    except (KeyError, TypeError):
        return 4


class TypesAt(Mapping):
    """The types of a graph where its symbols have given sizes."""

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


ABSENT = -1  # an omitted optional input or output of a node
# ONNX Runtime's own, which a model need not import before a rule uses it
RUNTIME_OPSET = {contrib.DOMAIN: contrib.VERSION}

# Operators whose value may differ from run to run, so that they are never constant.
RANDOM_OPS = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)


class Opaque(NamedTuple):
    """A serialised AttributeProto (a tensor, a subgraph, …) that is carried through untouched."""

    data: bytes


class Constant:
    """A weight or literal: its content hash and type are known, its array is loaded when asked for."""

    __slots__ = ("digest", "type", "load")

    def __init__(self, digest: str, type: TensorType, load: Callable[[], np.ndarray]):
        self.digest, self.type, self.load = digest, type, load

    @classmethod
    def of(cls, array: np.ndarray) -> "Constant":
        array = np.asarray(array, order="C")  # ascontiguousarray would turn 0-d into 1-d
        return cls.lazy(array, lambda: array)

    @classmethod
    def lazy(cls, array: np.ndarray, load: Callable[[], np.ndarray]) -> "Constant":
        """A constant with the content of `array`, which is hashed now and later loaded by `load`."""
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        header = f"{dtype}:{array.shape}:".encode()
        digest = hashlib.sha256(header)
        if array.dtype == object:
            digest.update(repr(array.tolist()).encode())  # texts; their bytes would be addresses
        elif array.size:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return cls(digest.hexdigest(), TensorType(dtype, tuple(array.shape)), load)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator.

    Attributes:
      inputs, outputs: tensor ids; ABSENT for an omitted optional one.
      attributes: sorted (name, value) pairs; a value is an int, float, bytes, a tuple of those, or Opaque.
      captured: (outer name, tensor id) pairs that subgraphs inside the attributes read.
      constant: whether all its outputs are known before the model runs (it is folded on export).
      name: the ONNX name, "" for a node that a rule made.
      overload: which of the model's functions of that name it calls, "" for the only one.
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

    def reads(self) -> Iterable[int]:
        """Ids of all tensors the node reads, in order, subgraphs included."""
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
        """What the operator computes from its inputs; equal for two nodes that differ only in where they stand."""
        return self.domain, f"{self.op}:{self.overload}" if self.overload else self.op, self.attributes


@dataclass(frozen=True)
class Interface:
    """What a rewrite never changes and an export must bring back.

    Attributes:
      template: the ModelProto with its graph emptied (opsets, functions, metadata, …).
      inputs, outputs: ValueInfoProtos, as the user declared them (symbolic dimensions included).
      names: tensor id → ONNX name of the original tensors.
      opsets: domain → version.
      bindings: symbolic dimension → the size it was bound to.
      symbols: those that are not bound → the least size that each may have.
    """

    template: onnx.ModelProto
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    names: Mapping[int, str]
    opsets: Mapping[str, int]
    bindings: Mapping[str, int] = field(default_factory=dict)
    symbols: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def semantics(self) -> bytes:
        """What gives operators their meaning: the opsets and the model's own functions."""
        functions = [f.SerializeToString(deterministic=True) for f in self.template.functions]
        declared = self.opsets.items() - RUNTIME_OPSET.items()
        return repr((sorted(declared), functions)).encode()


class Graph:
    """An immutable computation graph; treat every attribute as read-only.

    Attributes:
      nodes: node id → Node.
      types: tensor id → TensorType.
      constants: tensor id → Constant (initialisers and literals).
      producers: tensor id → node id.
      consumers: tensor id → ids of the nodes that read it, ascending, each once.
      inputs, outputs: tensor ids in the order of the interface.
      next_id: the first id that is free for a node or tensor.
      relied_on_shapes: whether a rewrite so far was valid only for the bound sizes of symbolic dimensions.
      lost: (node id, why) of each node of the model at which a shape was lost.
    """

    lost: tuple[tuple[int, str], ...] = ()

    def __init__(
        self, interface, nodes, types, constants, producers, consumers, inputs, outputs, next_id, relied_on_shapes=False
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
        self.relied_on_shapes: bool = relied_on_shapes

    @classmethod
    def build(cls, interface, nodes: Iterable[Node], types, constants, inputs, outputs) -> "Graph":
        """A graph from its parts; nodes and constants that no output depends on are left out."""
        nodes = {node.id: node for node in nodes}
        producers = {t: node.id for node in nodes.values() for t in node.outputs if t != ABSENT}
        consumers: dict[int, set[int]] = {}
        for node in nodes.values():
            for tensor in node.reads():
                consumers.setdefault(tensor, set()).add(node.id)
        consumers = {tensor: tuple(sorted(ids)) for tensor, ids in consumers.items()}
        next_id = 1 + max([0, *nodes, *types, *constants])
        graph = cls(
            interface, nodes, dict(types), dict(constants), producers, consumers, tuple(inputs), tuple(outputs), next_id
        )
        graph._remove_dead(list(nodes), set())
        for tensor in [t for t in graph.constants if not graph.is_used(t)]:
            del graph.constants[tensor], graph.types[tensor]
        return graph

    # -- questions ---------------------------------------------------------------------------------

    def is_used(self, tensor: int) -> bool:
        return bool(self.consumers.get(tensor)) or tensor in self.outputs

    def is_constant(self, tensor: int) -> bool:
        """Whether the tensor is a weight, a literal, or computed from nothing else."""
        if tensor in self.constants:
            return True
        producer = self.producers.get(tensor)
        return producer is not None and self.nodes[producer].constant

    def opset(self, domain: str) -> int:
        """The model's version of an operator domain; 0 if the model does not import it and no rule could."""
        return self.interface.opsets.get(domain, RUNTIME_OPSET.get(domain, 0))

    @cached_property
    def _walk(self) -> Order:
        edit, self._edit = self._edit, None  # used once; a reference kept would keep the graph before alive
        result = after(edit) if edit is not None else None
        return result or walk(
            [self.producers[tensor] for tensor in self.outputs if tensor in self.producers],
            lambda node_id: self._sources(self.nodes[node_id]),
        )

    def _sources(self, node: Node) -> tuple[int, ...]:
        """The nodes that `node` reads from, in turn."""
        producers, tensors = self.producers, node.reads() if node.captured else node.inputs
        return tuple([producers[tensor] for tensor in tensors if tensor in producers])

    @property
    def rank(self) -> dict[int, int]:
        """Node id → a number; the numbers grow along the canonical order (rlflow.graph.order)."""
        return self._walk.finished

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Node ids in the canonical order: topological, decided by nothing but structure."""
        return tuple(sorted(self.nodes, key=self.rank.__getitem__))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the structure, weights included; equal for graphs that are equal up to names."""
        refs: dict[int, str] = {tensor: f"i{k}" for k, tensor in enumerate(self.inputs)}
        refs[ABSENT] = "-"
        digest = hashlib.sha256(self.interface.semantics)

        def ref(tensor: int) -> str:
            if tensor not in refs:
                refs[tensor] = self.constants[tensor].digest
            return refs[tensor]

        digest.update(repr([self.types.get(tensor) for tensor in self.inputs]).encode())
        for position, node_id in enumerate(self.order):
            node = self.nodes[node_id]
            captured = [(name, ref(tensor)) for name, tensor in node.captured]
            digest.update(repr((node.key(), [ref(t) for t in node.inputs], captured)).encode())
            for slot, tensor in enumerate(node.outputs):
                refs.setdefault(tensor, f"n{position}.{slot}")
        digest.update(repr([ref(tensor) for tensor in self.outputs]).encode())
        return digest.hexdigest()

    def at(self, sizes: Mapping[str, int]) -> "Graph":
        """The graph where its symbols have these sizes: all types are of numbers, all else is shared.

        Rules see the graph itself; the view is for what asks how large things are.
        """
        return self.with_types(TypesAt(self.types, sizes)) if self.interface.symbols else self

    def with_types(self, types: Mapping[int, TensorType]) -> "Graph":
        """The graph where tensors have these types; all else is shared."""
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
        relies_on_shapes: bool = False,
    ) -> "Graph":
        """A new graph without the nodes `removed`, with `added`, and with tensors `rewired`.

        An added node may give a tensor of a removed one its old id, so that consumers need no change;
        `rewired` (old tensor → new tensor) redirects consumers and outputs where no node is left to
        produce the old tensor. Whatever is then unused disappears. See `changed` and `touched` of the result.
        """
        graph = Graph(
            self.interface, self.nodes.copy(), self.types.copy(), self.constants.copy(), self.producers.copy(),
            self.consumers.copy(), self.inputs, self.outputs, next_id, self.relied_on_shapes or relies_on_shapes,
        )
        graph.lost = self.lost
        changed: set[int] = set()
        touched: set[int] = set()
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
                    changed.update(graph.consumers.get(tensor, ()))
            for tensor in set(node.reads()):
                graph.consumers[tensor] = tuple(sorted((*graph.consumers.get(tensor, ()), node.id)))
                graph._touch_around(tensor, touched)
        # Only now, so that what the added nodes read is not taken for unused.
        candidates = [producer for node in gone for producer in graph._unread(node, touched, rewired.values())]
        for old, new in rewired.items():
            graph._rewire(old, new, changed, touched)
        for tensor in (t for node in gone for t in node.outputs if t not in graph.producers):
            graph.types.pop(tensor, None)
        dead = graph._remove_dead([n for n in candidates if n in graph.nodes] + [n.id for n in added], touched)
        graph.changed = frozenset(changed.union(dead))
        graph.touched = graph.changed | touched
        if "_walk" in self.__dict__:
            graph._edit = self._edit_to(graph, rewired)
        return graph

    changed: frozenset[int] = frozenset()  # nodes that the last rewrite added or removed or whose inputs it changed
    touched: frozenset[int] = frozenset()  # those, and the nodes around tensors that other nodes read than before
    _edit: Edit | None = None  # since the graph whose order is known

    def _edit_to(self, graph: "Graph", rewired: Mapping[int, int]) -> Edit:
        """How the order of `graph`, a rewrite of this one, follows from this one's."""
        removed = {n: self.nodes[n] for n in sorted(graph.changed) if n in self.nodes and n not in graph.nodes}
        targets = {}
        for node in removed.values():
            used = [
                t for t in node.outputs if t in self.outputs or any(c not in removed for c in self.consumers.get(t, ()))
            ]
            targets[node.id] = frozenset(graph.producers.get(rewired.get(t, t)) for t in used)
        return Edit(
            self._walk,
            {node_id: self._sources(node) for node_id, node in removed.items()},
            targets,
            {
                n: graph._sources(graph.nodes[n])
                for n in sorted(graph.changed)
                if n in graph.nodes and n not in self.nodes
            },
        )

    def _touch_around(self, tensor: int, touched: set[int]) -> None:
        """Marks the producer and the consumers of a tensor whose set of consumers changed (not of a weight)."""
        if tensor not in self.constants:
            touched.update(self.consumers.get(tensor, ()))
            if tensor in self.producers:
                touched.add(self.producers[tensor])

    def _unread(self, node: Node, touched: set[int], kept: Iterable[int] = ()) -> list[int]:
        """Forgets that `node` reads its inputs; returns the producers of those that are now unused.

        kept: constants that stay, since others will read them.
        """
        orphans = []
        for tensor in dict.fromkeys(node.reads()):
            rest = tuple(c for c in self.consumers.get(tensor, ()) if c != node.id)
            self._touch_around(tensor, touched)
            if rest:
                self.consumers[tensor] = rest
                continue
            self.consumers.pop(tensor, None)
            if tensor in self.producers:
                orphans.append(self.producers[tensor])
            elif tensor in self.constants and tensor not in self.outputs and tensor not in kept:
                del self.constants[tensor], self.types[tensor]
        return orphans

    def _rewire(self, old: int, new: int, changed: set[int], touched: set[int]) -> None:
        for node_id in self.consumers.pop(old, ()):
            changed.add(node_id)
            node = self.nodes[node_id]
            inputs = tuple(new if t == old else t for t in node.inputs)
            captured = tuple((name, new if t == old else t) for name, t in node.captured)
            self.nodes[node_id] = Node(
                node.id, node.op, node.domain, inputs, node.outputs, node.attributes, captured, node.constant,
                node.made_by_rule, node.name, node.overload,
            )
            self.consumers[new] = tuple(sorted({*self.consumers.get(new, ()), node_id}))
        self.outputs = tuple(new if t == old else t for t in self.outputs)
        self._touch_around(new, touched)
        self.types.pop(old, None)

    def _remove_dead(self, candidates: list[int], touched: set[int]) -> list[int]:
        """Removes the candidates that nothing uses, then what only they used, and so on; returns their ids."""
        dead = []
        while candidates:
            node = self.nodes.get(candidates.pop())
            if node is None or any(t != ABSENT and self.is_used(t) for t in node.outputs):
                continue
            del self.nodes[node.id]
            dead.append(node.id)
            for tensor in node.outputs:
                if tensor != ABSENT:
                    del self.producers[tensor]
                    self.types.pop(tensor, None)
            candidates += self._unread(node, touched)
        return dead
