"""Devices: their memories and speed, read from a YAML file (configs/memories/).

name: nnp-i
tera_ops: 25.0              # 10¹² operations a second; a multiplication and an addition count 2
element_bytes: 2            # bytes of a real number
staging_bytes: 524288       # part of the fastest memory, for the simulator `compiler`
memories:                   # fastest first; the last one holds everything that fits nowhere else
  - {name: SRAM, bytes: 4194304, gb_per_second: 6800}
  - {name: Flash, bytes: 8388608, gb_per_second: 0.5, holds: weights}
  - {name: DRAM, bytes: 34359738368, gb_per_second: 67.2}
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.files import CONFIGS

FEMTO = 10**15  # femtoseconds per second; times are whole femtoseconds, so sums are exact and equal on all machines
KEYS = {"name", "tera_ops", "element_bytes", "staging_bytes", "memories"}  # of a device
MEMORY_KEYS, HOLDS = {"name", "bytes", "gb_per_second"}, ("everything", "weights")


@dataclass(frozen=True)
class Memory:
    """One memory of a device.

    Attributes:
      name: the name for people.
      capacity: bytes.
      fs_per_byte: femtoseconds that the port of the memory takes for one byte.
      weights_only: True for a read-only memory, which holds weights and no activations.
    """

    name: str
    capacity: int
    fs_per_byte: int
    weights_only: bool


@dataclass(frozen=True)
class Device:
    """A device; the memories are sorted from the fastest to the slowest, and the last one holds every tensor.

    Attributes:
      name: the name for people.
      ops_per_second: floating-point operations per second.
      element_bytes: bytes of a real number.
      staging: bytes of the fastest memory that the simulator `compiler` reserves for data on its way from or to another
        memory (the staging buffer).
      memories: the M memories.
    """

    name: str
    ops_per_second: float
    element_bytes: int
    staging: int
    memories: tuple[Memory, ...]

    @property
    def capacities(self) -> np.ndarray:
        """The capacity of each memory in bytes, int64 [M]."""
        return np.array([memory.capacity for memory in self.memories], np.int64)

    @property
    def fs_per_byte(self) -> np.ndarray:
        """Femtoseconds per byte of the port of each memory, int64 [M]."""
        return np.array([memory.fs_per_byte for memory in self.memories], np.int64)

    @property
    def weights_only(self) -> np.ndarray:
        """True for each read-only memory, bool [M]."""
        return np.array([memory.weights_only for memory in self.memories], bool)

    def compute_fs(self, flops: np.ndarray) -> np.ndarray:
        """Return the time of computation in femtoseconds, int64 [n], rounded up.

        Args:
          flops: int64 [n], numbers of floating-point operations.
        """
        return np.ceil(flops * (FEMTO / self.ops_per_second)).astype(np.int64)


def device_file(name: str) -> Path:
    """Return the file of a device: a path, or the name of a file in configs/memories/ without its suffix."""
    path = Path(name)
    shipped = CONFIGS / "memories" / f"{name}.yaml"
    if path.suffix in (".yaml", ".yml") or not shipped.is_file():
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in shipped.parent.glob("*.yaml")))
            raise RLFlowError(f"no device '{name}': pass the path of a YAML file, or one of {known}")
        return path
    return shipped


def read_device(name: str) -> Device:
    """Read a device from its file.

    Args:
      name: the path of a YAML file, or the name of a device in configs/memories/.

    Raises:
      RLFlowError: there is no such file, or its content is no device. The message names the key.
    """
    path = device_file(name)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.keys() != KEYS:
            raise RLFlowError(f"{path} needs exactly the keys {', '.join(sorted(KEYS))}")
        if not all(isinstance(one["name"], str) for one in (data, *data["memories"])):
            raise TypeError("a name is no text")
        for one in data["memories"]:
            if not MEMORY_KEYS <= one.keys() <= MEMORY_KEYS | {"holds"}:
                raise RLFlowError(f"{path}: a memory has the keys {', '.join(sorted(MEMORY_KEYS))} and perhaps holds")
            if one.get("holds", HOLDS[0]) not in HOLDS:
                raise RLFlowError(f"{path}: a memory holds {' or '.join(HOLDS)}, not {one['holds']!r}")
        for value in (data["element_bytes"], data["staging_bytes"], *(one["bytes"] for one in data["memories"])):
            if type(value) is not int:
                raise RLFlowError(f"{path}: bytes are whole numbers, not {value!r}")
        memories = tuple(
            Memory(one["name"], one["bytes"], round(1e6 / float(one["gb_per_second"])), one.get("holds") == HOLDS[1])
            for one in data["memories"]
        )
        device = Device(
            data["name"], 1e12 * float(data["tera_ops"]), data["element_bytes"], data["staging_bytes"], memories
        )
    except (
        OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError,
        RecursionError,
    ) as error:  # fmt: skip
        raise RLFlowError(f"{path} is not the file of a device: {first_line(error)}") from error
    names = [memory.name for memory in memories]
    if len(set(names)) < len(names) or not all(re.fullmatch(r"[\w-]+", name) for name in names):
        raise RLFlowError(f"{path}: each memory needs a name of its own, of letters, digits, '-' and '_'")
    speeds = [memory.fs_per_byte for memory in memories]
    if not memories or speeds != sorted(speeds) or memories[0].weights_only or memories[-1].weights_only:
        raise RLFlowError(
            f"{path}: list the memories from the fastest to the slowest; the first and the last are writable"
        )
    if not 0 <= device.staging < memories[0].capacity or min(memory.capacity for memory in memories) <= 0:
        raise RLFlowError(f"{path}: capacities must be above 0, and staging_bytes below that of {memories[0].name}")
    if device.ops_per_second <= 0 or device.element_bytes <= 0:
        raise RLFlowError(f"{path}: tera_ops and element_bytes must be above 0")
    return device
