"""Windows of which one thing is known: equal attributes and sizes give equal ones.

What is proved with such windows holds for every kind of padding, stride and dilation at once, and quickly. Rules that
merge, split or scale convolutions and pools need no more.
"""

from dataclasses import dataclass

import z3

from rlflow.rules.prover.semantics import Attributes
from rlflow.rules.prover.unknowns import UNKNOWN, Int, term_of

KEYS = ("auto_pad", "strides", "dilations", "pads", "ceil_mode")


@dataclass(frozen=True)
class OpaqueWindows:
    """Stands for rlflow.rules.prover.semantics.Windows."""

    world: object
    name: str
    sizes: tuple  # of the input
    kernel: tuple
    values: tuple  # attributes that a rule names, as z3 terms
    padded: bool  # whether a window may reach beyond the input

    def arguments(self, axis: int) -> list:
        return [term_of(self.sizes[axis]), term_of(self.kernel[axis]), *self.values]

    def unknown(self, what: str, axis: int, arguments: list, least: int | None = None) -> Int:
        made = UNKNOWN[f"{what} of {self.name}, axis {axis} of {len(self.sizes)}", len(arguments)](*arguments)
        if least is not None:
            self.world.lemma(made >= least)
        return Int(self.world, made)

    def each(self, what: str, least: int) -> tuple:
        return tuple(self.unknown(what, axis, self.arguments(axis), least) for axis in range(len(self.sizes)))

    @property
    def outputs(self) -> tuple:
        return self.each("count", 1)

    @property
    def begin(self) -> tuple:
        return self.each("begin", 0)

    @property
    def end(self) -> tuple:
        return self.each("end", 0)

    def positions(self, o: tuple, k: tuple) -> list[tuple]:
        result = []
        for axis, size in enumerate(self.sizes):
            window, offset = term_of(o[axis]), term_of(k[axis])
            position = self.unknown("place", axis, [window, offset, *self.arguments(axis)])
            if not self.padded:
                exists = z3.And(
                    window >= 0, window < self.outputs[axis].term, offset >= 0, offset < term_of(self.kernel[axis])
                )
                self.world.lemma(z3.Implies(exists, z3.And(position.term >= 0, position.term < term_of(size))))
            result.append((position, size))
        return result


def opaque_windows(world, a: Attributes, sizes: tuple, kernel: tuple) -> OpaqueWindows | None:
    """The windows of one operator, None if all its attributes are known anyway.

    On the right side of a rule they must be those of an operator on the left.
    """
    sources = {key: next((source for source in a.sources if key in source), None) for key in KEYS}
    if all(is_known(world, key, source, kernel) for key, source in sources.items()):
        return None
    origins, values = [], []
    for key, source in sources.items():
        if isinstance(source, dict):
            value = source[key] if isinstance(source[key], tuple) else (source[key],)
            numbers = [v for v in value if isinstance(v, int | Int)]
            origins.append(f"{len(value)} given" if len(numbers) == len(value) else str(value))
            values += [term_of(v) for v in numbers]
        else:
            origins.append("none" if source is None else source.name)
    padded = not all(_unpadded(world, key, sources[key]) for key in ("auto_pad", "pads", "ceil_mode"))
    windows = OpaqueWindows(world, f"windows ({', '.join(origins)})", sizes, kernel, tuple(values), padded)
    arguments = [a for axis in range(len(sizes)) for a in windows.arguments(axis)]
    seen = world.windows_seen.setdefault((windows.name, len(arguments)), [])
    if world.obligations is None:
        seen.append(arguments)
    else:
        same = [z3.And([p == q for p, q in zip(arguments, other, strict=True)]) for other in seen]
        world.require(z3.simplify(z3.Or(same)) if same else False)
    return windows


def is_known(world, key: str, source, kernel: tuple) -> bool:
    """Whether an attribute is absent, named by the rule, or decided in this case."""
    if source is None or isinstance(source, dict):
        return True
    if key == "dilations" and all(world.entails(size == 1) for size in kernel):
        return True
    return world.picked(f"{source.name}.{key} given") is False or world.picked(f"{source.name}.{key}") is not None


def _unpadded(world, key: str, source) -> bool:
    if source is None:
        return True
    if isinstance(source, dict):
        return key == "pads" and all(world.entails(size == 0) for size in source[key])
    return world.picked(f"{source.name}.{key} given") is False or world.picked(f"{source.name}.{key}") in (
        b"NOTSET",
        b"VALID",
        0,
    )
