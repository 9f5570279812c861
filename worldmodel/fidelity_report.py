"""Report of the results of `worldmodel.fidelity.fidelity`: a Markdown page with tables, and a plot."""

from pathlib import Path

from rlflow.common.files import write_text
from rlflow.common.messages import markdown_table
from rlflow.reports import charts

COLUMNS = {
    "cumulative_reward_error": "summed reward error",
    "cumulative_reward_relative": "relative",
    "reward_mae": "reward MAE",
    "reward_r2": "reward R²",
    "mask_precision": "precision",
    "mask_recall": "recall",
    "mask_f1": "F1",
    "mask_exact": "masks exact",
    "counts_exact": "counts exact",
    "counts_of_rules": "of rules",
    "termination_accuracy": "end accuracy",
}
PREDICTORS = {"model": "model", "certain": "model where certain", "no_change": "no change", "rule_mean": "rule mean"}
STARTS = {"horizons": "any", "first": "first"}
PAGE_NAME = "world-model.md"
FAR = 10  # horizon of the summary sentence, in steps ahead


def fidelity_table(result: dict) -> str:
    """Return a result of `fidelity` as a Markdown table of errors.

    The table has a row for each kind of stretch (any or first), each horizon and each predictor.
    """
    rows = []
    for key, start in STARTS.items():
        for horizon, entry in result[key].items():
            for predictor, name in PREDICTORS.items():
                if not entry["starts"] or (predictor == "certain" and not entry["uncertain"]):
                    continue  # no stretch has this length, or no step is uncertain and the row would repeat the model's
                errors = entry[predictor]
                cells = [shown(errors[column]) for column in COLUMNS]
                rows.append([start, horizon, name, *cells, str(errors.get("starts", entry["starts"]))])
    return markdown_table(["start", "steps", "predictor", *COLUMNS.values(), "stretches"], rows) + "\n"


def sentence(result: dict) -> str:
    """Return a sentence with the relative error of the reward sum of the model and of the baseline `rule_mean`.

    The sentence uses the longest evaluated horizon of at most FAR steps. It also has the model's share of exact masks.
    """
    entry = _furthest(result)
    errors = {name: entry[name]["cumulative_reward_relative"] for name in ("model", "rule_mean")}
    off = {name: "–" if error is None else f"{100 * error:.1f} %" for name, error in errors.items()}
    exact = f"{100 * entry['model']['mask_exact']:.1f} % of the rule masks are exact"
    return (
        f"on held-out episodes ({result['episodes']}) the reward of {entry['steps']} steps is {off['model']} off "
        f"(of each rule's mean: {off['rule_mean']}), {exact}"
    )


def training_page(result: dict, by_model: dict[str, dict]) -> str:
    """Return the table of `fidelity_table`, and one such table for each model if there are several.

    Args:
      result: the result of `worldmodel.fidelity.fidelity` on all held-out episodes.
      by_model: {model: result of `fidelity` on its held-out episodes}.
    """
    parts = [fidelity_table(result)]
    parts += [f"## {name}: {of['episodes']} episodes\n\n{fidelity_table(of)}" for name, of in by_model.items()]
    return "\n".join(parts)


def worst_model(by_model: dict[str, dict]) -> tuple[str, dict]:
    """Return the entry (model, result of `fidelity`) with the smallest share of exact masks, `FAR` steps ahead or less.

    Args:
      by_model: see `training_page`; at least one entry.
    """
    return min(by_model.items(), key=lambda entry: _furthest(entry[1])["model"]["mask_exact"])


def _furthest(result: dict) -> dict:
    """Return the entry of the longest evaluated horizon of at most FAR steps."""
    steps = max(int(steps) for steps, entry in result["horizons"].items() if entry["starts"] and int(steps) <= FAR)
    return {"steps": steps, **result["horizons"][str(steps)]}


def write_fidelity(folder: Path, outcome: dict[str, dict]) -> Path:
    """Write the page world-model.md and its plot world-model.png, and return the path of the page.

    Args:
      folder: the folder of both files.
      outcome: {name of a set of episodes: result of `fidelity`}. A result may also have the key "improvement", with a
        result of `worldmodel.fidelity.improvement`.
    """
    path = folder / PAGE_NAME
    plot(outcome, folder / "world-model.png")
    sections = [
        "# Dream and reality",
        "Open loop: the real graph at the start of a stretch and the actions that were played, nothing else. *any*: "
        "stretches that start anywhere; *first*: at the start of an episode. *no change* and *rule mean* are the "
        "baselines: nothing happens; each rule gives its mean reward.",
        "![errors over the horizon, and dreamt against real return](world-model.png)",
    ]
    for name, result in outcome.items():
        sections.append(f"## {name}: {result['episodes']} episodes\n\n{_sentences(result)}\n\n{fidelity_table(result)}")
    write_text(path, "\n\n".join(sections))
    return path


@charts.styled()
def plot(outcome: dict[str, dict], path: Path) -> None:
    """Plot the errors of the model and the baselines over the horizon, and predicted against real returns.

    Args:
      outcome: see `write_fidelity`; each set of episodes has its own colour.
      path: the image file.
    """
    figure = charts.new_figure(13, 4)
    rewards, masks, returns = figure.subplots(1, 3)
    for k, (name, result) in enumerate(outcome.items()):
        colour, horizons = f"C{k}", result["horizons"]
        for predictor, style in (("model", "-"), ("rule_mean", "--"), ("no_change", ":")):
            curve, label = _curve(horizons, predictor, "cumulative_reward_relative"), f"{name}: {PREDICTORS[predictor]}"
            rewards.plot(*curve, style, color=colour, marker=".", label=label)
        for column, style in (("mask_f1", "-"), ("mask_exact", "--"), ("counts_exact", ":")):
            curve, label = _curve(horizons, "model", column), f"{name}: {COLUMNS[column]}"
            masks.plot(*curve, style, color=colour, marker=".", label=label)
        ranks = result["ranks"]["anywhere"]
        returns.scatter(ranks["real"], ranks["model"]["returns"], s=8, color=colour, label=name)
    rewards.set(xlabel="steps", ylabel="summed reward error / mean |sum|", ylim=(0, None))
    masks.set(xlabel="steps", ylabel="share", ylim=(0, 1.02))
    returns.axline((0, 0), slope=1, color="grey", linewidth=0.8)
    returns.set(xlabel="real return", ylabel="dreamt return")
    for axes in (rewards, masks, returns):
        axes.legend(fontsize="x-small")
    charts.save(figure, path)


def shown(value: float | None) -> str:
    """Return a value as text with three significant digits, and None as a dash."""
    return "–" if value is None else f"{value:.3g}"


def _curve(horizons: dict, predictor: str, column: str) -> tuple[list[int], list[float]]:
    """Return the points of a curve of one error over the horizon, as (horizons in steps, values).

    Args:
      horizons: {horizon: entry} of a result of `fidelity`.
      predictor: the predictor in the entry.
      column: the name of the error; horizons at which the error is None are left out.
    """
    steps, values = [], []
    for horizon, entry in horizons.items():
        if entry[predictor][column] is not None:
            steps.append(int(horizon))
            values.append(entry[predictor][column])
    return steps, values


def _sentences(result: dict) -> str:
    lines = []
    for start, words in (("anywhere", "stretches that start anywhere"), ("first", "first stretches of episodes")):
        ranks = result["ranks"][start]
        if ranks["sequences"]:
            both = "; ".join(f"{PREDICTORS[name]} {_interval(ranks[name])}" for name in ("model", "rule_mean"))
            ranked = f"{ranks['sequences']} returns of {ranks['steps']} steps"
            lines.append(f"Rank correlation of {ranked}, {words}: {both}.")
    if result["calibration"]:
        shares = ", ".join(f"{name} {value:.3g}" for name, value in result["calibration"].items())
        lines.append(f"Calibration: {shares}.")
    if gained := result.get("improvement"):
        both = zip(gained["predicted"], gained["real"], strict=True)
        pairs = ", ".join(f"{predicted:.3f} of {real:.3f}" for predicted, real in both)
        error = shown(gained["relative_error"])
        lines.append(f"Predicted of real return, whole episodes: {pairs}; relative error {error}.")
    return "\n\n".join(lines)


def _interval(entry: dict) -> str:
    between = f" ({entry['interval'][0]:.3f} to {entry['interval'][1]:.3f})" if entry["interval"] else ""
    ordered = f"{shown(entry['concordance'])} of the pairs of different returns in order"
    return f"{shown(entry['correlation'])}{between}, {ordered}"
