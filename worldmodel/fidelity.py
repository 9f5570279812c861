"""How far a dream can be trusted: open-loop errors on held-out episodes, beside trivial baselines.

Open loop: the real graph is encoded at some step, the recurrent state is warmed up on the real steps before it, and
from there on the model is fed the recorded actions and its own most likely predictions (temperature 0).
"""

from collections.abc import Sequence

import numpy as np

from rlflow.episodes import Episode
from worldmodel.batching import Steps, pack_episodes
from worldmodel.world_model import State, WorldModel

HORIZONS = (1, 5, 10, 20)
MAX_STARTS = 512

COLUMNS = {
    "cumulative_reward_error": "|Σ reward error|", "reward_mae": "reward MAE", "reward_r2": "reward R²",
    "mask_exact": "mask exact", "mask_precision": "precision", "mask_recall": "recall", "mask_f1": "F1",
    "counts_exact": "counts exact", "termination_accuracy": "end accuracy",
}


def fidelity(model: WorldModel, episodes: Sequence[Episode], horizons: Sequence[int] = HORIZONS) -> dict:
    """The error table, JSON-able.

    Returns {"episodes": n, "horizons": {"5": {"starts": n, "model": {…}, "no_change": {…}, "rule_mean": {…}}, …}}.

    For horizon k, over all starts with k steps left: the absolute error of the reward summed over the k steps (the
    reward's unit), and, of the k-th step, the reward's MAE and R², the xfer mask's exact matches, precision, recall
    and F1, the exact matches of all location counts, and the accuracy of the predicted end.

    Baselines: "no_change" expects no reward, no end and the masks and counts of the start; "rule_mean" expects each
    rule's mean reward over these very episodes (which flatters it), and is "no_change" in everything else.
    """
    z = model.encode([graph for episode in episodes for graph in episode.graphs])
    steps = pack_episodes(episodes, z)
    rows, starts = _choose_starts(steps.length)
    real, dreamt = _roll(model, steps, rows, starts, max(horizons))
    counts = np.broadcast_to(steps.counts[rows, starts][:, None], real["counts"].shape)
    nothing = {
        "rewards": np.zeros_like(real["rewards"]), "ends": np.zeros_like(real["ends"]),
        "counts": counts, "masks": counts > 0,
    }
    of_rule = nothing | {"rewards": _rule_means(steps)[real["xfers"]]}
    predictors = {"model": dreamt, "no_change": nothing, "rule_mean": of_rule}
    table = {}
    for horizon in horizons:
        alive = starts + horizon <= steps.length[rows]
        table[str(horizon)] = {"starts": int(alive.sum())} | {
            name: _errors(real, predicted, alive, horizon) for name, predicted in predictors.items()
        }
    return {"episodes": len(episodes), "horizons": table}


def markdown_table(result: dict) -> str:
    """The result of `fidelity`, a row per horizon and predictor."""
    lines = [
        "| steps | predictor | " + " | ".join(COLUMNS.values()) + " | starts |",
        "| --- " * (len(COLUMNS) + 3) + "|",
    ]
    for horizon, entry in result["horizons"].items():
        for predictor in ("model", "no_change", "rule_mean"):
            cells = ["–" if entry[predictor][key] is None else f"{entry[predictor][key]:.3g}" for key in COLUMNS]
            lines.append(f"| {horizon} | {predictor.replace('_', ' ')} | {' | '.join(cells)} | {entry['starts']} |")
    return "\n".join(lines) + "\n"


def _choose_starts(length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(episode, step) pairs, all of them or MAX_STARTS spread evenly."""
    rows = np.repeat(np.arange(len(length)), length)
    starts = np.concatenate([np.arange(n) for n in length])
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(MAX_STARTS, len(rows))).astype(int))
    return rows[chosen], starts[chosen]


def _roll(model: WorldModel, steps: Steps, rows: np.ndarray, starts: np.ndarray, horizon: int) -> tuple[dict, dict]:
    """What happened and what was dreamt in the `horizon` steps from each start: arrays [starts, horizon, …]."""
    state, states = model.initial_state(len(steps.length)), []
    for t in range(steps.rewards.shape[1]):
        states.append(state)
        state = model.step(steps.z[:, t], steps.counts[:, t], steps.actions[:, t], state).state
    state = State(*(np.stack(parts)[starts, rows] for parts in zip(*states, strict=True)))

    z, counts = steps.z[rows, starts], steps.counts[rows, starts]
    real = {"rewards": [], "ends": [], "counts": [], "masks": [], "xfers": []}
    dreamt = {"rewards": [], "ends": [], "counts": [], "masks": []}
    for k in range(horizon):
        t = np.minimum(starts + k, steps.rewards.shape[1] - 1)  # past the end: repeated, and never counted
        actions, counts_after = steps.actions[rows, t], steps.counts[rows, t + 1]
        step = model.step(z, counts, actions, state)
        z, counts, state = step.z, step.counts, step.state
        ends = (step.terminated > 0.5) | (actions[:, 0] == model.spec.n_xfers)
        ended = steps.terminated[rows, t] > 0.5
        happened = steps.rewards[rows, t], ended, counts_after, counts_after > 0, actions[:, 0]
        told = step.reward, ends, step.shown_counts, step.shown_counts > 0
        for lists, values in ((real, happened), (dreamt, told)):
            for name, value in zip(lists, values, strict=True):
                lists[name].append(value)
    return tuple({name: np.stack(values, axis=1) for name, values in rolled.items()} for rolled in (real, dreamt))


def _rule_means(steps: Steps) -> np.ndarray:
    """The mean reward of each xfer, NO-OP included, [N + 1]."""
    within = np.arange(steps.rewards.shape[1]) < steps.length[:, None]
    xfers, size = steps.actions[..., 0][within], steps.counts.shape[-1] + 1
    return np.bincount(xfers, steps.rewards[within], size) / np.maximum(np.bincount(xfers, minlength=size), 1)


def _errors(real: dict, predicted: dict, alive: np.ndarray, horizon: int) -> dict[str, float | None]:
    if not alive.any():
        return dict.fromkeys(COLUMNS)
    total = np.abs((predicted["rewards"] - real["rewards"])[alive, :horizon].sum(axis=1)).mean()
    reward, expected, masks, shown, counts, told, ends, ended = (
        source[name][alive, horizon - 1]
        for name in ("rewards", "masks", "counts", "ends") for source in (real, predicted)
    )
    hits = (masks & shown).sum()
    precision, recall = _ratio(hits, shown.sum()), _ratio(hits, masks.sum())
    unexplained = _ratio(np.square(reward - expected).sum(), np.square(reward - reward.mean()).sum())
    return {
        "cumulative_reward_error": float(total),
        "reward_mae": float(np.abs(reward - expected).mean()),
        "reward_r2": None if unexplained is None else 1 - unexplained,
        "mask_exact": float((masks == shown).all(axis=-1).mean()),
        "mask_precision": precision,
        "mask_recall": recall,
        "mask_f1": _ratio(2 * hits, shown.sum() + masks.sum()),
        "counts_exact": float((counts == told).all(axis=-1).mean()),
        "termination_accuracy": float((ends == ended).mean()),
    }


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None
