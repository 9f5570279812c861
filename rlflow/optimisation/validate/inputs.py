"""The inputs and the sizes of symbols with which two models are compared.

Ordinary inputs are random draws, shifted by 0, 1 and −1. Special inputs show errors that random draws hide. Zero inputs
make results depend on biases only, and inputs of ones make results sums of weights. Negative values become 0 in a
ReLU. With tiny values results depend on epsilons, and with large values on clamps. Mixed inputs combine these values
with subnormal numbers.

Inputs contain no NaN and no infinity. Proofs are about real numbers, so a correct rewrite may change where NaN appears,
for example if it removes a product with 0 (0 · ∞ is NaN).

A model with symbolic sizes is also compared at sizes that the user did not name, because a rewrite may be right at
the typical size only. `ladders` proposes the smallest sizes, primes that differ from symbol to symbol, twice the
typical size, a batch above 1, small sizes, and parts of the typical size. The original may reject some sizes, for
example because the sides of an image must be multiples of 32 or two symbols must be equal. Each ladder is therefore a
list of alternatives, and the first alternative that the original accepts is used.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np

from rlflow.common.errors import RLFlowError
from rlflow.graph.feeds import Feeds
from rlflow.graph.input_walk import Values
from rlflow.graph.typical import sizes_text

SHIFTS = (0, 1, -1)  # added to random inputs: an average over noise of mean 0 would hide a wrong weight
TINY, LARGE = 1e-3, 100.0  # factors of the special inputs "tiny" and "large"
LAST_DIGITS = 2  # largest change of a float by `nudged`, in units of the last place of max(|value|, 1)


class InputSet(NamedTuple):
    """Values of all inputs of a model, with a name for messages.

    Attributes:
      name: the name of the set, such as "seed 0" or "zeros".
      arrays: name of an input → value.
      sizes: symbol of the model → the size that it has in `arrays`.
    """

    name: str
    arrays: dict[str, np.ndarray]
    sizes: Mapping[str, int] = MappingProxyType({})

    def at(self, sizes: Mapping[str, int]) -> "InputSet":
        """Return a copy that records these sizes, which also become a part of its name; `arrays` does not change.

        Args:
          sizes: symbol → size.
        """
        return self._replace(name=f"{sizes_text(sizes)}: {self.name}" if sizes else self.name, sizes=dict(sizes))


def ordinary_inputs(feeds: Feeds, seeds: Sequence[int], shapes: Mapping[str, object]) -> list[InputSet]:
    """Draw one set of random inputs for each seed; add 0, 1 or −1 in turn to the floats of a set.

    Floats that the graph restricts, such as probabilities, are not shifted.

    Args:
      feeds: the inputs of the model.
      seeds: the seeds.
      shapes: name of an input → shape.
    """
    allowed, result = feeds.allowed(shapes), []
    for position, seed in enumerate(seeds):
        shift, drawn = SHIFTS[position % len(SHIFTS)], feeds.draw(seed, shapes)
        restricted = _restricted(allowed, drawn)
        arrays = {key: value if key in restricted else _shifted(value, shift) for key, value in drawn.items()}
        result.append(InputSet(f"seed {seed}", arrays))
    return result


def special_inputs(feeds: Feeds, seed: int, shapes: Mapping[str, object]) -> list[InputSet]:
    """Make one set of inputs for each entry of SPECIAL, such as zeros; leave out sets equal to another set.

    Inputs that the graph restricts keep their drawn values, unless it allows the special value.

    Args:
      feeds: the inputs of the model.
      seed: the seed of the random inputs that the entries of SPECIAL change.
      shapes: name of an input → shape.
    """
    rng, drawn, sets = np.random.default_rng([seed, 1]), feeds.draw(seed, shapes), []  # `draw` begins with the seed
    allowed = _restricted(feeds.allowed(shapes), drawn)
    for name, of in SPECIAL.items():
        arrays = {}
        for key, value in drawn.items():
            made = np.asarray(of(value, rng)) if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else value
            arrays[key] = made if key not in allowed or _suits(made, value, allowed[key]) else value
        known = [drawn, *(other.arrays for other in sets)]
        if not any(all(np.array_equal(arrays[key], other[key]) for key in arrays) for other in known):
            sets.append(InputSet(name, arrays))
    return sets


def _restricted(allowed: Mapping[str, Values], drawn: Mapping[str, object]) -> dict[str, Values]:
    """Return `allowed` without float inputs that are restricted only because they are divisors.

    Only an integer division by 0 is not allowed.

    Args:
      allowed: name of an input → the values that the graph allows (`Feeds.allowed`).
      drawn: name of an input → its drawn value.
    """
    return {
        name: values
        for name, values in allowed.items()
        if not (values.divisor and isinstance(drawn[name], np.ndarray) and drawn[name].dtype.kind == "f")
    }


def _suits(made: np.ndarray, drawn: np.ndarray, values: Values) -> bool:
    """Return True if the smallest and the largest element of a special input are allowed.

    For integers without prescribed elements it also suffices that both are elements of the drawn input.

    Args:
      made: the special input.
      drawn: the drawn input.
      values: the values that the graph allows.
    """
    if not isinstance(made, np.ndarray) or made.dtype.kind not in "iuf" or not made.size:
        return False
    ends = {made.min(), made.max()}
    return all(values.allows(float(end)) for end in ends) or (
        made.dtype.kind in "iu" and values.exact is None and bool(np.isin(list(ends), drawn).all())
    )


def nudged(arrays: Mapping[str, np.ndarray], sign: int) -> dict[str, np.ndarray]:
    """Return the inputs with each float x changed at random by up to LAST_DIGITS · ε · max(|x|, 1).

    ε is the distance from 1 to the next number of the data type, so a float of magnitude 1 changes in its last digits.

    Args:
      arrays: name of an input → value.
      sign: 1 or -1; the changes with one sign are the negatives of the changes with the other sign.
    """
    rng, moved = np.random.default_rng(0), dict(arrays)
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            steps = LAST_DIGITS * np.finfo(array.dtype).eps * np.maximum(np.abs(array), 1)
            moved[name] = np.asarray(array + sign * steps * rng.uniform(-1, 1, array.shape), array.dtype)
    return moved


def _shifted(array: object, shift: int) -> object:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return array
    return np.asarray(array + array.dtype.type(shift))  # the sum of scalars is no array


def _zeros(array: np.ndarray, rng) -> np.ndarray:
    return np.zeros_like(array)


def _ones(array: np.ndarray, rng) -> np.ndarray:
    return np.full_like(array, 1 if array.dtype.kind == "f" else np.minimum(1, array.max(initial=0)))


def _negative(array: np.ndarray, rng) -> np.ndarray:
    return -np.abs(array) if array.dtype.kind == "f" else array


def _tiny(array: np.ndarray, rng) -> np.ndarray:
    return array * array.dtype.type(TINY) if array.dtype.kind == "f" else array


def _large(array: np.ndarray, rng) -> np.ndarray:
    return array * array.dtype.type(LARGE) if array.dtype.kind == "f" else np.full_like(array, array.max(initial=0))


def _mixed(array: np.ndarray, rng) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    values = [0.0, 1.0, -1.0, 8 * float(np.finfo(array.dtype).smallest_subnormal), TINY, LARGE, -LARGE]
    chosen = rng.integers(0, 2 * len(values), array.shape)  # about half of the elements stay as drawn
    return np.where(chosen < len(values), np.array(values, array.dtype)[chosen % len(values)], array)


SPECIAL = {"zeros": _zeros, "ones": _ones, "negative": _negative, "tiny": _tiny, "large": _large, "mixed": _mixed}


Sizes = Mapping[str, int]  # symbol → size
Ladder = Sequence[dict[str, int]]
Result = TypeVar("Result")

MORE_SIZES = 5  # number of further sizes at which the original runs, in addition to the named sizes
BLOCK = 32  # total stride in pixels of image models; sides of images must often be multiples of it
PRIMES = (5, 13, 7, 11, 17, 19)
FEW_BLOCKS = (3, 5, 2)  # sides of images in blocks
BATCH = 3
SMALL = (2, 4, 8, 16, 32, 64)
PATIENCE = 30.0  # seconds for the further sizes; as many seconds as the named sizes took, if that is more


class Others(NamedTuple):
    """The plan for comparing two models at sizes that the user did not name.

    Attributes:
      ladders: the proposed sizes, see the function `ladders`.
      named: the sizes that the user named, which are compared in any case.
      draw: a function that makes inputs for an assignment symbol → size. It raises RLFlowError if a run would need too
        much memory.
    """

    ladders: Sequence[Ladder]
    named: Sequence[Sizes]
    draw: Callable[[dict[str, int]], object]


def ladders(least: Sizes, typical: Sizes) -> Iterator[Ladder]:
    """Yield ladders: sequences of alternative assignments symbol → size, best first; one alternative of each is used.

    Args:
      least: symbol → its smallest allowed size.
      typical: symbol → the size that the user named.
    """
    batch = [name for name, size in typical.items() if size == 1]
    rest = [name for name in typical if name not in batch] or batch

    def of(size: Callable[[int], int], names: Sequence[str] = tuple(typical)) -> dict[str, int]:
        """Return the typical sizes with the sizes of `names` replaced by a function of the typical size."""
        return dict(typical) | {name: max(least[name], size(typical[name])) for name in names}

    def blocks(sizes: Sizes) -> dict[str, int]:
        """Round each size whose typical size is a multiple of BLOCK up to a multiple of BLOCK."""
        return {name: size if typical[name] % BLOCK else -(-size // BLOCK) * BLOCK for name, size in sizes.items()}

    def primes(first: int) -> Ladder:
        """Return four alternatives: different primes; primes that are equal where typical sizes are equal; and, for
        typical sizes that are multiples of BLOCK, different multiples of BLOCK, or the same multiple.
        """
        drawn = {name: PRIMES[(first + k) % len(PRIMES)] for k, name in enumerate(typical)}
        alike = {size: drawn[name] for name, size in typical.items()}
        whole = {name: BLOCK * FEW_BLOCKS[(first + k) % len(FEW_BLOCKS)] for k, name in enumerate(typical)}
        images = [name for name, size in typical.items() if size % BLOCK == 0]
        square = {name: BLOCK * FEW_BLOCKS[first % len(FEW_BLOCKS)] for name in images}
        return (
            drawn, of(alike.__getitem__), dict(typical) | {name: whole[name] for name in images}, dict(typical) | square
        )  # fmt: skip

    def part(divisor: int) -> Ladder:
        sizes = of(lambda size: max(1, size // divisor))
        return sizes, blocks(sizes)

    yield dict(least), of(lambda size: 1)
    yield primes(0)
    large = of(lambda size: 2 * size, rest)
    yield large, blocks(large)
    yield (of(lambda size: BATCH, batch),)
    yield tuple(of(lambda size, small=small: small, rest) for small in SMALL)
    yield from (part(2), part(4), primes(2), primes(4))


def elsewhere(
    ladders: Iterable[Ladder], named: Sequence[Sizes], run: Callable[[dict[str, int]], Result], seconds: float
) -> Iterator[tuple[dict[str, int], Result | None, str | None]]:
    """Run the original at alternatives of each ladder until it accepts one, for up to MORE_SIZES accepted sizes.

    Args:
      ladders: the proposed sizes, see the function `ladders`.
      named: the sizes that the user named; they are not tried again.
      run: a function that runs the original at the sizes, or raises RLFlowError.
      seconds: the time limit, after which no further sizes are tried.

    Yields:
      For each ladder (accepted sizes, result of `run`, None). If the original refuses all alternatives, (the first one,
      None, the reason).
    """
    began, known, count = time.monotonic(), [dict(sizes) for sizes in named], 0
    for ladder in ladders:
        if count == MORE_SIZES:
            return
        refused = None
        for sizes in ladder:
            if sizes in known:
                continue
            known.append(sizes)
            if time.monotonic() - began > seconds:
                refused = sizes, None, "the time limit was reached"
                break
            try:
                yield sizes, run(sizes), None
            except RLFlowError as error:
                refused = refused or (sizes, None, str(error))
                continue
            refused, count = None, count + 1
            break
        if refused is not None:
            yield refused
