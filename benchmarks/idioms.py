"""What each form of a transformer's block is worth, beside what exporters write.

Both run with all of ONNX Runtime's optimisations on.

    python -m benchmarks.idioms [--block NAME]

A form is what some rules make of the block, each applied until it matches no more; or a text by hand, where no rule
makes it: such a row says what a rule would be worth. Then all forms by rules that are faster by themselves are brought
about together. Every form must give what the block gives.

Under ten minutes. Resumable: what was measured lies in --folder.
"""

import sys
from pathlib import Path

import numpy as np
import onnx

from benchmarks.exporter_blocks import ATTENTION, BLOCKS, model, rotated
from benchmarks.harness import bar, each, finish, markdown, parser
from benchmarks.judged import ENGINE
from rlflow.costs.measured import measure
from rlflow.graph.onnx_reader import load_graph
from rlflow.graph.onnx_runtime import random_inputs, run, session
from rlflow.graph.onnx_writer import to_model
from rlflow.rules.apply import apply
from rlflow.rules.language import load_rules
from rlflow.rules.locations import MatchTable
from rlflow.rules.rule import RuleSet

JUDGES = (  # the rules, too, as far as a form names them: another one is no reason to measure again
    "benchmarks/exporter_blocks.py", "rlflow/costs/measured.py", *ENGINE, "rlflow/rules/concat.rules",
    "rlflow/rules/fused.rules", "rlflow/rules/layout.rules", "rlflow/rules/matmul.rules",
    "rlflow/rules/shape_arithmetic.rules",
)  # fmt: skip

SECONDS, SESSIONS = 12.0, 8  # of a form
ERROR = 1e-4  # relative
KEPT = ("original_ms", "candidate_ms", "ratio", "interval", "calm")
TOGETHER = "all that is faster, together"

RULED = {  # form → the rules that make it
    "no mask that masks nothing": ("mask-nothing",),
    "no guard": ("guard-of-softmax", "guard-of-masked-softmax"),
    "keys transposed where they are": ("transpose-of-stacked", "transpose-transpose"),
    "one scale, in the product": ("fused-matmul-of-mul", "fused-matmul-again"),
    "one product for query, key and value": ("matmul-add-merge", "split-split-first"),
    "BiasGelu": ("bias-gelu-inside",),
    "Sum before the normalisation": ("layer-normalization-of-sum",),
}
BY_HAND = {  # form → pairs of what stands in a block, and what in its place
    "MultiHeadAttention, by hand": {
        ATTENTION: "a2 = com.microsoft.MultiHeadAttention <num_heads = 12> (q2, k2, v2)",
    },
    "RotaryEmbedding, by hand": {
        rotated(x): f"{x}e = com.microsoft.RotaryEmbedding({x}, first_place, cos_once, sin_once)" for x in "qk"
    },
}


# -- forms -----------------------------------------------------------------------------------------


def rewritten(original: onnx.ModelProto, forms: list[str]) -> tuple[onnx.ModelProto, int]:
    """The model after the rules of the forms, one after the other, and how many rewrites that were."""
    graph, count, rules = load_graph(original), 0, load_rules()
    for name in [name for form in forms for name in RULED[form]]:
        rule = rules[rules.index(name)]
        while (table := MatchTable(RuleSet((rule,)), graph)).counts[0]:
            graph, count = apply(graph, rule, table.location(0, 0)), count + 1
    return to_model(graph), count


def by_hand(block: str, form: str) -> onnx.ModelProto | None:
    """The block in that form; None where it has nothing of it, or a mask that the form would lose."""
    text, pairs = BLOCKS[block].text, BY_HAND[form]
    if not all(old in text for old in pairs) or (ATTENTION in pairs and not BLOCKS[block].all_seen):
        return None
    for old, new in pairs.items():
        text = text.replace(old, new)
    return model(BLOCKS[block]._replace(text=text))


def compared(original: onnx.ModelProto, candidate: onnx.ModelProto) -> dict:
    """Both measured; error is the largest difference of outputs, relative to the largest output."""
    feeds = random_inputs(original, 0)
    (wanted,), (given,) = (run(session(each, 1), feeds) for each in (original, candidate))
    measured = measure(original, candidate, 1, SECONDS, SESSIONS, memory=False)
    return {key: measured[key] for key in KEPT} | {"error": float(np.abs(given - wanted).max() / np.abs(wanted).max())}


def ruled(block: str, forms: list[str]) -> dict:
    original = model(BLOCKS[block])
    candidate, count = rewritten(original, forms)
    return {"rewrites": count} | (compared(original, candidate) if count else {})


def written(block: str, form: str) -> dict:
    candidate = by_hand(block, form)
    return {"rewrites": 0} if candidate is None else {"rewrites": None} | compared(model(BLOCKS[block]), candidate)


def forms_of(block: str, folder: Path) -> dict[str, dict]:
    """Form → what it is worth on the block."""
    parts = folder / block.partition(",")[0]
    forms = each(list(RULED), parts, lambda form: ruled(block, [form]))
    pays = [form for form, one in forms.items() if one["rewrites"] and one["ratio"] < 1]
    forms |= each([TOGETHER], parts, lambda _: ruled(block, pays))
    return forms | each(list(BY_HAND), parts, lambda form: written(block, form))


# -- the result ------------------------------------------------------------------------------------


def bars_of(figures: dict[str, dict[str, dict]]) -> list[dict]:
    bars = []
    for block, forms in figures.items():
        made = {form: one for form, one in forms.items() if one["rewrites"] != 0}
        wrong = max(one["error"] for one in made.values())
        bars.append(bar(f"{block}: relative error of any form", wrong, "", f"≤ {ERROR}", wrong <= ERROR))
        most = made[TOGETHER]["interval"][1] if TOGETHER in made else None
        bars.append(bar(f"{block}: {TOGETHER}, upper end", most, "", "≤ 1", most is not None and most <= 1))
    return bars


def table(figures: dict[str, dict[str, dict]]) -> str:
    """A line for each form, a column for each block: latency to the exporter's form, with its interval."""
    forms = [*RULED, TOGETHER, *BY_HAND]
    rows = [[form, *(cell(figures[block][form]) for block in figures)] for form in forms]
    return markdown(["form", *figures], rows)


def cell(one: dict) -> str:
    if one["rewrites"] == 0:
        return "–"
    return f"{one['ratio']:.3f} ({one['interval'][0]:.3f} – {one['interval'][1]:.3f})"


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__, "runs/idioms", seeded=False)
    made.add_argument("--block", choices=list(BLOCKS), help="only this one")
    chosen = made.parse_args(arguments)
    figures = {block: forms_of(block, chosen.folder) for block in ([chosen.block] if chosen.block else BLOCKS)}
    return finish("idioms", chosen, figures, bars_of(figures), by_rules=False)


if __name__ == "__main__":
    sys.exit(main())
