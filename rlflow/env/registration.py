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

    gymnasium.register(NAME, entry_point="rlflow.env.graph_rewrite:make_by_name")


class _Waiting(MetaPathFinder):
    """Finds Gymnasium as it is found otherwise, and has it register the name after it is imported.

    Whoever only asks whether it is there changes nothing.
    """

    def __init__(self):
        self.asking = False  # the other finders, for this one

    def find_spec(self, name: str, path, target=None):
        if name != "gymnasium" or self.asking:
            return None
        self.asking = True
        try:
            spec = find_spec(name)
        finally:
            self.asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader, self)
        return spec


class _Registering:
    """A loader that registers the name when it has loaded Gymnasium; in all else the one that it wraps."""

    def __init__(self, loader, finder: _Waiting):
        self.loader, self.finder = loader, finder

    def __getattr__(self, name: str):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        _register()
