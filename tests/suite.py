"""Number of cases of tests: `make test` runs a part of the cases, `make nightly` (RLFLOW_NIGHTLY=1) all of them.

TensorFlow compiles every function anew in every training, which takes seconds. Tests of what surrounds a training of
few steps therefore run those functions eagerly in `make test`: see `eager`. Nearly half of the time in which an MDN-RNN
is built eagerly goes into making the kernels of its operators, so all tests of a process share them: `keep_kernels`.

A test that is too slow for every change has the marker `nightly`, which pyproject.toml deselects. All other tests run
in both, and `at_night` gives them more cases there.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest

NIGHTLY = os.environ.get("RLFLOW_NIGHTLY") == "1"
SHOWN = 20  # largest number of failures in one message


def at_night(nightly, otherwise):
    """Return `nightly` if the nightly checks run, `otherwise` in `make test`."""
    return nightly if NIGHTLY else otherwise


@cache
def keep_kernels() -> None:
    """Keep the kernels of TensorFlow's operators whenever a seed is set, from now on; at night nothing changes.

    TensorFlow clears them because a kernel that draws random numbers holds the state of its generator. From now on,
    initial weights are drawn by operators without a state, from the same seeds.
    """
    if NIGHTLY:
        return
    import tensorflow as tf
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops

    def drawn_by(stateless: Callable, stateful: Callable) -> Callable:
        def draw(shape, dtype, seed=0, seed2=0, name=None):
            if tf.executing_eagerly():
                return stateless(shape, np.array([seed or 0, seed2 or 0]), dtype)
            return stateful(shape, dtype, seed, seed2, name)  # a compiled function draws anew in every call

        return draw

    pywrap_tfe.TFE_ContextClearCaches = lambda context: None
    for name in ("truncated_normal", "random_uniform"):
        stateless = getattr(gen_stateless_random_ops, f"stateless_{name}")
        setattr(gen_random_ops, name, drawn_by(stateless, getattr(gen_random_ops, name)))


@contextmanager
def eager() -> Iterator[None]:
    """Run TensorFlow's functions in the block eagerly, without compiling them; at night nothing changes."""
    if NIGHTLY:
        yield
        return
    import tensorflow as tf
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    keep_kernels()
    compiled, before = Function.__call__, tf.config.functions_run_eagerly()

    def tensor(value):
        return tf.convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic) else value

    def call(function, *arguments, **options):  # with tensors, as when the function is compiled
        arguments, options = tf.nest.map_structure(tensor, (arguments, options))
        return compiled(function, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Function, "__call__", call)
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(before)


@contextmanager
def few_dreams() -> Iterator[None]:
    """Shorten the search for match classes that ends a training of `edits` or `graph-mdn`; at night nothing changes.

    It plays 64 imagined rollouts until nothing can be rewritten, which takes half of the time of a small training.
    """
    from worldmodel.edits import class_rewards

    with pytest.MonkeyPatch.context() as patch:
        for name, few in at_night({}, {"REPEATS": 1, "DREAMS": 2, "STEPS": 12}).items():
            patch.setattr(class_rewards, name, few)
        yield


def slow(*values) -> list:
    """Return parameters for `pytest.mark.parametrize` that only `make nightly` runs.

    Args:
        values: one value, or a tuple of values, for each parameter.
    """
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly) for value in values
    ]


def each_of(cases: Iterable, name: Callable = str) -> Callable:
    """Return a decorator that makes one test of a function of a case, by `check_each`."""

    def decorate(check: Callable) -> Callable:
        def test():
            check_each(check, cases, name)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def check_each(check: Callable, cases: Iterable, name: Callable = str) -> None:
    """Call `check` with every case, and raise one AssertionError that names all cases that fail, with the reasons.

    One test with a loop is faster than one pytest item per case, which costs some milliseconds in every process of
    pytest-xdist.

    Args:
        check: function of a case that raises an exception if the case fails.
        cases: the cases.
        name: function from a case to its name in the message.

    Raises:
        AssertionError: a case fails, or there is no case.
    """
    failures, count = [], 0
    for count, case in enumerate(cases, 1):  # noqa: B007 - count is read after the loop
        try:
            check(case)
        except Exception as error:
            failures.append(f"{name(case)}: {type(error).__name__}: {error}")
    assert count, "there is no case to check"
    more = f"\n... and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
    assert not failures, f"{len(failures)} of {count} cases fail:\n" + "\n".join(failures[:SHOWN]) + more
