"""RLFlow makes ONNX models faster with proved rewrite rules, and learns world models of the rewriting.

    import rlflow

    result = rlflow.optimise("model.onnx", seconds=60)   # or an onnx.ModelProto, or a zoo name
    print(result)                                         # the measured gain and its confidence interval
    result.save("faster.onnx")                            # writes the model and its receipt

    task = rlflow.load_task("model.onnx", cost="analytic")                   # states, matches, rewrites
    env = gymnasium.make("rlflow/GraphRewrite-v0", model="model.onnx")       # the same task as an environment

This module imports each public name except RLFlowError on first use. `rlflow.optimize` is another spelling of
`rlflow.optimise`. The list below is ordered so that a package uses only packages above it (docs/ARCHITECTURE.md). No
package above the last line imports TensorFlow.

  common              errors, files, messages, registries, options, the contract of a task
  graph, zoo          the immutable graph with ONNX reader and writer; example models without downloads
  rules               rules as text, matches, rewrites
  costs, proving      the cost of a graph, estimated or measured; the prover of rules, which runs offline
  env                 states, rewards, the real environment
  search, collect     search for cheaper graphs without learning; random episodes for learning
  optimisation        the steps from a model to a checked, measured file with a receipt
  memory              a lower peak memory by node order, rewrites and session options
  reports             HTML and Markdown pages about runs
  tasks               the tasks, one file each
  runs                configs, run folders, sweeps
  cli, library.py     the command line; the functions of this module
"""

from typing import TYPE_CHECKING

from rlflow.common.errors import RLFlowError
from rlflow.env import registration

if TYPE_CHECKING:  # for editors and type checkers, which do not run `__getattr__`
    from rlflow.graph.session_file import session
    from rlflow.library import Optimised, load_task, optimise
    from rlflow.library import optimise as optimize

    __version__: str

__all__ = ["Optimised", "RLFlowError", "load_task", "optimise", "optimize", "session"]

registration.register()


def __getattr__(name: str):
    if name == "session":  # a program that only runs a model imports no search and no learning
        from rlflow.graph.session_file import session

        return session
    if name in __all__:
        from rlflow import library

        return getattr(library, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("rlflow")
    raise AttributeError(f"module 'rlflow' has no attribute '{name}'")
