"""The task `placement`: choose a memory for the weights and the activation of every operator of an ONNX model.

EGRL (Khadka et al. 2021) poses this task on a chip that is not for sale. Here simulators take the chip's place, so all
latencies are simulated, never measured. An integer program gives the optimum, or a proved bound.

| file | contents |
| --- | --- |
| `workload.py` | the operators of a model, their tensors and the paper's 19 features |
| `memories.py` | devices, read from YAML files |
| `simulators.py` | the simulators `additive` and `compiler`, by their equations |
| `task.py` | the instance, the task and its specification |
| `program.py` | the integer program: optimum of `additive`, lower bound of `compiler` |
| `packing.py` | addresses of buffers in one memory |
| `searches.py` | greedy-DP and annealing |
| `delivery.py` | files and pictures of a placement |
"""

from dataclasses import dataclass

from rlflow.common.options import check, option


@dataclass(frozen=True)
class PlacementOptions:
    """The task placement: the device and its simulator"""

    device: str = option("nnp-i", "a YAML file of memories, or a name in configs/memories: nnp-i, ethos-u55, edge-tpu")
    simulator: str = option(
        "compiler",
        "additive (sums of bytes) or compiler (addresses, prefetch and eviction); see "
        "rlflow/tasks/placement/simulators.py",
        choices=("additive", "compiler"),
    )

    def __post_init__(self):
        check(self, "placement")
