"""Files and pictures of a placement: JSON, one CSV of buffers for each memory, timelines and memory-shift matrices.

| file | contents |
| --- | --- |
| `placement.json` | the memory, address and lifetime of every tensor; the simulated latency and the proved bound |
| `MEMORY.csv` | buffers in the format of MiniMalloc: id, lower (first step), upper (last + 1), size, offset |
| `timelines.png` | steps on the x axis and addresses on the y axis, one panel for each memory |
| `shift-*.png` | megabytes by memory in the heuristic's placement (rows) and in this one (columns); Figures 6, F.2 |

`placement.json` is written last, so a folder with this file is complete. An `instance` is a
`rlflow.tasks.placement.task.Placements`. Numbers of figures refer to the paper (Khadka et al. 2021).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.linalg import eigh

from rlflow.common.files import write_json, write_text
from rlflow.reports import charts
from rlflow.tasks.placement.packing import addresses
from rlflow.tasks.placement.simulators import COMPILER, place

FORMAT = 1  # the format of placement.json
PLACEMENT = "placement.json"
WEIGHTS, ACTIVATION = "weights", "activation"
UNLIMITED = 2**62  # bytes


def tensors_of(instance, decision: np.ndarray) -> list[dict]:
    """Return one entry for every tensor of a valid decision, in run order.

    First fit in run order assigns addresses, as in `compiler`. If the highest address of a memory is then above the
    lower bound of `packing.section_bound`, `packing.addresses` searches for better addresses. `additive` compares only
    sums of bytes, so its tensors may still end above the capacity.

    Args:
      instance: the instance.
      decision: int64 [n], a decision that the rectifier leaves as it is.

    Returns:
      Entries with "operator" (its name), "tensor" ("weights" or "activation"), "memory" (its name), "bytes", "offset",
      and "first" and "last", the steps between which the tensor exists (both included).
    """
    workload, names = instance.workload, [memory.name for memory in instance.device.memories]
    wide = instance.problem._replace(capacity=np.full(instance.memories, UNLIMITED))
    placed = place(wide, *(part[None] for part in np.divmod(decision, instance.memories)), COMPILER)
    memory, offsets, sizes, lower, upper = (  # of weights and activations, int64 [2, n]
        np.stack(pair)
        for pair in (
            (placed.weights[0], placed.outputs[0]), (placed.weight_offsets[0], placed.output_offsets[0]),
            (workload.weights, workload.outputs), (np.zeros(workload.n, np.int64), np.arange(workload.n)),
            (np.full(workload.n, workload.n), workload.last + 1),
        )
    )  # fmt: skip
    for m, capacity in enumerate(instance.problem.capacity.tolist()):
        here = (memory == m) & (sizes > 0)
        offsets[here] = addresses(lower[here], upper[here], sizes[here], capacity, offsets[here])
    return [
        {
            "operator": operator, "tensor": tensor, "memory": names[memory[k, i]], "bytes": int(sizes[k, i]),
            "offset": int(offsets[k, i]), "first": int(lower[k, i]), "last": int(upper[k, i]) - 1,
        }
        for i, operator in enumerate(workload.names) for k, tensor in enumerate((WEIGHTS, ACTIVATION)) if sizes[k, i]
    ]  # fmt: skip


def shifts(before: list[dict], after: list[dict], names: list[str], tensor: str) -> np.ndarray:
    """Return the memory-shift matrix, int64 [M, M]: bytes that moved from the row's memory to the column's.

    Args:
      before, after: results of `tensors_of` for the same instance.
      names: the names of the memories.
      tensor: "weights" or "activation".
    """
    matrix = np.zeros((len(names), len(names)), np.int64)
    for one, other in zip(before, after, strict=True):
        if one["tensor"] == tensor:
            matrix[names.index(one["memory"]), names.index(other["memory"])] += one["bytes"]
    return matrix


def csv_of(tensors: list[dict], memory: str) -> str:
    """Return the buffers of one memory as CSV in the format of MiniMalloc's solutions, with a header.

    Args:
      tensors: the result of `tensors_of`.
      memory: the name of the memory.
    """
    lines = ["id,lower,upper,size,offset"]
    for k, one in enumerate(tensors):
        if one["memory"] == memory:
            lines.append(f"{k},{one['first']},{one['last'] + 1},{one['bytes']},{one['offset']}")
    return "\n".join(lines) + "\n"


@charts.styled()
def timelines(instance, tensors: list[dict]):
    """Return a figure with one panel for each memory: rectangles of tensors over steps and addresses in MB.

    Args:
      instance: the instance.
      tensors: the result of `tensors_of`.
    """
    from matplotlib.patches import Rectangle

    memories = instance.device.memories
    figure = charts.new_figure(1.4 * charts.WIDTH, 1.8 * len(memories) + 0.4)
    for axes, memory in zip(figure.subplots(len(memories), 1, sharex=True, squeeze=False)[:, 0], memories, strict=True):
        top = 0.0
        for one in tensors:
            if one["memory"] == memory.name:
                colour = charts.COLOURS[int(one["tensor"] == ACTIVATION)]
                low, height = one["offset"] / 1e6, one["bytes"] / 1e6
                width = one["last"] + 1 - one["first"]
                axes.add_patch(Rectangle((one["first"], low), width, height, color=colour, alpha=0.6, lw=0.3))
                top = max(top, low + height)
        if top >= 0.5 * memory.capacity / 1e6:
            axes.axhline(memory.capacity / 1e6, color=charts.LIGHT["faint"], linewidth=0.8)
            top = max(top, memory.capacity / 1e6)
        axes.set(xlim=(0, instance.workload.n), ylim=(0, 1.05 * top or 1.0), ylabel=f"{charts.label(memory.name)}, MB")
    axes.set(xlabel="step")
    handles = [Rectangle((0, 0), 1, 1, color=colour, alpha=0.6) for colour in charts.COLOURS[:2]]
    figure.legend(handles, [WEIGHTS, ACTIVATION], loc="outside upper right", ncols=2, fontsize=8)
    return figure


def embedding(maps: np.ndarray, rewards: np.ndarray):
    """Return a figure of maps in the plane of their first two principal components (Figure 5 of the paper uses UMAP).

    Args:
      maps: int [B, n, 2], the memory of the weights and of the activation of each operator, for B placements.
      rewards: float [B], the reward of each placement, shown as its colour.
    """
    hot = np.eye(maps.max() + 1, dtype=np.float32)[maps].reshape(len(maps), -1)
    hot -= hot.mean(axis=0)
    _, axes = eigh(hot.T @ hot, subset_by_index=[hot.shape[1] - 2, hot.shape[1] - 1])
    labels = "first principal component", "second principal component", "reward"
    return charts.scatter((hot @ axes[:, ::-1]).tolist(), rewards.tolist(), labels)


def write_placement(instance, decision: np.ndarray, folder: Path, more: Mapping) -> Path:
    """Write all files of a placement, and return the path of placement.json.

    Args:
      instance: the instance.
      decision: int64 [n], a decision that the rectifier leaves as it is.
      folder: the folder.
      more: further JSON values, such as the model, the bound and the method.
    """
    memories, path = instance.device.memories, folder / PLACEMENT
    path.unlink(missing_ok=True)  # of an earlier placement, whose other files are replaced
    names = [memory.name for memory in memories]
    before, after = (tensors_of(instance, one) for one in (instance.control(), decision))
    usual, latency = instance.evaluate(np.stack([instance.control(), decision])).objectives.tolist()
    matrices = {tensor: shifts(before, after, names, tensor) for tensor in (WEIGHTS, ACTIVATION)}
    for memory in names:
        write_text(folder / f"{memory}.csv", csv_of(after, memory))
    charts.save(timelines(instance, after), folder / "timelines.png")
    for tensor, matrix in matrices.items():
        cells = {(names[a], names[b]): matrix[a, b] / 1e6 for a in range(len(names)) for b in range(len(names))}
        charts.save(charts.heatmap(names, names, cells), folder / f"shift-{tensor}.png")
    write_json(path, {
        "format": FORMAT, "device": instance.device.name, "simulator": instance.simulator,
        "simulated_us": {"placement": latency / 1e9, "heuristic": usual / 1e9},
        "memories": [
            {
                "name": memory.name, "bytes": memory.capacity,
                "used": max((one["offset"] + one["bytes"] for one in after if one["memory"] == memory.name), default=0),
            }
            for memory in memories
        ],
        "shifted_bytes": {tensor: matrix.tolist() for tensor, matrix in matrices.items()},
        "tensors": after, **more,
    })  # fmt: skip
    return path
