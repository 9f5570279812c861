"""What is enumerated: small worlds of tensors and the operators between them, TASO's operators among them.

Four tensors of a shape are enough to say that an operator associates and that two of them may be exchanged. With fewer
these laws would come out as their many instances.
"""

from itertools import permutations

from rlflow.rules.generator.graphs import World
from rlflow.rules.generator.operators import label

POINTWISE = (label("Relu"), label("Add"), label("Mul"))
TRANSPOSE = label("Transpose", perm=(1, 0))
CONCATS = tuple(label("Concat", axis=axis) for axis in (0, 1))
SPLITS = tuple(label("Split", axis=axis) for axis in (0, 1))
PADS = (1, 1, 1, 1)
POOLS = tuple(label(op, kernel_shape=(3, 3), pads=PADS) for op in ("MaxPool", "AveragePool"))
IMAGE, KERNEL, GROUPED, POINT = (1, 2, 3, 3), (2, 2, 3, 3), (2, 1, 3, 3), (2, 2, 1, 1)


def tensors(**shapes: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(name, shape) for every letter of each name."""
    return tuple((name, shape) for names, shape in shapes.items() for name in names)


WORLDS = (
    World(
        "permutations",
        tensors(ab=(2, 3, 4), c=(2, 4)),
        tuple(label("Transpose", perm=perm) for rank in (2, 3) for perm in permutations(range(rank))),
    ),
    World(
        "matrices",
        tensors(abcd=(2, 2), ef=(2, 4), g=(4, 2)),
        (*POINTWISE, label("MatMul"), TRANSPOSE, *CONCATS, *SPLITS),
    ),
    World("numbers", tensors(abcd=(2, 2), kl=()), (*POINTWISE, label("MatMul"), TRANSPOSE, *CONCATS)),
    World(
        "convolutions",
        tensors(abcd=IMAGE, uvw=KERNEL, k=()),
        (*POINTWISE, label("Conv", pads=PADS), *CONCATS, SPLITS[1], *POOLS),
    ),
    World(
        "grouped",
        tensors(abcd=IMAGE, uvw=GROUPED),
        (*POINTWISE, *(label("Conv", pads=PADS, group=group) for group in (2, 4)), *CONCATS, SPLITS[1]),
    ),
    World(
        "small kernels",
        tensors(abcd=IMAGE, uv=POINT, w=KERNEL),
        (*POINTWISE, label("Conv"), label("Conv", pads=PADS), label("Pad"), *CONCATS, SPLITS[1], POOLS[1]),
    ),
)
