"""Registration of the environments `rlflow/GraphRewrite…-v0` in Gymnasium without importing Gymnasium.

Importing Gymnasium takes a noticeable time, which `import rlflow` and `rlflow --help` should not spend. If Gymnasium is
imported already, `register` registers the environments at once. Otherwise it installs an import hook that registers the
environments as soon as Gymnasium is imported.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

ENTRY_POINTS = {
    "rlflow/GraphRewrite-v0": "rlflow.env.graph_rewrite:make_by_name",
    "rlflow/GraphRewriteFlat-v0": "rlflow.env.graph_rewrite:make_flat_by_name",
}


def register() -> None:
    """Register the environments in Gymnasium: at once if Gymnasium is imported, otherwise when it is imported."""
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Waiting())


def _register() -> None:
    import gymnasium

    for name, entry_point in ENTRY_POINTS.items():
        gymnasium.register(name, entry_point=entry_point)


class _Waiting(MetaPathFinder):
    """An import hook that finds Gymnasium as usual and registers the environments after Gymnasium is loaded.

    A program that only checks whether Gymnasium is installed (`importlib.util.find_spec`) triggers no registration.
    """

    def __init__(self):
        self.asking = False  # True while `find_spec` calls the other finders, to prevent recursion

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
    """A loader of Gymnasium that delegates to the usual loader and then registers the environments."""

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
