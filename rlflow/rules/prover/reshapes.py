"""Elements in row-major order: an index under one shape as the index under another."""

from typing import NamedTuple

import z3

from rlflow.rules.prover.integers import Integers
from rlflow.rules.prover.interrupts import Budget
from rlflow.rules.prover.unknowns import UNKNOWN, Int, plain, term_id


class Position(NamedTuple):
    """A position in row-major order."""

    shape: tuple
    index: tuple


class Reshapes(Integers):
    """Integers, with the shapes that they are the sizes of."""

    def __init__(self, assumptions, budget: Budget):
        self.origins: dict = {}  # ids of indices that were moved → (sizes, indices) that they come from
        super().__init__(assumptions, budget)

    def position(self, shape: tuple, index: tuple) -> Position:
        return Position(shape, index)

    def index(self, position: Position, shape: tuple) -> tuple:
        """The index of that position under another shape, of which equal sizes at both ends are taken as they are."""
        old = [pair for pair in zip(position.shape, position.index, strict=True) if not self.is_one(pair[0])]
        new = [k for k, size in enumerate(shape) if not self.is_one(size)]
        result: list = [0] * len(shape)
        while old and new and self.same_size(old[0][0], shape[new[0]]):
            result[new.pop(0)] = old.pop(0)[1]
        while old and new and self.same_size(old[-1][0], shape[new[-1]]):
            result[new.pop()] = old.pop()[1]
        if len(old) == 1 and len(new) == 1:
            result[new[0]] = old[0][1]
        elif new:
            for k, part in zip(new, self.moved(old, [shape[k] for k in new]), strict=True):
                result[k] = part
        return tuple(result)

    def moved(self, old: list[tuple], sizes: list) -> list:
        """The indices under `sizes` of a position given as (size, index) pairs; back again it is what it was."""
        origin = self.origins.get(tuple(term_id(index) for _, index in old))
        if origin is not None and len(origin[0]) == len(sizes):
            if all(self.same_size(a, b) for a, b in zip(origin[0], sizes, strict=True)):
                return origin[1]
        given = [z3.IntVal(plain(v)) if isinstance(v, int) else plain(v) for pair in old for v in pair]
        given += [z3.IntVal(v) if isinstance(v, int) else plain(v) for v in sizes]
        made = []
        for k, size in enumerate(sizes):
            part = UNKNOWN[f"place {len(old)} {len(sizes)} {k}", len(given)](*given) if given else z3.IntVal(0)
            self.lemma(part >= 0, part < plain(size))
            made.append(Int(self, part))
        self.kept += [m.term for m in made]
        self.origins[tuple(m.term.get_id() for m in made)] = ([s for s, _ in old], [i for _, i in old])
        return made

    def is_one(self, size) -> bool:
        return self.entails(size == 1)

    def same_size(self, a, b) -> bool:
        return self.entails(a == b)

    def reshaped(self, shape: tuple, wanted: tuple, allowzero: int) -> tuple:
        if any(isinstance(size, Int) for size in wanted):
            return self.reshaped_as(shape, wanted)
        for k, size in enumerate(wanted):
            self.require(size != 0 or k < len(shape))
        sizes = [shape[k] if size == 0 else size for k, size in enumerate(wanted)]
        free = [k for k, size in enumerate(sizes) if isinstance(size, int) and size == -1]
        if free:
            others = [size for k, size in enumerate(sizes) if k != free[0]]
            sizes[free[0]] = self.rest_of(shape, others)
        else:
            self.require_same_total(shape, tuple(sizes))
        return tuple(sizes)

    def reshaped_as(self, shape: tuple, wanted: tuple) -> tuple:
        """Of sizes that are not known: whatever shape ONNX's inference makes of them, which both sides must share."""
        given = [z3.IntVal(v) if isinstance(v, int) else plain(v) for v in (*shape, *wanted)]
        made = []
        for k, size in enumerate(wanted):
            if self.entails(size > 0):
                made.append(size)
                continue
            whole = Int(self, UNKNOWN[f"size {len(shape)} {len(wanted)} {k}", len(given)](*given))
            self.lemma(whole.term >= 1, z3.Implies(plain(size) > 0, whole.term == plain(size)))
            if k < len(shape):
                self.lemma(z3.Implies(plain(size) == 0, whole.term == plain(shape[k])))
            made.append(whole)
        self.require_same_total(shape, tuple(made))
        return tuple(made)

    def rest_of(self, shape: tuple, sizes: list):
        """The size that is left when the others have taken theirs."""
        old = [size for size in shape if not self.is_one(size)]
        sizes = [size for size in sizes if not self.is_one(size)]
        for size in list(sizes):
            same = next((k for k, other in enumerate(old) if self.same_size(size, other)), None)
            if same is not None:
                sizes.remove(size)
                del old[same]
        if not sizes:
            result = 1
            for size in old:
                result = result * size
            return result
        given = [z3.IntVal(v) if isinstance(v, int) else plain(v) for v in (*old, *sizes)]
        made = Int(self, UNKNOWN[f"rest {len(old)} {len(sizes)}", len(given)](*given))
        self.lemma(made.term >= 1)
        return made

    def require_same_total(self, shape: tuple, other: tuple) -> None:
        old = [size for size in shape if not self.is_one(size)]
        new = [size for size in other if not self.is_one(size)]
        while old and new and self.same_size(old[0], new[0]):
            old, new = old[1:], new[1:]
        while old and new and self.same_size(old[-1], new[-1]):
            old, new = old[:-1], new[:-1]
        if not old or not new:
            for size in old + new:
                self.require(size == 1)
        elif len(old) == 1 or len(new) == 1:
            self.require(self.product_of_all(old) == self.product_of_all(new))
        # otherwise an equation of products of sizes that no proof needs; ONNX's shape inference checks it
