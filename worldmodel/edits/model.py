"""The world model "edits": it predicts what disappears and what appears, since rewriting is deterministic and local."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from rlflow.collect.edits import FORMAT, unpack
from rlflow.collect.episodes import Episode
from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_arrays, read_json, write_arrays, write_json
from rlflow.env.encoding import EncodingSpec
from rlflow.env.state import RewriteState
from worldmodel.base import Replay
from worldmodel.config import EditsConfig
from worldmodel.description import read_description, write_description
from worldmodel.edits.dreaming import REACH
from worldmodel.edits.follow import NO_OP, Followed, Worlds, by_world, follow, initial_runtime
from worldmodel.edits.imagination import UNKNOWN_EFFECT, Dreaming, EditsImagination, EditsObserver
from worldmodel.edits.latents import Latents
from worldmodel.edits.learn import Unpacked, unpacked
from worldmodel.edits.prices import NodePrices, Prices
from worldmodel.edits.rewards import Rewards
from worldmodel.edits.schemas import Schemas
from worldmodel.edits.searching import Dream, DreamtState
from worldmodel.edits.tables import table
from worldmodel.spaces import Z_BOUND

MIDDLE = {"coverage_50": 0.6745, "coverage_90": 1.6449}  # half-widths of a Gaussian's regions, in standard deviations
FILES = 4  # the format of what is saved
EXACT = 1e-6  # of the mean absolute reward; what a prediction without spread may be off


class EditsWorldModel:
    """Attributes: spec, config, latent, hidden, match_classes, mean_rewards; worlds (the schemas, and the graphs met so far), prices, latents, rewards.

    elites: initial runtime (ps) of the graphs that it learnt from → the edits that led to the cheapest state that it was shown,
    packed (see rlflow.collect.edits).
    """

    hidden = 0  # all that there is to know is in the state

    def __init__(
        self, spec: EncodingSpec, config: EditsConfig, schemas: Schemas, prices: Prices, latents: Latents, rewards: Rewards,
        worth: np.ndarray, elites: dict[int, np.ndarray],
    ):  # fmt: skip
        self.spec, self.config, self.latent = spec, config, config.latent
        self.worlds, self.prices, self.latents, self.rewards = Worlds(schemas, spec.n_rules), prices, latents, rewards
        self.match_classes, self.mean_rewards, self.elites = self.worlds.kinds.xfer_ids, worth, elites

    def observer(self) -> EditsObserver:
        return EditsObserver(self)

    def imagine(self, start: RewriteState, n: int) -> EditsImagination:
        return EditsImagination(self, start, n)

    def searchable(self, start: RewriteState, uncertainty_limit: float) -> DreamtState:
        """The start of a dream that `rlflow.search` can search; steps of more doubt are never taken."""
        return Dream(self, start, uncertainty_limit).start

    def replay(self, episodes: Sequence[Episode], rows: np.ndarray, starts: np.ndarray, horizon: int) -> Replay:
        """See `worldmodel.base`. An action that is not there in the dream changes nothing, and is in doubt."""
        size = len(rows), horizon
        result = Replay(np.zeros(size), np.zeros(size, bool), np.zeros((*size, self.spec.n_rules), np.int32), np.zeros(size, np.float32))
        self._replay(unpacked(episodes), np.asarray(rows), np.asarray(starts), result)
        return result

    def calibration(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """The share of rewards in the middle 50 % and 90 % of their predicted spread, each step told the truth."""
        lengths = [len(episode) for episode in episodes]
        rows, starts = np.repeat(np.arange(len(episodes)), lengths), np.concatenate([np.arange(n) for n in lengths])
        size = len(rows), 1
        result = Replay(np.zeros(size), np.zeros(size, bool), np.zeros((*size, self.spec.n_rules), np.int32), np.zeros(size, np.float32))
        spread = self._replay(unpacked(episodes), rows, starts, result)[:, 0]
        rewards = np.concatenate([episode.rewards for episode in episodes])
        error, slack = np.abs(result.rewards[:, 0] - rewards), EXACT * np.abs(rewards).mean()
        return {name: float((error <= width * spread + slack).mean()) for name, width in MIDDLE.items()}

    def _replay(self, edits: Sequence[Unpacked], rows: np.ndarray, starts: np.ndarray, result: Replay) -> np.ndarray:
        """Fills in `found`; gives the spread of the rewards, [S, horizon]."""
        spread = np.zeros_like(result.rewards)
        for index, numbers in by_world(self.worlds, edits).items():
            followed = {k: follow(index, edits[k]) for k in numbers if k in rows}
            stretches = np.flatnonzero(np.isin(rows, numbers))
            if not len(stretches):
                continue
            scale = self.rewards.of(initial_runtime(edits[numbers[0]][0][0]))
            before = np.array([followed[rows[s]].gains[: starts[s]].sum() for s in stretches])
            dreaming = Dreaming(self, index, [followed[rows[s]].nodes[starts[s]] for s in stretches])
            for t in range(result.rewards.shape[1]):
                actions = [_action(followed[rows[s]], starts[s] + t) for s in stretches]
                gain, deviation, moves = self._replay_step(dreaming, stretches, np.array(actions), result, t)
                result.rewards[stretches, t] = np.where(moves, scale.reward(gain, before), 0.0)
                spread[stretches, t] = abs(scale.per_ps) * deviation
                before += gain
        return spread

    def _replay_step(self, dreaming: Dreaming, stretches: np.ndarray, actions: np.ndarray, result: Replay, t: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ps gained, their spread, whether it is no NO-OP), [k] each. actions: int64 [k, 2], xfer_id and place."""
        states = dreaming.states
        states.grow()
        places = np.array([dreaming.index.shown(place) if place >= 0 else place for place in actions[:, 1].tolist()])
        there, moves = places >= 0, places != NO_OP
        gain, spread = np.zeros(len(places)), np.zeros(len(places))
        gain[moves], spread[moves] = dreaming.expected(actions[moves, 0])
        there[there] = states.open[np.flatnonzero(there), places[there]] == 0
        at = np.flatnonzero(there)
        result.uncertainty[stretches[~there & moves], t] = UNKNOWN_EFFECT
        result.terminated[stretches, t] = places == NO_OP
        if len(at):
            gain[at], spread[at], result.uncertainty[stretches[at], t], _ = dreaming.step(at, places[at])
        result.counts[stretches, t] = np.minimum(states.counts, self.spec.max_locations)
        return gain, spread, moves

    # -- what dreams ask ---------------------------------------------------------------------------

    def bounded(self, sums: np.ndarray) -> np.ndarray:
        """z of what nodes add up to."""
        return np.clip(sums, -Z_BOUND, Z_BOUND).astype(np.float32)

    # -- files -------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Writes model.json, learnt.json and tables.npz. The same model gives the same bytes."""
        write_description(folder, self.config, self.spec)
        learnt = {"format": FORMAT, "schemas": self.worlds.schemas.to_json(), "prices": self.prices.nodes.to_json(), "files": FILES}
        write_json(Path(folder) / "learnt.json", learnt)
        rewards = {"scales": np.array(sorted(self.rewards.scales.items()), np.float64), "level": np.int64(self.rewards.level)}
        own = rewards | {"worth": self.mean_rewards} | {f"elite/{runtime}": edits for runtime, edits in sorted(self.elites.items())}
        write_arrays(Path(folder) / "tables.npz", self.prices.arrays() | self.latents.arrays() | own)

    @classmethod
    def load(cls, folder: Path | str, spec: EncodingSpec | None = None) -> Self:
        config, saved = read_description(folder, spec)
        path = Path(folder)
        try:
            arrays, learnt = read_arrays(path / "tables.npz"), read_json(path / "learnt.json")
            if learnt["format"] != FORMAT:
                raise ValueError(f"it learnt from edits of format {learnt['format']}, not {FORMAT}; train it anew")
            if learnt.get("files") != FILES:
                raise ValueError(f"its files are of format {learnt.get('files', 1)}, not {FILES}; train it anew")
            schemas, nodes = Schemas.from_json(learnt["schemas"]), NodePrices.from_json(learnt["prices"])
            scales = {int(runtime): float(scale) for runtime, scale in table(arrays, "scales", np.float64, None, 2)}
            latents, rules = Latents.of(arrays), [known.form.xfer_id for known in schemas.known]
            if latents.offset.shape != (config.latent,) or not len(latents.keys) or not set(rules) <= set(range(saved.n_rules)):
                raise ValueError("it is of other options or of another encoding")
            if min(scales) <= 0 or not np.isfinite(list(scales.values())).all():
                raise ValueError("'scales' are no rewards")
            rewards = Rewards(scales, bool(table(arrays, "level", np.int64)))
            elites = {runtime: table(arrays, f"elite/{runtime}", np.int64, None) for runtime in scales}
            for edits in elites.values():
                unpack(edits)  # raises if they are damaged
            model = cls(saved, config, schemas, Prices.of(nodes, arrays, REACH), latents, rewards, arrays["worth"], elites)
            if not np.isfinite(table(arrays, "worth", np.float32, len(model.match_classes))).all():
                raise ValueError("'worth' is no reward of each kind")
            return model
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            raise RLFlowError(f"{folder} holds no whole world model of kind 'edits': {error}") from error


def _action(followed: Followed, t: int) -> tuple[int, int]:
    return (int(followed.xfer_ids[t]), int(followed.places[t])) if t < len(followed.places) else (NO_OP, NO_OP)
