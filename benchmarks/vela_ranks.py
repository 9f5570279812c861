"""Ranks of placements by our simulators and by the performance model of Vela, Arm's compiler for Ethos-U.

Vela's model takes, for every operator, the largest of computation and of the traffic of each memory. Each tensor has a
memory of its own. The model knows blocks, repeated reads, compressed weights and bursts, which our simulators do not
know. The network is a ResNet of 20 convolutions in int8 with random weights, the device is `ethos-u55`. Weights that
Vela would buffer are read from their memory instead, because the placement decides. What a convolution of ours absorbs
lies in SRAM.

`ranks` needs a Python environment of its own for Vela, because Vela is no dependency of RLFlow:

    python -m venv vela && vela/bin/pip install ethos-u-vela==5.2.0
    python -m benchmarks.placement --vela vela/bin/python

Vela's side is this file as a script, `vela/bin/python benchmarks/vela_ranks.py FOLDER`. It imports nothing of RLFlow.
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

SIDE, CHANNELS, BLOCKS, CLASSES = 64, (32, 64, 128, 256), 2, 100  # image, channels of the stages, blocks of a stage
DEVICE = "ethos-u55"
PSRAM_BYTES_PER_CYCLE, PSRAM_BURST = 0.4, 128  # 0.2 GB/s at 500 MHz; bytes of a burst as of Vela's off-chip flash
VELA = (
    "--accelerator-config", "ethos-u55-256", "--config", "Arm/vela.ini", "--system-config",
    "Ethos_U55_High_End_Embedded", "--memory-mode", "Shared_Sram", "--optimise", "Size", "--debug-force-legacy-core",
)  # fmt: skip


# -- our side ----------------------------------------------------------------------------------------


def blocks() -> list[tuple[int, int]]:
    """Return (channels, stride) of each residual block."""
    return [(c, 2 if stage and not b else 1) for stage, c in enumerate(CHANNELS) for b in range(BLOCKS)]


def write_onnx(path: Path) -> None:
    """Write the network as ONNX; the k-th convolution has the scope convK."""
    from rlflow.graph.onnx_writer import save_model
    from rlflow.zoo.builder import Builder

    b, count = Builder("vela_ranks", 0), iter(range(100))

    def conv(x: str, channels: int, kernel: int, stride: int) -> str:
        return b.conv(x, f"conv{next(count)}", channels, kernel, stride, kernel // 2, bias=True)

    x = b.relu(conv(b.input("x", [1, 3, SIDE, SIDE]), CHANNELS[0], 3, 2))
    for channels, stride in blocks():
        y = conv(b.relu(conv(x, channels, 3, stride)), channels, 3, 1)
        x = b.relu(b.op("Add", y, conv(x, channels, 1, stride) if stride > 1 else x))
    b.output(b.gemm(b.pooled_features(x), "classifier", CHANNELS[-1], CLASSES), "y", [1, CLASSES])
    save_model(b.model(), path)


def write_tflite(path: Path) -> None:
    """Write the same network as int8 TFLite. The weights differ, which no placement depends on."""
    import keras
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)

    count = iter(range(100))

    def conv(x, channels: int, kernel: int, stride: int, activation=None):
        name = f"conv{next(count)}"
        return layers.Conv2D(channels, kernel, stride, "same", activation=activation, name=name)(x)

    given = keras.Input((SIDE, SIDE, 3), batch_size=1)
    x = conv(given, CHANNELS[0], 3, 2, "relu")
    for channels, stride in blocks():
        y = conv(conv(x, channels, 3, stride, "relu"), channels, 3, 1)
        x = layers.Activation("relu")(layers.Add()([y, conv(x, channels, 1, stride) if stride > 1 else x]))
    model = keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))
    converter, rng = tf.lite.TFLiteConverter.from_keras_model(model), np.random.default_rng(0)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [rng.standard_normal((1, SIDE, SIDE, 3)).astype(np.float32)] for _ in range(2)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    path.write_bytes(converter.convert())


def random_placements(instance, count: int) -> np.ndarray:
    """Return valid decisions, int64 [count, n]; each has its own shares of weights and activations in SRAM."""
    rng, shape = np.random.default_rng(0), (count, instance.workload.n)
    slow = np.where(rng.random(shape) < 0.8, 1, 2)  # weights that are not in SRAM are in flash, and a fifth in PSRAM
    weights = np.where(rng.random(shape) < rng.random((count, 1)), 0, slow)
    outputs = np.where(rng.random(shape) < rng.random((count, 1)), 0, 2)
    return instance.evaluate(instance.memories * weights + outputs).decisions


def ranks(python: str, count: int) -> dict:
    """Compare the simulators with Vela on random placements.

    Args:
        python: the interpreter of an environment with ethos-u-vela.
        count: the number of placements.

    Returns:
        Simulator → {"rank": Spearman's correlation, "ratio": [least, median, most] of Vela's latency / ours}.
    """
    from scipy.stats import spearmanr

    from rlflow.tasks.placement.simulators import ADDITIVE, SIMULATORS
    from rlflow.tasks.placement.task import instance_of

    with TemporaryDirectory() as name:
        folder = Path(name)
        write_onnx(folder / "net.onnx")
        write_tflite(folder / "net.tflite")
        instances = {simulator: instance_of(folder / "net.onnx", DEVICE, simulator) for simulator in SIMULATORS}
        decisions = random_placements(instances[ADDITIVE], count)
        weights, outputs = np.divmod(decisions, instances[ADDITIVE].memories)
        names = [name.split("/")[-2] for name in instances[ADDITIVE].workload.names]  # of SCOPE/OPERATOR
        np.savez(folder / "placements.npz", weights=weights, outputs=outputs, names=names)
        subprocess.run([python, __file__, name], check=True, stdout=subprocess.DEVNULL)
        theirs = np.load(folder / "seconds.npy")
    result = {}
    for simulator, instance in instances.items():
        ours = instance.evaluate(decisions).objectives / 1e15
        ratio = np.percentile(theirs / ours, [0, 50, 100])
        result[simulator] = {"rank": float(spearmanr(ours, theirs).statistic), "ratio": ratio.tolist()}
    return result


# -- Vela's side -------------------------------------------------------------------------------------


def compiled(path: Path, folder: Path):
    """Return Vela's graph and architecture after the compilation of a TFLite file."""
    from ethosu.vela import vela

    process, kept = vela.process, {}

    def keep(source, debug, architecture, *more):
        kept["architecture"], kept["graph"] = architecture, process(source, debug, architecture, *more)
        return kept["graph"]

    vela.process = keep
    vela.main([str(path), *VELA, "--output-dir", str(folder)])
    return kept["graph"], kept["architecture"]


def vela_seconds(folder: Path) -> np.ndarray:
    """Return the latency in seconds of each placement in FOLDER/placements.npz by Vela's performance model."""
    from ethosu.vela import npu_performance
    from ethosu.vela.tensor import MemArea

    graph, architecture = compiled(folder / "net.tflite", folder / "vela")
    architecture.memory_bandwidths_per_cycle[MemArea.Dram] = PSRAM_BYTES_PER_CYCLE
    architecture.memory_burst_length[MemArea.Dram] = PSRAM_BURST
    schedules = [(op, graph.schedule) for graph in graph.subgraphs if graph.schedule for op in graph.sched_ops]
    cost = {op: schedule.cost_map[op] for op, schedule in schedules}
    for one in cost.values():
        one.buffered_weight_tensors, one.slack_buffering_cycles = [], 0

    def result(op):
        return op.ofm.connection.parent_tens

    kinds: dict[str, list] = {}
    for op in cost:
        kinds.setdefault(op.op_type.name, []).append(op)
    convolutions = {int(re.search(r"/conv(\d+)", op.name)[1]): op for op in kinds["Conv2DBias"]}
    weights = {f"conv{k}": cost[op].npu_weights_tensor for k, op in convolutions.items()}
    outputs = {f"conv{k}": result(op) for k, op in convolutions.items()}
    inner = []
    for op in kinds["Add"]:
        summed = [op.ifm.connection.parent_tens, op.ifm2.connection.parent_tens]
        last = max(k for k, one in convolutions.items() if result(one) in summed)  # it absorbs the sum
        inner.append(result(convolutions[last]))
        outputs[f"conv{last}"] = result(op)
    (head,) = kinds["FullyConnected"]
    weights["classifier"], outputs["classifier"] = cost[head].npu_weights_tensor, result(head)
    areas, data = (MemArea.Sram, MemArea.OffChipFlash, MemArea.Dram), np.load(folder / "placements.npz")
    names = data["names"].tolist()
    assert outputs.keys() <= set(names), "an operator of Vela has no operator of ours"
    for tensor in inner:
        tensor.mem_area = MemArea.Sram
    schedules[0][0].ifm.connection.parent_tens.mem_area = MemArea.Dram  # the image
    seconds = []
    for memories in zip(data["weights"], data["outputs"], strict=True):
        for chosen, tensors in zip(memories, (weights, outputs), strict=True):
            for name, memory in zip(names, chosen.tolist(), strict=True):
                if name in tensors:
                    tensors[name].mem_area = areas[memory]
        cycles, before = 0.0, None
        for op, schedule in schedules:
            parts = npu_performance.estimate_full_op_performance(
                architecture, schedule, op, before, cost[op].block_config
            )
            cycles, before = cycles + parts[2][npu_performance.PassCycles.Total], op
        seconds.append(cycles / architecture.core_clock)
    return np.array(seconds)


if __name__ == "__main__":
    np.save(Path(sys.argv[1]) / "seconds.npy", vela_seconds(Path(sys.argv[1])))
