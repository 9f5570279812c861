"""Training of the world model "edits": a few passes over the episodes, and no gradient."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from rlflow.collect.edits import pack
from rlflow.collect.episodes import Episode
from rlflow.env.encoding import EncodingSpec
from worldmodel.config import EditsConfig
from worldmodel.edits.dreaming import Index, States
from worldmodel.edits.follow import UNKNOWN, Followed, Worlds, by_world, follow, initial_runtime
from worldmodel.edits.imagination import node_prices
from worldmodel.edits.latents import STATES, Latents
from worldmodel.edits.learn import Unpacked, learn, repeated_steps, unpacked
from worldmodel.edits.model import EditsWorldModel
from worldmodel.edits.prices import Gains, Means, NodePrices, Prices
from worldmodel.edits.rewards import Rewards, Scale
from worldmodel.edits.surroundings import Surroundings, after, surroundings
from worldmodel.training import Trained, split_episodes


def train(
    config: EditsConfig, spec: EncodingSpec, source: Sequence[Episode] | Callable, folder: Path | str, seed: int, log=None, progress=None,
) -> Trained:  # fmt: skip
    """See `worldmodel.training.train`. A pass takes seconds, so there is no checkpoint: a killed training begins anew."""
    training, held_out = split_episodes(source, config.holdout, seed)
    model = fit(config, spec, training)
    model.save(folder)
    forms = model.worlds.schemas.known
    results = {
        "interactions": sum(episode.interactions for episode in source),
        "forms": len(forms),
        "facts": sum(len(known.effects) for known in forms),
        "effects": sum(bool(seen) for known in forms for seen in known.effects.values()),
    }
    if log is not None:
        log(1, {f"edits/{name}": float(value) for name, value in results.items()})
    if progress is not None:
        progress.update(1)
    return Trained(model, held_out, results)


def fit(config: EditsConfig, spec: EncodingSpec, episodes: Sequence[Episode]) -> EditsWorldModel:
    rewards = Rewards.learn(episodes, spec.n_rules)  # first, since some cannot be learnt
    edits = unpacked(episodes)
    repeated = repeated_steps(episodes, edits)
    worlds = Worlds(learn(episodes, edits, repeated), spec.n_rules)
    groups = by_world(worlds, edits)
    followed = {k: follow(index, edits[k], repeated[k]) for index, numbers in groups.items() for k in numbers}
    sizes = {tensor.fact: tensor.size for told, _ in edits for edit in told for tensor in edit.tensors if tensor.size >= 0}
    prices = _prices({index: [followed[k] for k in numbers] for index, numbers in groups.items()}, sizes, spec)
    latents = _latents(groups, followed, episodes, config.latent)
    scales = {index: rewards.of(initial_runtime(edits[n[0]][0][0])) for index, n in groups.items()}
    worth = _worth(groups, followed, scales, len(worlds.kinds.xfer_ids))
    elites = {initial_runtime(edits[n[0]][0][0]): _elite(n, edits, episodes) for n in groups.values()}
    return EditsWorldModel(spec, config, worlds.schemas, prices, latents, rewards, worth, elites)


def _elite(numbers: list[int], edits: Sequence[Unpacked], episodes: Sequence[Episode]) -> np.ndarray:
    """The edits that led to the cheapest state, packed."""
    best = min(numbers, key=lambda k: episodes[k].costs.min())
    steps, (told, taken) = int(episodes[best].costs.argmin()), edits[best]
    return pack(told[: steps + 1], taken[:steps])


def _new(followed: Followed, of_states: Sequence) -> Sequence:
    """Of what there is for each of the T + 1 states, that of those which no other episode told before."""
    return of_states[followed.repeated + 1 :] if followed.repeated else of_states


def _prices(groups: dict[Index, list[Followed]], sizes: dict[int, int], spec: EncodingSpec) -> Prices:
    told = [(index, *told) for index, followed in groups.items() for result in followed for told in _new(result, result.told)]
    nodes = NodePrices.learn(((*index.world.kind_and_facts(n), t) for index, those, times in told for n, t in zip(those.tolist(), times, strict=True)), sizes)
    alone = {index: node_prices(index, nodes) for index in groups}
    spread = np.concatenate([times - alone[index](those) for index, those, times in told]).std()
    samples = [_in_surroundings(index, followed, spec) for index, followed in groups.items()] if spread > 0 else []
    keys, runtimes = [keys for sample in samples for keys in sample[0]], [runtimes for sample in samples for runtimes in sample[1]]
    around = [Means(np.concatenate(of_width), np.concatenate(runtimes)) for of_width in zip(*keys, strict=True)]
    gains = [sample for index, followed in groups.items() for result in followed for sample in _gains(index, result, sizes)]
    return Prices(nodes, around, Gains(np.array(gains, np.float64).reshape(-1, 4)), float(spread))


def _in_surroundings(index: Index, followed: list[Followed], spec: EncodingSpec) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The keys of nodes' surroundings, by width, and their runtimes (ps): of all nodes of the first state, then of those around each change."""
    states, keys, runtimes = States(index, [result.nodes[0] for result in followed], spec.n_rules), [], []
    home, repeated = index.home, np.array([result.repeated for result in followed])

    def tell(rows: np.ndarray, t: int) -> None:
        for row in rows.tolist():
            nodes, times = followed[row].told[t]
            states.paid[row, home.values[nodes]] = times

    def sample(result: Surroundings, wanted: np.ndarray) -> None:
        these = wanted[result.rows]
        keys.append(result.keys[:, these])
        runtimes.append(states.paid[result.rows[these], home.values[result.nodes[these]]])

    rows = np.arange(len(followed))
    tell(rows, 0)
    sample(surroundings(states, np.zeros(len(followed[0].nodes[0]), np.int64), followed[0].nodes[0]), rows == 0)
    for t in range(max(len(result.places) for result in followed)):
        places = np.array([int(result.places[t]) if t < len(result.places) else UNKNOWN for result in followed])
        states.grow()
        rows = rows[[places[row] >= 0 and states.open[row, index.shown(places[row])] == 0 for row in rows]]  # others have ended, or go astray
        if not len(rows):
            break
        change = states.carry_out(rows, places[rows])
        tell(rows, t + 1)
        sample(after(change), repeated <= t)
    return keys, runtimes


def _gains(index: Index, followed: Followed, sizes: dict[int, int]) -> Iterator[tuple[int, int, int, float]]:
    """For `prices.Gains`."""
    new = slice(followed.repeated, None)
    for place, gain in zip(followed.places[new].tolist(), followed.gains[new].tolist(), strict=True):
        if place >= 0:
            result = index.world.places[place]
            size = sizes.get(index.world.facts[result.operands[-1]], 1)
            yield int(index.rule.values[place]), result.form, max(size, 1), gain


def _worth(groups: dict[Index, list[int]], followed: dict[int, Followed], scales: dict[Index, Scale], kinds: int) -> np.ndarray:
    """What each kind gained on average, as it is rewarded, float32 [K]; 0 where it was never carried out."""
    total, times = np.zeros(kinds), np.zeros(kinds)
    for index, numbers in groups.items():
        for k in numbers:
            moves = (followed[k].places >= 0) & (np.arange(len(followed[k].places)) >= followed[k].repeated)
            result = index.kind.values[followed[k].places[moves]]
            np.add.at(total, result, scales[index].per_ps * followed[k].gains[moves])
            np.add.at(times, result, 1)
    return (total / np.maximum(times, 1)).astype(np.float32)


def _latents(groups: dict[Index, list[int]], followed: dict[int, Followed], episodes: Sequence[Episode], latent: int) -> Latents:
    keys = np.unique(np.concatenate([index.what.values for index in groups]))
    states = [(index, k, t) for index, numbers in groups.items() for k in numbers for t in _new(followed[k], range(len(followed[k].nodes)))]
    chosen = [states[i] for i in np.unique(np.linspace(0, len(states) - 1, min(STATES, len(states))).astype(int))]
    columns = {index: np.searchsorted(keys, index.what.values) for index in groups}
    occurrences = np.stack([np.bincount(columns[index][followed[k].nodes[t]], minlength=len(keys)) for index, k, t in chosen]).astype(np.float64)
    targets = np.stack([np.append(episodes[k].counts[t], episodes[k].costs[t] / episodes[k].costs[0]) for _, k, t in chosen]).astype(np.float64)
    return Latents.learn(keys, occurrences, targets, latent)
