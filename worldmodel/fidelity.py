"""How far a dream can be trusted: open-loop errors on episodes that a model never saw, beside trivial baselines.

Open loop: the model is given the real graph at some step and the actions that were played from there on, and nothing
else (`WorldModel.replay`, at temperature 0). Episodes hold valid actions alone, as random play and masked controllers
give them.

The two baselines are that nothing happens, and that each rule earns its mean reward. Errors are of reward sums, rule
masks, location counts and ends at 1 to 50 steps, on random episodes and on those of the controller, whose distribution
is the one that matters. Stretches in which the model had no uncertainty are judged apart, so one sees whether it knows
what it does not know. Bootstraps draw whole episodes, since stretches of one overlap. Rank correlation counts it
against a model that equal returns are not quite equal in its eyes, and rewriting has many equal returns; so the share
of pairs of different returns in the right order stands beside it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlflow.collect.episodes import Episode
from worldmodel.base import Replay, WorldModel

HORIZONS = (1, 5, 10, 20, 50)
MOST_STARTS = 512
PREDICTORS = ("model", "no_change", "rule_mean")
RANKED, RANK_STEPS = 200, 20  # action sequences whose returns are ranked, and how long they are
DRAWS, CONFIDENCE = 1000, 0.95  # of the bootstrap
DIGITS = 5  # returns that agree to so many digits of the largest are ties: they are sums of float32

ERRORS = (
    "cumulative_reward_error", "cumulative_reward_relative", "reward_mae", "reward_r2", "mask_precision", "mask_recall",
    "mask_f1", "mask_exact", "counts_exact", "counts_of_rules", "termination_accuracy",
)  # fmt: skip


class Stretches(NamedTuple):
    """S stretches: of episode rows[s] from step starts[s] on, where left[s] steps are left; int [S] each."""

    rows: np.ndarray
    starts: np.ndarray
    left: np.ndarray


def fidelity(
    model: WorldModel, episodes: Sequence[Episode], training: Sequence[Episode] | None = None,
    horizons: Sequence[int] = HORIZONS, rank_steps: int = RANK_STEPS, uncertainty_limit: float = 0.0, seed: int = 0,
    copies: bool = True,
) -> dict:
    """How well the model predicts these episodes; JSON-able.

    Args:
      training: what the means of the baseline `rule_mean` are taken over; by default the episodes themselves, which
        flatters it.
      rank_steps: length of the action sequences whose returns are ranked.
      uncertainty_limit: a step is uncertain if the model's uncertainty of it is above this.
      seed: draws the action sequences that are ranked, and the bootstrap.
      copies: whether stretches start in copied steps (`Episode.copied`), too; of an episode that is held out these may
        be steps of one that was learnt from. If not, at least one episode has others.

    Returns: {"episodes": how many, "horizons": {"5": …}, "first": {"5": …}, "ranks": {…}, "calibration": {…}}.

    "horizons" is of stretches that start anywhere (all of them, or MOST_STARTS spread evenly), "first" of those from
    the start of an episode. For horizon k: "starts", the stretches with k steps left; for each of PREDICTORS its
    errors; "uncertain", the share of their steps that are; "certain": the model's errors in the stretches where no step
    was uncertain, and how many those are.

    Errors: of the reward summed over the k steps, absolute (the reward's unit), and that in units of the mean
    absolute real sum; and of the k-th step alone the reward's MAE and R², the rule mask's precision, recall, F1 and
    exact matches, the exact matches of the vector of location counts, the share of exact counts among the rules that
    have a location in reality or are said to have one, and the accuracy of the predicted end (in a dream NO-OP ends as
    in reality). None: nothing to divide by.

    "no_change" expects no reward, no end and the counts of the start; "rule_mean" expects each rule's mean
    reward, and is "no_change" in everything else.

    "ranks": see `_ranks`. "calibration": what `WorldModel.calibration` says, of all steps.
    """
    every = _all(episodes, copies)
    anywhere, first = _spread(every), _first(every)
    ranked = _drawn(_long(every, rank_steps), seed), _long(first, rank_steps)
    longest = max(map(len, episodes))
    means = _rule_means(training or episodes)
    parts = _compare(model, episodes, means, (anywhere, first, *ranked), min(longest, max(*horizons, rank_steps)))
    tables = [
        {str(k): _table(part, part.stretches.left >= k, k, uncertainty_limit) for k in horizons} for part in parts[:2]
    ]
    ranks = [_ranks(part, rank_steps, seed) for part in parts[2:]]
    return {
        "episodes": len(episodes),
        "horizons": tables[0],
        "first": tables[1],
        "ranks": {"anywhere": ranks[0], "first": ranks[1]},
        "calibration": model.calibration(episodes),
    }


def improvement(model: WorldModel, episodes: Sequence[Episode]) -> dict:
    """What whole episodes gained, beside what the model predicts of their actions from the first graph on; JSON-able.

    Returns: {"real", "predicted": sums of rewards, one an episode (`relative`: percent of the first cost),
    "relative_error": the mean absolute difference, in units of the mean absolute real sum, None if nothing was gained
    or lost}.
    """
    stretches = _first(_all(episodes, copies=True))
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
    """Reality in the form of a prediction."""

    rewards, terminated, counts = (
        _stacked(episodes, stretches, horizon, field) for field in ("rewards", "terminated", "counts")
    )
    uncertainty = np.zeros((len(stretches.rows), horizon), np.float32)
    return Replay(rewards.astype(np.float64), terminated, counts, uncertainty)


def _stacked(episodes: Sequence[Episode], stretches: Stretches, horizon: int, field: str) -> np.ndarray:
    """[S, horizon, …], of each stretch what `_steps` gives."""
    parts = []
    for row, start, _ in zip(*stretches, strict=True):
        parts.append(_steps(episodes[row], start, horizon, field))
    return np.stack(parts)


def _steps(episode: Episode, start: int, horizon: int, field: str) -> np.ndarray:
    """The field in the steps from `start` on, [horizon, …]. Past the end the last step is repeated, and never counted.

    Of counts, those after each step.
    """
    steps = np.minimum(start + np.arange(horizon), len(episode) - 1)
    return getattr(episode, field)[steps + 1 if field == "counts" else steps]


# -- stretches -------------------------------------------------------------------------------------


def _all(episodes: Sequence[Episode], copies: bool) -> Stretches:
    length = np.array([len(episode) for episode in episodes])
    starts = [np.arange(0 if copies else episode.copied, len(episode)) for episode in episodes]
    rows, starts = np.repeat(np.arange(len(length)), list(map(len, starts))), np.concatenate(starts)
    return Stretches(rows, starts, length[rows] - starts)


def _spread(every: Stretches) -> Stretches:
    size = len(every.rows)
    return _chosen(every, np.unique(np.linspace(0, size - 1, min(MOST_STARTS, size)).astype(int)))


def _first(every: Stretches) -> Stretches:
    return _chosen(every, np.flatnonzero(every.starts == 0))


def _long(stretches: Stretches, steps: int) -> Stretches:
    """Those with so many steps left."""
    return _chosen(stretches, np.flatnonzero(stretches.left >= steps))


def _drawn(stretches: Stretches, seed: int) -> Stretches:
    """At most RANKED of them."""
    order = np.random.default_rng(seed).permutation(len(stretches.rows))
    return _chosen(stretches, np.sort(order[:RANKED]))


def _chosen(stretches: Stretches, which: np.ndarray) -> Stretches:
    return Stretches(*(part[which] for part in stretches))


# -- predictors ------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """What happened in the stretches, and what each of PREDICTORS predicts."""

    stretches: Stretches
    real: Replay
    predicted: dict[str, Replay]


def _compare(
    model: WorldModel, episodes: Sequence[Episode], means: np.ndarray, groups: Sequence[Stretches], horizon: int
) -> list[Compared]:
    """One replay for all groups of stretches; an entry for each."""
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
    """The mean reward of each rule, NO-OP included, [N + 1]; 0 of one that was never played."""
    xfer_ids = np.concatenate([episode.actions[:, 0] for episode in episodes])
    rewards = np.concatenate([episode.rewards for episode in episodes])
    size = episodes[0].counts.shape[1] + 1
    return np.bincount(xfer_ids, rewards, size) / np.maximum(np.bincount(xfer_ids, minlength=size), 1)


# -- errors ----------------------------------------------------------------------------------------


def _table(part: Compared, alive: np.ndarray, horizon: int, uncertainty_limit: float) -> dict:
    """All figures of one horizon; alive: bool [S], the stretches that are so long."""
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
    """ERRORS over the stretches in rows, bool [S]."""
    if not rows.any():
        return dict.fromkeys(ERRORS)
    returns, said = (replay.rewards[rows, :horizon].sum(axis=1) for replay in (real, predicted))
    error, size = np.abs(said - returns).mean(), np.abs(returns).mean()
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
    """How well predicted returns order action sequences of so many steps.

    Returns: {"sequences": how many, "steps", "real": their returns, "model", "rule_mean": {"returns", "correlation":
    Spearman's, "interval": its 95 % interval, "concordance"}}. The bootstrap draws whole episodes, since their
    stretches overlap. None: there is nothing to order, or all is equal.

    Concordance is the share of the pairs of different real returns that are ordered as in reality (a tie counts half).
    Spearman's correlation also counts it against a model that equal returns are not quite equal in its eyes, however
    little they differ; and rewriting has many equal returns.
    """
    returns = part.real.rewards[:, :steps].sum(axis=1)
    result = {"sequences": len(returns), "steps": steps, "real": returns.tolist()}
    for name in ("model", "rule_mean"):
        said = part.predicted[name].rewards[:, :steps].sum(axis=1)
        correlation, interval = None, None
        if len(said):
            correlation, interval = _rank_correlation(returns, said, part.stretches.rows, seed)
        result[name] = {
            "returns": said.tolist(),
            "correlation": correlation,
            "interval": interval,
            "concordance": _concordance(returns, said),
        }
    return result


def _rank_correlation(
    real: np.ndarray, said: np.ndarray, rows: np.ndarray, seed: int
) -> tuple[float | None, list[float] | None]:
    """Spearman's correlation with ties, and its interval by a bootstrap over the episodes, rows int [S]."""
    real, said = _with_ties(real), _with_ties(said)
    correlation = _spearman(real, said)
    if correlation is None:
        return None, None
    random, members = np.random.default_rng(seed), [np.flatnonzero(rows == row) for row in np.unique(rows)]
    draws = []
    for _ in range(DRAWS):
        drawn = np.concatenate([members[i] for i in random.integers(len(members), size=len(members))])
        draws.append(_spearman(real[drawn], said[drawn]))
    known = [draw for draw in draws if draw is not None]
    tail = (1 - CONFIDENCE) / 2
    return correlation, np.quantile(known, [tail, 1 - tail]).tolist() if known else None


def _concordance(real: np.ndarray, said: np.ndarray) -> float | None:
    if not len(real):
        return None
    real, said = _with_ties(real), _with_ties(said)
    greater = real[:, None] > real
    ahead = np.sign(said[:, None] - said)[greater]
    return _ratio((ahead + 1).sum() / 2, len(ahead))


def _with_ties(returns: np.ndarray) -> np.ndarray:
    return np.round(returns / max(np.abs(returns).max(), np.finfo(float).tiny), DIGITS)


def _spearman(real: np.ndarray, said: np.ndarray) -> float | None:
    ranks = _ranked(real), _ranked(said)
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _ranked(values: np.ndarray) -> np.ndarray:
    """The rank of each value; equal ones share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]
