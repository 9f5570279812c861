"""RLFlow makes ONNX models faster by proved rules, and learns how in a dream.

    import rlflow

    result = rlflow.optimise("model.onnx", seconds=60)   # or an onnx.ModelProto, or a zoo name
    print(result)                                         # how much faster, how sure that is
    result.save("faster.onnx")                            # and the receipt beside it

    task = rlflow.load_task("model.onnx", cost="analytic")                   # states, matches, rewrites
    env = gymnasium.make("rlflow/GraphRewrite-v0", model="model.onnx")       # the same as an environment

This is the front door, and belongs to the roof: what it offers is imported when it is asked for. The rooms by floors,
each of which imports only lower ones (docs/ARCHITECTURE.md); without the roof they know no TensorFlow:

  common              errors, files, progress, registries, options; and tasks/base.py, the contract of a task
  graph, zoo          the immutable graph, ONNX in and out; models without downloads
  rules               rules as text, matches, rewrites; prover/, generator/
  costs               what a graph costs: estimated, or measured
  env                 states, rewards, the real environment
  search, collect     a cheaper graph without learning; episodes for learning
  deliver             checks (validate/), the choice, receipts
  reports             pages about runs
  tasks               one file a task
  runs                options, configs, the folder of a run; sweeps/
  cli                 one file a command; library.py: optimise and load_task
"""

from typing import TYPE_CHECKING

from rlflow.common.errors import RLFlowError
from rlflow.env import registration

if TYPE_CHECKING:  # what an editor sees of what `__getattr__` gives
    from rlflow.library import Optimised, load_task, optimise

    __version__: str

__all__ = ["Optimised", "RLFlowError", "load_task", "optimise"]

registration.register()


def __getattr__(name: str):
    if name in __all__:
        from rlflow import library

        return getattr(library, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("rlflow")
    raise AttributeError(f"module 'rlflow' has no attribute '{name}'")
