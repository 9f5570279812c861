"""Fidelity of a world model: open-loop prediction errors on held-out episodes, next to two trivial baselines.

Open loop means that the model receives the real graph at one step and the recorded actions after this step, nothing
else (`WorldModel.replay`, at temperature 0). Such consecutive steps of an episode are a *stretch*. All recorded actions
must be valid.

One baseline predicts that nothing changes. The other baseline differs only in the reward: it predicts the mean reward
of the action's rule. The errors concern reward sums, rule masks, location counts and ends of episodes, at 1 to 50 steps
ahead. Stretches without uncertain steps are also evaluated separately, which shows whether the uncertainty is
informative. The bootstrap resamples whole episodes, because stretches of one episode overlap. The concordance
complements the rank correlation. Equal real returns are frequent, and the rank correlation penalises small differences
between their predictions.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlflow.collect.episodes import Episode
from worldmodel.base import Replay, WorldModel

HORIZONS = (1, 5, 10, 20, 50)  # steps ahead
MOST_STARTS = 512  # largest number of stretches that start anywhere in an episode
PREDICTORS = ("model", "no_change", "rule_mean")
RANKED, RANK_STEPS = 200, 20  # largest number, and length in steps, of the action sequences whose returns are ranked
DRAWS, CONFIDENCE = 1000, 0.95  # number of bootstrap samples, and level of the confidence interval
DIGITS = 5  # returns are rounded to 10⁻⁵ of the largest return before ranking, because they are sums of float32

ERRORS = (
    "cumulative_reward_error", "cumulative_reward_relative", "reward_mae", "reward_r2", "mask_precision", "mask_recall",
    "mask_f1", "mask_exact", "counts_exact", "counts_of_rules", "termination_accuracy",
)  # fmt: skip


class Stretches(NamedTuple):
    """S stretches of recorded episodes.

    Attributes:
      rows: int [S], the index of the episode of each stretch.
      starts: int [S], the index of the first step of each stretch in its episode.
      left: int [S], the number of steps from this first step to the end of the episode.
    """

    rows: np.ndarray
    starts: np.ndarray
    left: np.ndarray

    def subset(self, which: np.ndarray) -> "Stretches":
        """Return the stretches with the indices `which`, int [k], or those where `which`, bool [S], is True."""
        return Stretches(*(part[which] for part in self))


def fidelity(
    model: WorldModel, episodes: Sequence[Episode], training: Sequence[Episode] | None = None,
    horizons: Sequence[int] = HORIZONS, rank_steps: int = RANK_STEPS, uncertainty_limit: float = 0.0, seed: int = 0,
    copies: bool = True,
) -> dict:
    """Evaluate the open-loop predictions of a world model on held-out episodes.

    Args:
      model: the world model.
      episodes: held-out episodes.
      training: episodes that give the mean rewards of the baseline `rule_mean`. By default they are `episodes`, which
        makes the baseline look better than it is.
      horizons: the numbers of steps ahead to evaluate.
      rank_steps: length in steps of the action sequences whose returns are ranked.
      uncertainty_limit: a step with a higher uncertainty counts as uncertain.
      seed: seed of the choice of ranked action sequences and of the bootstrap samples.
      copies: True if stretches may start in copied steps (`Episode.copied`), which training episodes may contain too.
        If False, at least one episode must have steps that are not copied.

    Returns:
      JSON values {"episodes": number, "horizons": {"5": …}, "first": {"5": …}, "ranks": {…}, "calibration": {…}}.

    "horizons" covers stretches that start anywhere in an episode (all, or MOST_STARTS at equal distances). "first"
    covers stretches that start with an episode, without episodes that begin with copied steps if `copies` is False. For
    each horizon k both contain these entries:

    - "starts": the number of stretches with at least k steps left;
    - "model", "no_change" and "rule_mean": the errors of this predictor;
    - "uncertain": the share of uncertain steps among the first k steps;
    - "certain": the model's errors in the stretches without uncertain steps, and their number as "starts".

    The errors of the sum of k rewards are the mean absolute error and its ratio to the mean absolute real sum. The
    other errors concern the k-th step alone:

    - MAE and R² of the reward;
    - precision, recall, F1 and share of exact matches of the rule mask;
    - the share of states in which all location counts are exact;
    - the share of exact counts among the rules with a real or predicted location;
    - the accuracy of the predicted end of the episode.

    A value is None if its denominator is 0.

    The predictor "no_change" predicts reward 0, no end and the location counts at the start of the stretch. The
    predictor "rule_mean" differs from "no_change" only in its reward, the mean reward of the action's rule.

    "ranks" has the results of `_ranks` under the keys "anywhere" and "first". "calibration" is the result of
    `WorldModel.calibration` for the episodes, without those with copied steps if `copies` is False; {} without any.
    """
    every = _all_stretches(episodes, copies)
    size = len(every.rows)
    anywhere = every.subset(np.unique(np.linspace(0, size - 1, min(MOST_STARTS, size)).astype(int)))
    first = every.subset(every.starts == 0)
    long = every.subset(every.left >= rank_steps)  # long enough to be ranked
    drawn = np.random.default_rng(seed).permutation(len(long.rows))[:RANKED]
    ranked = long.subset(np.sort(drawn)), first.subset(first.left >= rank_steps)
    longest = max(map(len, episodes))
    means = _rule_means(training or episodes)
    parts = _compare(model, episodes, means, (anywhere, first, *ranked), min(longest, max(*horizons, rank_steps)))
    tables = [
        {str(k): _table(part, part.stretches.left >= k, k, uncertainty_limit) for k in horizons} for part in parts[:2]
    ]
    ranks = [_ranks(part, rank_steps, seed) for part in parts[2:]]
    whole = [episode for episode in episodes if copies or not episode.copied]
    return {
        "episodes": len(episodes),
        "horizons": tables[0],
        "first": tables[1],
        "ranks": {"anywhere": ranks[0], "first": ranks[1]},
        "calibration": model.calibration(whole) if whole else {},
    }


def model_key(episode: Episode) -> str:
    """Return eight hexadecimal digits that are equal for episodes that begin at the same graph."""
    return hashlib.sha256(episode.costs[:1].tobytes() + episode.counts[:1].tobytes()).hexdigest()[:8]


def fidelity_by_model(model: WorldModel, episodes: Sequence[Episode], **options) -> dict[str, dict]:
    """Evaluate the predictions for the episodes of each initial graph alone.

    An average over all episodes hides a model on which the predictions are poor.

    Args:
      model: the world model.
      episodes: held-out episodes.
      options: further arguments of `fidelity`.

    Returns:
      {key of the initial graph (`model_key`): result of `fidelity`}; {} if all episodes begin at the same graph.
    """
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(model_key(episode), []).append(episode)
    if len(groups) < 2:
        return {}
    return {key: fidelity(model, group, **options) for key, group in groups.items()}


def improvement(model: WorldModel, episodes: Sequence[Episode]) -> dict:
    """Compare the real return of whole episodes with the return that the model predicts for their actions.

    Args:
      model: the world model; it receives the first graph of each episode and the episode's actions.
      episodes: the episodes.

    Returns:
      {"real": list of the real returns, one sum of rewards per episode, "predicted": list of the predicted returns,
      "relative_error": mean absolute difference divided by the mean absolute real return}. The relative error is None
      if all real returns are 0.
    """
    every = _all_stretches(episodes, copies=True)
    stretches = every.subset(every.starts == 0)
    longest = int(stretches.left.max())
    replays = happened(episodes, stretches, longest), model.replay(episodes, stretches.rows, stretches.starts, longest)
    within = np.arange(longest) < stretches.left[:, None]
    real, predicted = (np.where(within, replay.rewards, 0.0).sum(axis=1) for replay in replays)
    return {
        "real": real.tolist(),
        "predicted": predicted.tolist(),
        "relative_error": _ratio(np.abs(predicted - real).mean(), np.abs(real).mean()),
    }


def happened(episodes: Sequence[Episode], stretches: Stretches, horizon: int) -> Replay:
    """Return the recorded outcome of stretches as a `Replay`, so that it can be compared with predictions.

    Args:
      episodes: the recorded episodes.
      stretches: S stretches of these episodes.
      horizon: number of steps per stretch; after the end of an episode its last step is repeated.
    """

    rewards, terminated, counts = (
        _stacked(episodes, stretches, horizon, field) for field in ("rewards", "terminated", "counts")
    )
    uncertainty = np.zeros((len(stretches.rows), horizon), np.float32)
    return Replay(rewards.astype(np.float64), terminated, counts, uncertainty)


def _stacked(episodes: Sequence[Episode], stretches: Stretches, horizon: int, field: str) -> np.ndarray:
    """Return a field of `Episode` for every step of every stretch, [S, horizon, …].

    The field "counts" has the location counts after each step. After the end of an episode its last step is repeated;
    the evaluation ignores the repeated steps.

    Args:
      episodes: the recorded episodes.
      stretches: S stretches of these episodes.
      horizon: number of steps per stretch.
      field: the name of the field.
    """
    parts = []
    for row, start, _ in zip(*stretches, strict=True):
        steps = np.minimum(start + np.arange(horizon), len(episodes[row]) - 1)
        parts.append(getattr(episodes[row], field)[steps + 1 if field == "counts" else steps])
    return np.stack(parts)


# -- stretches -------------------------------------------------------------------------------------


def _all_stretches(episodes: Sequence[Episode], copies: bool) -> Stretches:
    length = np.array([len(episode) for episode in episodes])
    starts = [np.arange(0 if copies else episode.copied, len(episode)) for episode in episodes]
    rows, starts = np.repeat(np.arange(len(length)), list(map(len, starts))), np.concatenate(starts)
    return Stretches(rows, starts, length[rows] - starts)


# -- predictors ------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """The recorded outcome of some stretches, and for each name in PREDICTORS the predicted outcome."""

    stretches: Stretches
    real: Replay
    predicted: dict[str, Replay]


def _compare(
    model: WorldModel, episodes: Sequence[Episode], means: np.ndarray, groups: Sequence[Stretches], horizon: int
) -> list[Compared]:
    """Predict all groups of stretches by a single replay, and return one `Compared` per group.

    Args:
      model: the world model.
      episodes: the recorded episodes.
      means: float64 [N + 1], the mean reward of each rule and of NO-OP.
      groups: the groups of stretches.
      horizon: number of steps per stretch.
    """
    stretches = Stretches(*map(np.concatenate, zip(*groups, strict=True)))
    real = happened(episodes, stretches, horizon)
    xfer_ids = _stacked(episodes, stretches, horizon, "actions")[..., 0]
    before = np.stack([episodes[row].counts[start] for row, start, _ in zip(*stretches, strict=True)])
    replay = model.replay(episodes, stretches.rows, stretches.starts, horizon)
    nothing = Replay(
        rewards=np.zeros_like(real.rewards),
        terminated=np.zeros_like(real.terminated),
        counts=np.broadcast_to(before[:, None], real.counts.shape),
        uncertainty=real.uncertainty,
    )
    predicted = {
        "model": replay._replace(terminated=replay.terminated | (xfer_ids == model.spec.n_rules)),
        "no_change": nothing,
        "rule_mean": nothing._replace(rewards=means[xfer_ids]),
    }
    compared, first = [], 0
    for group in groups:
        part = slice(first, first + len(group.rows))
        parts = {name: _part(each, part) for name, each in predicted.items()}
        compared.append(Compared(group, _part(real, part), parts))
        first = part.stop
    return compared


def _part(replay: Replay, rows: slice) -> Replay:
    return Replay(*(field[rows] for field in replay))


def _rule_means(episodes: Sequence[Episode]) -> np.ndarray:
    """Return float64 [N + 1], the mean reward of each rule and of NO-OP; 0 for a rule that was never applied."""
    xfer_ids = np.concatenate([episode.actions[:, 0] for episode in episodes])
    rewards = np.concatenate([episode.rewards for episode in episodes])
    size = episodes[0].counts.shape[1] + 1
    return np.bincount(xfer_ids, rewards, size) / np.maximum(np.bincount(xfer_ids, minlength=size), 1)


# -- errors ----------------------------------------------------------------------------------------


def _table(part: Compared, alive: np.ndarray, horizon: int, uncertainty_limit: float) -> dict:
    """Return the entry of one horizon in the result of `fidelity`.

    Args:
      part: the compared stretches.
      alive: bool [S], True for stretches with at least `horizon` steps left.
      horizon: number of steps ahead.
      uncertainty_limit: a step with a higher uncertainty counts as uncertain.
    """
    real, predicted = part.real, part.predicted
    uncertain = predicted["model"].uncertainty[:, :horizon] > uncertainty_limit
    sure = alive & ~uncertain.any(axis=1)
    return {
        "starts": int(alive.sum()),
        **{name: _errors(real, predicted[name], alive, horizon) for name in PREDICTORS},
        "uncertain": float(uncertain[alive].mean()) if alive.any() else None,
        "certain": {"starts": int(sure.sum()), **_errors(real, predicted["model"], sure, horizon)},
    }


def _errors(real: Replay, predicted: Replay, rows: np.ndarray, horizon: int) -> dict[str, float | None]:
    """Return {name in ERRORS: value} for the stretches selected by `rows`, bool [S]; see `fidelity`."""
    if not rows.any():
        return dict.fromkeys(ERRORS)
    returns, predicted_returns = (replay.rewards[rows, :horizon].sum(axis=1) for replay in (real, predicted))
    error, size = np.abs(predicted_returns - returns).mean(), np.abs(returns).mean()
    reward, expected = (replay.rewards[rows, horizon - 1] for replay in (real, predicted))
    counts, shown = (replay.counts[rows, horizon - 1] for replay in (real, predicted))
    ended, ends = (replay.terminated[rows, horizon - 1] for replay in (real, predicted))
    hits, either = ((counts > 0) & (shown > 0)).sum(), (counts > 0) | (shown > 0)
    unexplained = _ratio(np.square(reward - expected).sum(), np.square(reward - reward.mean()).sum())
    result = (
        float(error), _ratio(error, size), float(np.abs(reward - expected).mean()),
        None if unexplained is None else 1 - unexplained,
        _ratio(hits, (shown > 0).sum()), _ratio(hits, (counts > 0).sum()),
        _ratio(2 * hits, (shown > 0).sum() + (counts > 0).sum()),
        float(((counts > 0) == (shown > 0)).all(axis=1).mean()), float((counts == shown).all(axis=1).mean()),
        _ratio((either & (counts == shown)).sum(), either.sum()), float((ends == ended).mean()),
    )  # fmt: skip
    return dict(zip(ERRORS, result, strict=True))


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


# -- ranks -----------------------------------------------------------------------------------------


def _ranks(part: Compared, steps: int, seed: int) -> dict:
    """Evaluate how well predicted returns order action sequences of `steps` steps.

    Returns:
      {"sequences": number of action sequences, "steps": `steps`, "real": their real returns, "model": …, "rule_mean":
      …}. Each of the last two is {"returns": predicted returns, "correlation": Spearman's rank correlation with the
      real returns, "interval": its 95 % bootstrap confidence interval, "concordance": share}. Correlation, interval and
      concordance are None without sequences or if all real returns are equal. Correlation and interval are also None if
      all predicted returns are equal.

    The concordance is the share of pairs with different real returns that the predicted returns order correctly. A pair
    with equal predicted returns counts half. Pairs with equal real returns are ignored.
    """
    returns = part.real.rewards[:, :steps].sum(axis=1)
    result = {"sequences": len(returns), "steps": steps, "real": returns.tolist()}
    for name in ("model", "rule_mean"):
        predicted_returns = part.predicted[name].rewards[:, :steps].sum(axis=1)
        correlation, interval = None, None
        if len(predicted_returns):
            correlation, interval = _rank_correlation(returns, predicted_returns, part.stretches.rows, seed)
        result[name] = {
            "returns": predicted_returns.tolist(),
            "correlation": correlation,
            "interval": interval,
            "concordance": _concordance(returns, predicted_returns),
        }
    return result


def _rank_correlation(
    real: np.ndarray, predicted_returns: np.ndarray, rows: np.ndarray, seed: int
) -> tuple[float | None, list[float] | None]:
    """Return Spearman's rank correlation and its confidence interval from a bootstrap over whole episodes.

    Args:
      real: float64 [S], the real returns of the stretches.
      predicted_returns: float64 [S], their predicted returns.
      rows: int [S], the index of the episode of each stretch.
      seed: seed of the bootstrap.

    Returns:
      (correlation, [lower bound, upper bound]). Both are None if all real or all predicted returns are equal.
    """
    real, predicted_returns = _with_ties(real), _with_ties(predicted_returns)
    (correlation,) = _spearman(real, predicted_returns, np.ones((1, len(real))))
    if np.isnan(correlation):
        return None, None
    episodes, of_episode = np.unique(rows, return_inverse=True)
    drawn = np.random.default_rng(seed).integers(len(episodes), size=(DRAWS, len(episodes)))
    drawn += len(episodes) * np.arange(DRAWS)[:, None]  # a number of its own for each sample and episode
    times = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
    draws = _spearman(real, predicted_returns, times[:, of_episode])
    known, tail = draws[~np.isnan(draws)], (1 - CONFIDENCE) / 2
    return float(correlation), np.quantile(known, [tail, 1 - tail]).tolist() if len(known) else None


def _concordance(real: np.ndarray, predicted_returns: np.ndarray) -> float | None:
    if not len(real):
        return None
    real, predicted_returns = _with_ties(real), _with_ties(predicted_returns)
    greater = real[:, None] > real
    ahead = np.sign(predicted_returns[:, None] - predicted_returns)[greater]
    return _ratio((ahead + 1).sum() / 2, len(ahead))


def _with_ties(returns: np.ndarray) -> np.ndarray:
    return np.round(returns / max(np.abs(returns).max(), np.finfo(float).tiny), DIGITS)


def _spearman(real: np.ndarray, predicted_returns: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return Spearman's rank correlation of each sample, where equal returns share their mean rank.

    Args:
      real: float64 [S], the real returns of the stretches.
      predicted_returns: float64 [S], their predicted returns.
      times: numbers [D, S], how many times each sample contains each stretch; all rows have a sum above 0.

    Returns:
      float64 [D]; NaN where all real or all predicted returns of a sample are equal.
    """
    times = times.astype(float)
    one, other = (_centred_ranks(returns, times) for returns in (real, predicted_returns))
    variances = (times * one**2).sum(axis=1) * (times * other**2).sum(axis=1)
    covariance = (times * one * other).sum(axis=1)
    return np.divide(covariance, np.sqrt(variances), out=np.full(len(times), np.nan), where=variances > 0)


def _centred_ranks(returns: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the rank [D, S] of each stretch in each sample, minus the mean rank; multiples of 1/2, thus exact."""
    values, value_of = np.unique(returns, return_inverse=True)
    counts = times @ (value_of[:, None] == np.arange(len(values)))
    ranks = np.cumsum(counts, axis=1) - (counts - 1) / 2
    return ranks[:, value_of] - (times.sum(axis=1, keepdims=True) + 1) / 2

