"""The command `place`: choose a memory of a device for every tensor of a model."""

from pathlib import Path

from rlflow.cli.command import add_command, add_custom_ops, add_shapes, ending
from rlflow.common.errors import RLFlowError

TEXT = "place the tensors of a model in the memories of a device"
PAGE = """\
Chooses a memory for the weights and the activation of every operator, on a simulator of a device, with the proved
distance from the best placement. All latencies are simulated, not measured.

    %(prog)s MODEL.onnx --memory nnp-i --out DIR

--memory is a YAML file of memories, or one of nnp-i, ethos-u55 and edge-tpu (configs/memories/). Simulators:

  compiler   memories have addresses, and ports prefetch weights and evict activations (default)
  additive   an operator takes the largest of its computation and its traffic on each port

The integer program is exact for `additive`. For `compiler` it proves a bound, and annealing improves the placement.
DIR gets placement.json, one CSV for each memory in the format of MiniMalloc, and pictures.

A placement by a trained agent: train-controller and eval with task.name=placement controller.name=egrl."""


def add(commands) -> None:
    command = add_command(commands, "place", run, TEXT, PAGE)
    command.add_argument("model", metavar="MODEL.onnx", help="path of an ONNX file, or a zoo name")
    command.add_argument("--memory", default="nnp-i", metavar="FILE", help="the device (default: nnp-i)")
    command.add_argument("--out", dest="folder", required=True, metavar="DIR", help="folder for the placement")
    command.add_argument("--simulator", default="compiler", metavar="NAME", help="compiler (default) or additive")
    seconds = "time limit of the search (default: 10)"
    command.add_argument("--seconds", type=float, default=10.0, metavar="S", help=seconds)
    command.add_argument("--seed", type=int, default=0, help="seed of annealing")
    add_shapes(command)
    add_custom_ops(command)


def run(parsed) -> dict:
    from rlflow.common.files import check_writable, read_json
    from rlflow.common.messages import shape_words
    from rlflow.runs.config import parse_shapes
    from rlflow.tasks.placement.delivery import PLACEMENT, write_placement
    from rlflow.tasks.placement.memories import read_device
    from rlflow.tasks.placement.searches import best_placement
    from rlflow.tasks.placement.simulators import SIMULATORS
    from rlflow.tasks.placement.task import instance_of
    from rlflow.zoo import zoo_or_path

    if parsed.simulator not in SIMULATORS or not parsed.seconds > 0 or parsed.seed < 0:
        raise RLFlowError("pass --simulator compiler or additive, --seconds above 0 and --seed of at least 0")
    read_device(parsed.memory)  # a wrong device is refused before the folder is made
    folder = Path(parsed.folder)
    check_writable(folder / PLACEMENT)
    shapes = parse_shapes(parsed.shape)
    instance = instance_of(zoo_or_path(parsed.model), parsed.memory, parsed.simulator, shapes)
    found, bound = best_placement(instance, parsed.seconds, parsed.seed)
    best = min(found, key=lambda name: found[name].objective)
    latency, usual = found[best].objective, found["heuristic"].objective
    gap = latency / max(bound, 1) - 1
    methods = {
        name: {"simulated_us": one.objective / 1e9, "evaluations": one.evaluations} for name, one in found.items()
    }
    figures = {
        "model": parsed.model, "shapes": dict(shapes), "method": best, "methods": methods, "bound_us": bound / 1e9,
        "proved_gap": gap,
    }  # fmt: skip
    path = write_placement(instance, found[best].decision, folder, figures)
    full = ", ".join(one["name"] for one in read_json(path)["memories"] if one["used"] > one["bytes"])
    addresses = f"sums of bytes fit, but no addresses that fit were found for {full}" if full else "all addresses fit"
    for name, one in found.items():
        print(f"{name:24} {one.objective / 1e9:12.3f} µs simulated")
    ending(
        {
            "result": f"{usual / 1e9:.3f} → {latency / 1e9:.3f} µs simulated, by {best}; no placement is below "
            f"{bound / 1e9:.3f} µs (gap {100 * gap:.2f} %)",
            "sure": f"the bound is proved for the simulator {parsed.simulator} of {instance.device.name}; {addresses}; "
            "nothing was measured on a device",
            "placement": path,
        },
        "place", parsed.model, "--memory", parsed.memory, "--out", folder, "--simulator", parsed.simulator,
        "--seconds", f"{10 * parsed.seconds:g}", "--seed", parsed.seed, *shape_words(shapes, fix=False),
    )  # fmt: skip
    return figures | {"files": {"placement": str(path)}}
