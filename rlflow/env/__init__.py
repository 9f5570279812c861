"""The real environment: states and their successors, rewards, observations, and the Gymnasium interface.

A step updates matches, cost and observation only for the nodes near the rewrite. Therefore only the copying of
dictionaries takes a time that grows with the graph. No step reads or copies a weight. This module holds the options of
the environment. It imports neither NumPy nor Gymnasium, so that reading a config is fast.
"""

from dataclasses import dataclass

from rlflow.common.options import option

COMBINED, MEASURED = {"env.reward": ("combined",)}, {"env.reward": ("measured",)}  # rewards with options of their own
SINGLE, BATCHED = MOVES = ("single", "batched")


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """The real environment."""

    rules: tuple[str, ...] = option((), "rule families (files in rlflow/rules/); empty for all but `memory`")
    exact: bool = option(
        False, "use only the rules that change no rounding; results are compared bit for bit (`optimise --exact`)"
    )
    standard_operators_only: bool = option(
        False, "leave out the rules that introduce operators of other domains, such as com.microsoft"
    )
    widen: bool | None = option(
        None,
        "compute a float16 model in float32 between its inputs and outputs (its weights stay float16), or a quantised "
        "model in float32 without the rounding of activations; null: a float16 model if it is measured to be no slower "
        "so and exact is false, a quantised model with eval.accept=dequantised",
    )
    only_rules: tuple[str, ...] = option((), "names of the only rules to use; empty for all; also --only-rule")
    skip_rules: tuple[str, ...] = option((), "names of rules to leave out; also --skip-rule")
    keep: tuple[str, ...] = option(
        (), "names of tensors that stay with their values, and of nodes that no rewrite replaces; also --keep"
    )
    max_locations: int = option(200, "largest number of locations of a rule (L of the paper)")
    max_steps: int = option(
        60, "steps after which a random episode, or one of a training with controller.train_on=real, is truncated"
    )
    moves: str = option(
        SINGLE,
        "the unit of one action: single (one rewrite) or batched (the same rewrite at all matches of equal match class "
        "and neighbourhood, so that equal blocks are searched once); receipts and episodes always list single rewrites",
        choices=MOVES,
    )
    reward: str = option(
        "relative",
        "incremental (paper, eq. 2), combined (eq. 3), relative (percent of the initial runtime), new-runtime (initial "
        "minus new runtime) or measured (percent of the initial latency, end to end on this machine); the world model "
        "`edits` refuses combined and measured, because it predicts only estimated runtimes; the others learn all",
    )
    alpha: float = option(
        0.8, "weight of the runtime in `combined`; the best of the paper's grid (section 4.3)", at_least=0,
        used_if=COMBINED,
    )  # fmt: skip
    beta: float = option(0.2, "weight of the memory accesses in `combined`", at_least=0, used_if=COMBINED)
    measure_every: int | None = option(
        5,
        "steps between two measurements of `measured` (N of X-RLflow); the end of an episode is always measured; "
        "null: only the end",
        used_if=MEASURED,
    )
    unmeasured_reward: float = option(
        0.0, "reward of `measured` for a step that is not measured (0.1 in X-RLflow's code)", at_least=0,
        used_if=MEASURED,
    )  # fmt: skip
    measure_seconds: float = option(
        0.5, "seconds of the runs of one measurement, without the creation of sessions", used_if=MEASURED
    )
    measure_limit: float = option(
        60.0, "seconds after which an unfinished measurement is given up; its step then earns 0", used_if=MEASURED
    )
