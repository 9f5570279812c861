"""The environment's name in Gymnasium, known as soon as both are imported, in either order.

Gymnasium takes a moment to import, for which `import rlflow` and `rlflow --help` do not wait: where it is not there
yet, its import is what registers the name.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

NAME = "rlflow/GraphRewrite-v0"


def register() -> None:
    """Now, or when Gymnasium is imported."""
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Waiting())


def _register() -> None:
    import gymnasium

    gymnasium.register(NAME, entry_point="rlflow.env.vector:make_by_name")


class _Waiting(MetaPathFinder):
    """Finds Gymnasium as it is found otherwise, once, and has it register the name after it is imported."""

    def find_spec(self, name: str, path, target=None):
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module) -> None:
                execute(module)
                _register()

            spec.loader.exec_module = execute_and_register
        return spec
