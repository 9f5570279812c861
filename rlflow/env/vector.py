"""The real environment for agents of any kind: many copies at once, or one line of `gymnasium.make`.

    import gymnasium, rlflow
    env = gymnasium.make("rlflow/GraphRewrite-v0", model="tiny_resnet18", max_steps=30)
"""

from collections.abc import Mapping
from functools import partial

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlflow.env.rewriting import GraphRewriteEnv
from rlflow.env.spec import EnvSpec


def make_env(spec: EnvSpec, render_mode: str | None = None) -> GraphRewriteEnv:
    return GraphRewriteEnv(spec.make_task(), spec.make_reward(), spec.max_steps, render_mode=render_mode)


def make_vector_env(spec: EnvSpec, n: int, processes: bool = True) -> VectorEnv:
    """n copies of the environment, each in a process of its own; in this one if n is 1, `processes` is false or states
    are measured: only one process of a machine measures at a time.

    A copy whose episode ends is reset in the same step (`AutoresetMode.SAME_STEP`, like the dream): its last
    observation is in `infos["final_obs"]`, and what `step` returns begins the next episode. Masks are part of the
    batched observation: `xfer_mask` int8 [n, N + 1], `location_masks` int8 [n, N + 1, L].

    Processes are spawned: a script that calls this needs `if __name__ == "__main__":`.
    """
    makers = [partial(make_env, spec)] * n
    if n == 1 or not processes or spec.measures:
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    # Spawned, since a fork would inherit ONNX Runtime's threads.
    return AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)


def make_by_name(
    model: str, shapes: Mapping | None = None, rules=(), render_mode: str | None = None, **options
) -> GraphRewriteEnv:
    """What `gymnasium.make` calls. The options are those of `EnvSpec`."""
    return make_env(EnvSpec(model, tuple((shapes or {}).items()), rules=tuple(rules), **options), render_mode)
