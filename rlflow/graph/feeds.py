"""The inputs on which a model is run: the sets that the user gave, then drawn ones.

    feeds = tried_feeds(path, ["data.npz"], shapes={})     reads data.npz, and finds a manner of drawing that runs
    feeds.sets(shapes, seeds=(0, 1, 2))                    the given sets of these shapes, then one draw for each seed

If ONNX Runtime does not run the model on what the graph seems to demand, other manners of drawing are tried. If none
runs, the given sets suffice, and `Feeds.refused` holds the reason. Without given sets the model is refused in one line.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from rlflow.common.errors import RLFlowError
from rlflow.common.messages import say
from rlflow.graph.drawn_inputs import FLOATS, MANNERS, OWN, drawn, inputs_of
from rlflow.graph.given_inputs import GivenSet, read_inputs, sizes_beside
from rlflow.graph.input_values import allowed_values
from rlflow.graph.input_walk import Values, light
from rlflow.graph.ir import Interface
from rlflow.graph.onnx_runtime import run, session
from rlflow.graph.repairs import names_read
from rlflow.graph.symbols import Symbols, bind_shapes, with_ranks
from rlflow.graph.typical import Shapes, input_shapes, typical_sizes

Arrays = dict[str, np.ndarray]  # input name → array


@dataclass(frozen=True)
class Feeds:
    """The inputs of one model.

    Attributes:
      model: the model without the contents of its weights.
      given: the sets that the user gave.
      manner: the manner in which other sets are drawn, one of `drawn_inputs.MANNERS`.
      refused: the reason why the model does not run on drawn sets; None if it runs, or was not tried.
    """

    model: onnx.ModelProto
    given: tuple[GivenSet, ...] = ()
    manner: str = MANNERS[0]
    refused: str | None = None
    # (manner, shapes of the inputs) → result of `allowed`, since its time grows with the graph
    _allowed: dict[tuple, dict[str, Values]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, model: onnx.ModelProto | Path | str, paths: Sequence[Path | str] = ()) -> "Feeds":
        """Read the given sets of a model without running it.

        Args:
          model: path of an ONNX file, or a ModelProto.
          paths: files and folders of inputs, see `rlflow.graph.given_inputs`.
        """
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
        return cls(light(proto), read_inputs(proto, paths))

    def named_sizes(self, shapes: Shapes) -> Shapes:
        """Return the sizes that the user named, and for all other symbols the sizes in the first given set.

        Args:
          shapes: symbol → size or sizes, or input → sizes of its axes.
        """
        return {**sizes_beside(self.given, self.model, shapes), **shapes}

    def allowed(self, shapes: Mapping[str, object]) -> dict[str, Values]:
        """Return input name → the values that the graph allows, for the inputs that it restricts.

        Args:
          shapes: sizes of symbolic dimensions, as `bind_shapes` takes them.
        """
        return self._allowed_at(self._bound(shapes))

    def _allowed_at(self, bound: list[onnx.ValueInfoProto]) -> dict[str, Values]:
        key = self.manner, tuple([value.SerializeToString() for value in bound])
        if key not in self._allowed:
            self._allowed[key] = allowed_values(self.model, bound, plain=self.manner != MANNERS[0])
        return self._allowed[key]

    def draw(self, seed: int, shapes: Mapping[str, object]) -> Arrays:
        """Draw one set of inputs.

        Args:
          seed: seed of the random generator.
          shapes: sizes of symbolic dimensions, as `bind_shapes` takes them.

        Raises:
          RLFlowError: the model does not run on drawn sets, or none can be drawn.
        """
        if self.refused is not None:
            raise RLFlowError(self.refused)
        bound = self._bound(shapes)
        return drawn(bound, self._allowed_at(bound), seed, self.manner)

    def given_at(self, shapes: Mapping[str, object]) -> list[GivenSet]:
        """Return the given sets whose arrays have these shapes.

        Args:
          shapes: sizes of symbolic dimensions, as `bind_shapes` takes them.
        """
        if not self.given:
            return []
        tensors = [value for value in self._bound(shapes) if value.type.HasField("tensor_type")]
        wanted = {v.name: tuple(dim.dim_value for dim in v.type.tensor_type.shape.dim) for v in tensors}
        return [one for one in self.given if all(one.arrays[name].shape == shape for name, shape in wanted.items())]

    def sets(self, shapes: Mapping[str, object], seeds: Sequence[int]) -> list[Arrays]:
        """Return the given sets of these shapes, then one drawn set for each seed if the model runs on drawn sets.

        Args:
          shapes: sizes of symbolic dimensions, as `bind_shapes` takes them.
          seeds: the seeds.
        """
        result = [one.arrays for one in self.given_at(shapes)]
        return result + [self.draw(seed, shapes) for seed in seeds if self.refused is None or not result]

    def at(self, sizes: Mapping[str, Mapping[str, object]], seed: int) -> dict[str, Arrays]:
        """Return one set for each point of a measurement: the first given set of its shapes, or else a drawn one.

        A point without a set is left out. If no point has a set, the first given set is returned.

        Args:
          sizes: name of the point → sizes of symbolic dimensions, as `bind_shapes` takes them.
          seed: seed of the drawn sets.
        """
        result = {}
        for name, shapes in sizes.items():
            given = self.given_at(shapes)
            if given or self.refused is None:
                result[name] = given[0].arrays if given else self.draw(seed, shapes)
        if result or not self.given:
            return result or {name: self.draw(seed, shapes) for name, shapes in sizes.items()}
        return {self.given[0].name: self.given[0].arrays}

    def tried(self, shapes: Mapping[str, object], run_on: Callable[[Arrays], object]) -> "Feeds":
        """Run the model on the given sets of inputs, then on drawn sets, to find a manner of drawing that works.

        Args:
          shapes: sizes of symbolic dimensions for the drawn sets.
          run_on: runs the model, and raises RLFlowError if that fails.

        Returns:
          The feeds with the first manner whose inputs the model accepts. If no manner works and the user gave sets, the
          field `refused` of the result holds the reason.

        Raises:
          RLFlowError: the model fails on a given set, or on all drawn sets and no set is given.
        """
        for one in self.given:
            try:
                run_on(one.arrays)
            except RLFlowError as error:
                raise RLFlowError(f"the model does not run on the inputs {one.name}: {error}") from error
        why = None
        for feeds, arrays in self._manners(shapes):
            try:
                if isinstance(arrays, RLFlowError):
                    raise arrays
                run_on(arrays)
                return feeds
            except RLFlowError as error:
                why = why or error
        reason = self._blame(str(why))
        if not self.given:
            raise RLFlowError(reason) from why
        say(f"only the given inputs are used: {reason}")
        return replace(self, refused=reason)

    def _manners(self, shapes: Mapping[str, object]) -> Iterator[tuple["Feeds", Arrays | RLFlowError]]:
        """Yield the feeds with each manner whose drawn set differs from those before, and this set."""
        before: list[Arrays] = []
        for manner in MANNERS:
            feeds = replace(self, manner=manner)
            try:
                arrays = feeds.draw(0, shapes)
            except RLFlowError as error:
                yield feeds, error
                return  # another manner cannot draw this type either
            if not any(_equal(arrays, other) for other in before):
                before.append(arrays)
                yield feeds, arrays

    def _blame(self, error: str) -> str:
        """Return one line about the inputs that probably make a run on drawn sets fail."""
        ports = inputs_of(self.model)
        if OWN in error:
            return error
        special = [v.name for v in ports if v.type.tensor_type.elem_type not in (onnx.TensorProto.FLOAT,)] or [
            value.name for value in ports
        ]
        read = self._read_by(error)
        suspects = [name for name in special if name in read] or special
        named = ", ".join(f"'{name}'" for name in suspects[:3])
        return f"no values could be drawn for {named} on which the model runs: {error}; {OWN}"

    def _read_by(self, error: str) -> set[str]:
        """Return the tensors (inputs too) on which the nodes that ONNX Runtime names in an error depend, by name."""
        op, name = re.search(r"running (\S+) node", error), re.search(r"Name:'([^']+)'", error)
        nodes = [node for node in self.model.graph.node if name and node.name == name[1]]
        nodes = nodes or [node for node in self.model.graph.node if op and node.op_type == op[1]]
        producers = {result: node for node in self.model.graph.node for result in node.output}
        waiting, seen = [name for node in nodes for name in names_read(node)], set()
        while waiting:
            tensor = waiting.pop()
            if tensor not in seen:
                seen.add(tensor)
                waiting += names_read(producers[tensor]) if tensor in producers else []
        return seen

    def _bound(self, shapes: Mapping[str, object]) -> list[onnx.ValueInfoProto]:
        asked = inputs_of(self.model)
        given_by_default = {value.name for value in self.model.graph.input} - {value.name for value in asked}
        return bind_shapes(asked, {name: size for name, size in shapes.items() if name not in given_by_default})

    @property
    def needs_a_trial(self) -> bool:
        """True if the user gave sets, or if an input is not a tensor of floats."""
        ports = inputs_of(self.model)
        return bool(self.given) or any(value.type.tensor_type.elem_type not in FLOATS for value in ports)


def tried_feeds(
    model: onnx.ModelProto | Path | str, paths: Sequence[Path | str] = (), shapes: Shapes | None = None,
    threads: int = 1, proto: onnx.ModelProto | None = None,
) -> Feeds:  # fmt: skip
    """Return the inputs of a model, with a manner of drawing on which ONNX Runtime runs the model.

    The model is not run if the user gave no inputs and all its inputs are tensors of floats.

    Args:
      model: path of an ONNX file, or a ModelProto.
      paths: files and folders of inputs that the user gave.
      shapes: symbol → size or sizes, or input → sizes of its axes, as the user named them.
      threads: the number of threads of ONNX Runtime.
      proto: the model of the path, if it is already read.

    Raises:
      RLFlowError: the given inputs do not fit the model, or ONNX Runtime runs it neither on them nor on drawn ones.
    """
    feeds = Feeds.of(model if proto is None else proto, paths)
    if not feeds.needs_a_trial:
        return feeds
    ports = with_ranks(inputs_of(feeds.model), shapes or {})
    symbols = Symbols(ports, feeds.model.graph.node, {}).least
    interface = Interface(onnx.ModelProto(), tuple(ports), (), {}, {}, symbols=symbols)
    first = typical_sizes(interface, feeds.named_sizes(shapes or {}))[0]
    running = session(model, threads)
    return feeds.tried(input_shapes(interface, first), lambda arrays: run(running, arrays))


def size_in_bytes(arrays: Mapping[str, object]) -> int:
    """Return the number of bytes of all arrays in a set of inputs."""
    values = [one for value in arrays.values() for one in (value if isinstance(value, list) else [value])]
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def _equal(arrays: Arrays, other: Arrays) -> bool:
    both = [(value, other[name]) for name, value in arrays.items()]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else repr(a) == repr(b) for a, b in both)
