"""RLFlow makes ONNX models faster with proved rewrite rules, and learns world models of the rewriting.

    import rlflow

    result = rlflow.optimise("model.onnx", seconds=60)   # or an onnx.ModelProto, or a zoo name
    print(result)                                         # the measured gain and its confidence interval
    result.save("faster.onnx")                            # and the receipt in the same folder

    task = rlflow.load_task("model.onnx", cost="analytic")                   # states, matches, rewrites
    env = gymnasium.make("rlflow/GraphRewrite-v0", model="model.onnx")       # the same as an environment

This module is the front door: it imports each name on first use. `rlflow.optimize` is another spelling. The packages
follow from the lowest floor to the roof (docs/ARCHITECTURE.md). Below the roof none of them imports TensorFlow.

  common              errors, files, messages, registries, options, the contract of a task
  graph, zoo          the immutable graph, ONNX in and out; models without downloads
  rules               rules as text, matches, rewrites
  costs, proving      the cost of a graph, estimated or measured; the prover, which runs offline
  env                 states, rewards, the real environment
  search, collect     cheaper graphs without learning; episodes for learning
  optimisation        from a model to a checked, measured file with a receipt
  memory              less peak memory
  reports             pages about runs
  tasks               one file a task
  runs                configs, run folders, sweeps
  cli, library.py     the command line; the functions of this module
"""

from typing import TYPE_CHECKING

from rlflow.common.errors import RLFlowError
from rlflow.env import registration

if TYPE_CHECKING:  # for editors, which do not run `__getattr__`
    from rlflow.library import Optimised, load_task, optimise
    from rlflow.library import optimise as optimize

    __version__: str

__all__ = ["Optimised", "RLFlowError", "load_task", "optimise", "optimize"]

registration.register()


def __getattr__(name: str):
    if name in __all__:
        from rlflow import library

        return getattr(library, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("rlflow")
    raise AttributeError(f"module 'rlflow' has no attribute '{name}'")
