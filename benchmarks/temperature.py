"""The paper's Table 3: a controller that learns in dreams of ten temperatures, and what it gains on the real graph.

Runs the sweep of configs/sweeps/temperature.yaml, or with --small that of temperature_small.yaml; a sweep goes on where
it was cut off. Returns are percent of the original's estimated runtime; the gap is that between the dreamt and the real
one, relative to the dreamt.
"""

import sys

from benchmarks.harness import bar, finish, markdown, parser
from rlflow.cli.main import main as command_line
from rlflow.common.files import read_json

JUDGES = (
    "controllers/ppo.py", "worldmodel/dream.py", "worldmodel/edits", "worldmodel/mdn_rnn",
    "configs/sweeps/temperature.yaml", "configs/sweeps/temperature_small.yaml",
)  # fmt: skip
TEMPERATURE = "dream.temperatures"
SHOWN = {  # figures of the sweep, and how they are printed
    "dreamt": "{:.2f}", "real": "{:.2f}", "improvement": "{:.2f}", "interactions": "{:.0f}",
    "training_seconds": "{:.1f}", "acting_seconds": "{:.2f}",
}  # fmt: skip
GAP = 5.0  # percent


def table(figures: dict) -> str:
    """Mean ± standard deviation over the seeds; the temperature whose real return is highest in bold."""
    best, rows = best_of(figures["summary"]), []
    for entry in figures["summary"]:
        cells = [f"{entry['parameters'][TEMPERATURE]:g}", entry["runs"]]
        for figure, form in SHOWN.items():
            cells.append(f"{form.format(entry[figure]['mean'])} ± {form.format(entry[figure]['sd'])}")
        cells.append(f"{entry['gap_percent']:.1f}")
        rows.append([f"**{cell}**" for cell in cells] if entry is best else cells)
    return markdown([TEMPERATURE, "runs", *SHOWN, "dream above reality, %"], rows)


def main() -> int:
    arguments = parser(__doc__, "runs/temperature", seeded=False)
    arguments.add_argument("--small", action="store_true", help="three temperatures on a tiny model, in minutes")
    parsed = arguments.parse_args()
    sweep = "temperature_small" if parsed.small else "temperature"
    folder = parsed.folder / sweep
    status = command_line(["sweep", f"configs/sweeps/{sweep}.yaml", "--run", str(folder)])
    if status:
        return status
    trials = read_json(folder / "trials.json")
    figures = {"rows": trials["rows"], "summary": trials["summary"]}
    return finish("temperature", parsed, figures, bars_of(figures["summary"]))


def bars_of(summary: list[dict]) -> list[dict]:
    gap = best_of(summary)["gap_percent"]
    return [bar("dreamt above real return, at the best temperature", gap, "%", f"≤ {GAP:g}", gap <= GAP)]


def best_of(summary: list[dict]) -> dict:
    return max(summary, key=lambda entry: entry["real"]["mean"])


if __name__ == "__main__":
    sys.exit(main())
