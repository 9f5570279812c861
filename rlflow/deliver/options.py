"""The options of `eval` and of `optimise`."""

from dataclasses import dataclass

from rlflow.common.options import option

FASTER, EQUAL = "faster", "equal"  # what is accepted: what is shown to be faster; also what is no different


@dataclass(frozen=True)
class OptimiseOptions:
    """`python run.py optimise`."""

    seconds: float | None = option(None, "for the whole command; null: 120, and 900 where it learns")
    learn: bool = option(False, "after the searches a controller learns in the dream and acts on the real graph")
    receipt: str | None = option(
        None, "receipt of the same model at another size or with other weights: its rewrites are carried out first"
    )
    controller: str | None = option(
        None, "folder of a trained controller that sees candidates, whatever model it learnt on: it acts first"
    )


@dataclass(frozen=True)
class EvalOptions:
    """Acting on the real graph, its controls, and the check of what comes out."""

    samples: int = option(8, "sampled episodes on the real graph besides the greedy one", at_least=0)
    greedy_steps: int = option(500, "rewrites that the greedy control may apply", at_least=0)
    greedy_seconds: float = option(60.0, "and for how long", at_least=0)
    measure_seconds: float = option(10.0, "end-to-end timing of each candidate; 0 leaves it out", at_least=0)
    sessions: int = option(6, "pairs of ONNX Runtime sessions")
    accept: str = option(
        FASTER,
        "what is delivered: faster (what is shown to be faster, or else to need less memory or a smaller file) or "
        "equal (also that of which no difference in speed is shown); never what is shown to be slower",
        choices=(FASTER, EQUAL),
    )
    seeds: tuple[int, ...] = option(
        (0, 1, 2), "seeds of the inputs that outputs are compared on", at_least=0, distinct=True
    )
    tolerance: float = option(0.0001, "largest relative error of an output, in units of its largest value")
