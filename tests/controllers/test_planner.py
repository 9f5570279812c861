import itertools

import numpy as np
import pytest

from controllers.evaluation import rollout
from controllers.planner import Planner, PlannerConfig, shortened
from rlflow.common.errors import RLFlowError
from rlflow.search import BeamOptions
from rlflow.search.base import numbered
from tests.suite import at_night
from tests.toys.latent import Identity, Sacrifice, make, vector
from tests.toys.systems import (
    SIGNS_AND_PRODUCTS,
    fitted,
    onnx_model,
    random_episodes,
    real_env,
    signs_and_products,
    task_of,
)
from worldmodel.dream import DreamVectorEnv
from worldmodel.latent_env import LatentEnv

LONG = 200  # steps
REWRITES = at_night(400, 150)  # Steps of a search in a dream.


@pytest.fixture(scope="module")
def toy():
    """Return (model, task) of the toy with signs and products; the model knows all of its rewrites."""
    task = task_of(signs_and_products(), SIGNS_AND_PRODUCTS)
    return fitted(random_episodes(task, 60, 10), task), task


def real(toy) -> LatentEnv:
    return LatentEnv(real_env(toy[1], LONG), toy[0])


def planned(toy, folder, seed=0, log=None, progress=None, **options) -> tuple[Planner, dict]:
    model, task = toy
    dream = DreamVectorEnv(model, task.initial, 1)
    config = PlannerConfig(**{"steps": REWRITES, **options})
    planner = Planner(config, dream.single_observation_space, dream.single_action_space)
    return planner, planner.train(lambda n: DreamVectorEnv(model, task.initial, n), seed, folder, log, progress)


def bytes_of(folder):
    return (folder / "controller.npz").read_bytes(), (folder / "controller.json").read_bytes()


# -- where dreams can be searched ------------------------------------------------------------------


def test_a_plan_gains_on_the_real_graph_as_much_as_in_the_dream(toy, tmp_path):
    planner, results = planned(toy, tmp_path)
    played = rollout(planner, real(toy), greedy=True, seed=0)
    assert sum(played.rewards) == pytest.approx(results["best_return"], abs=1e-6) and results["best_return"] > 1
    assert [rule for rule, _ in played.actions] == [*planner.plan.actions[:, 0].tolist(), toy[1].no_op]
    assert played.terminated


@pytest.mark.parametrize("seed", range(12))
def test_shortening_a_sequence_never_lengthens_it_or_raises_its_final_cost(toy, seed):
    model, task = toy
    rng, start = np.random.default_rng(seed), model.searchable(task.initial, 0.25)
    state, actions = start, []
    for _ in range(12):
        matches = state.matches
        if not matches:
            break
        match = matches[rng.integers(len(matches))]
        actions.append((match.xfer_id, list(state.of_rule(match.xfer_id)).index(match)))
        state = state.follow(match)
    end, shorter = numbered(start, shortened(start, actions))
    assert end.objective <= state.objective and len(shorter) <= len(actions)
    again, _ = numbered(start, shortened(start, shorter))
    assert again.objective <= end.objective


def test_shortening_removes_a_detour_even_if_a_gain_separates_its_steps(toy):
    """The actions make a detour and undo it after a gain elsewhere; only the gain remains."""
    model, task = toy
    start = model.searchable(task.initial, 0.25)
    names = [rule.name for rule in task.rules]

    def step(state, name, which=0):
        match = list(state.of_rule(names.index(name)))[which]
        return (match.xfer_id, which), state.follow(match), match

    first, one, _ = step(start, "common-factor")
    apart, two, _ = step(one, "apart")
    gain, three, kept = step(two, "neg-neg")
    joining = enumerate(three.of_rule(names.index("common-factor")))
    back = next(k for k, match in joining if three.follow(match).hash == one.follow(kept).hash)
    actions = [first, apart, gain, (names.index("common-factor"), back)]
    end, shorter = numbered(start, shortened(start, actions))
    assert end.hash == one.follow(kept).hash and [names[x] for x, _ in shorter] == ["common-factor", "neg-neg"]


def test_a_loss_that_a_gain_needs_stays():
    """The two rules do not preserve values, which does not matter to a planner."""
    rules = """
double: a loss
  Abs(x) => Neg(Neg(Abs(x)))

gone: a gain that nothing else makes possible
  Neg(Neg(Abs(x))) => x
"""
    task = task_of(onnx_model("a = Abs(x)\nb = Exp(a)\nc = Abs(b)\no = Exp(c)", {"x": (64, 64)}, "o"), rules)
    start = fitted(random_episodes(task, 30, 6), task).searchable(task.initial, 0.25)
    double, gone = ([rule.name for rule in task.rules].index(name) for name in ("double", "gone"))
    end, kept = numbered(start, shortened(start, [(double, 0), (gone, 0), (double, 0)]))
    assert [x for x, _ in kept] == [double, gone] and end.objective < start.objective


def test_the_planner_stops_after_its_plan_or_if_the_planned_action_is_missing(toy, tmp_path):
    planner, _ = planned(toy, tmp_path)
    env, no_op = real(toy), [toy[1].no_op, 0]
    one = {name: np.asarray(value)[None] for name, value in env.reset(seed=0)[0].items()}
    planned_first = planner.plan.actions[0].tolist()
    assert planner.act(one).tolist() == [planned_first] != [no_op]
    for step in (len(planner.plan.actions), LONG):
        assert planner.act(one | {"step": np.array([step])}).tolist() == [no_op]
    one["counts"][0, planned_first[0]] = planned_first[1]
    assert planner.act(one).tolist() == [no_op]


def test_sampled_episodes_leave_the_plan_and_end(toy, tmp_path):
    planner, _ = planned(toy, tmp_path)
    plan = [*map(tuple, planner.plan.actions.tolist())]
    played = [rollout(planner, real(toy), greedy=False, seed=seed) for seed in range(30)]
    assert sum(trajectory.terminated for trajectory in played) > 25
    assert sum(trajectory.actions[: len(plan)] == plan for trajectory in played) < 15
    assert len({tuple(trajectory.actions) for trajectory in played}) > 20
    assert len({trajectory.actions[0] for trajectory in played}) > 1


def test_a_seed_gives_the_same_plan_after_any_earlier_use_of_the_world_model(toy, tmp_path):
    """The model keeps the nodes and matches that dreams have met. A plan does not depend on them, and a new folder
    starts anew."""
    _, task = toy
    fresh = fitted(random_episodes(task, 60, 10), task)
    planned((fresh, task), tmp_path / "a", seed=3)
    imagined, rng = fresh.imagine(task.initial, 4), np.random.default_rng(0)
    for _ in range(10):
        xfer_ids = np.array([rng.choice(np.flatnonzero(row)) if row.any() else task.no_op for row in imagined.counts])
        imagined.advance(np.stack([xfer_ids, np.zeros(4, np.int64)], axis=1), xfer_ids < task.no_op, 0.0, (0, 0))
    for folder, system in (("b", (fresh, task)), ("c", toy)):
        planned(system, tmp_path / folder, seed=3)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b") == bytes_of(tmp_path / "c")


def test_a_half_written_folder_is_planned_anew(toy, tmp_path):
    planned(toy, tmp_path / "whole")
    planned(toy, tmp_path / "half")
    (tmp_path / "half" / "controller.json").unlink()
    (tmp_path / "half" / "controller.npz").write_bytes(b"PK")
    planned(toy, tmp_path / "half")
    assert bytes_of(tmp_path / "half") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("last", [30, REWRITES * 3 // 4])
def test_an_interrupted_search_is_no_plan(toy, tmp_path, last):
    """Interrupt beam search or the annealing after it: the planner raises KeyboardInterrupt and saves nothing."""

    def interrupt(done, total):
        if done == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned(toy, tmp_path, progress=interrupt)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("annealing", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_tiny_limit_works(toy, tmp_path, steps, annealing):
    _, results = planned(toy, tmp_path, steps=steps, annealing=annealing)
    assert results["env_steps"] <= steps and results["best_return"] >= 0


@pytest.mark.nightly
def test_the_options_of_beam_search_apply_to_the_planner(toy, tmp_path):
    """All steps go to beam search. With one chain of one rewrite the search ends after fewer steps than with the
    defaults."""
    wide = planned(toy, tmp_path / "wide", steps=5000, annealing=0.0)[1]
    one = BeamOptions(width=1, depth=1)
    narrow = planned(toy, tmp_path / "narrow", steps=5000, annealing=0.0, beam_search=one)[1]
    assert narrow["env_steps"] < wide["env_steps"] and narrow["best_return"] <= wide["best_return"]
    with pytest.raises(RLFlowError, match="with other options .beam_search"):
        planned(toy, tmp_path / "narrow", steps=5000, annealing=0.0)


def test_an_invalid_budget_is_refused():
    refused = [
        ({"steps": 0}, "above 0, not 0"),
        ({"annealing": 1.5}, "at most 1, not 1.5"),
        ({"annealing": -0.1}, "0 or more, not -0.1"),
    ]
    for options, reason in refused:
        with pytest.raises(RLFlowError, match=f"PlannerConfig: '{next(iter(options))}' must be {reason}"):
            PlannerConfig(**options)


def test_the_logged_best_runtime_never_rises(toy, tmp_path):
    logged, progressed = [], []
    _, results = planned(
        toy, tmp_path, log=lambda *entry: logged.append(entry), progress=lambda *done: progressed.append(done)
    )
    steps, runtimes = [step for step, _ in logged], [scalars["best_runtime_ms"] for _, scalars in logged]
    assert steps == sorted(steps) and steps[-1] == results["env_steps"] and len(set(runtimes)) > 1
    assert all(after <= before for before, after in itertools.pairwise(runtimes))
    assert progressed == sorted(progressed) and progressed[-1] == (REWRITES, REWRITES)


# -- where they cannot -----------------------------------------------------------------------------


def test_planning_by_samples_learns_to_lose_first(tmp_path):
    planner = make(Planner, PlannerConfig(steps=2000), Sacrifice)
    logged = []
    results = planner.train(
        vector(Sacrifice), 0, tmp_path, log=lambda step, scalars: logged.append(scalars["best_return"])
    )
    assert results["best_return"] == 2.0 and logged == sorted(logged)
    assert planner.plan.actions[:, 0].tolist() == [1, 2]


def test_samples_around_the_plan_improve_the_plan(tmp_path):
    """One fixed order of eleven choices, each among four rules, is right; random episodes rarely get beyond the third
    choice."""
    few, many = (
        make(Planner, PlannerConfig(steps=steps), Identity).train(vector(Lock), 0, tmp_path / str(steps))
        for steps in (64, 20_000)
    )
    assert many["best_return"] > few["best_return"] + 2


class Lock(Identity):
    """An environment whose right rules are the same in every episode; a wrong rule ends the episode."""

    STEPS = 11

    def begin(self):
        self.right = [(k * 7 + 3) % self.N for k in range(self.STEPS)]
        self._counts = np.full(self.N, 1)

    def latent(self):
        return np.zeros(self.Z)

    def play(self, xfer_id, location):
        return float(xfer_id == self.right[self.t]), xfer_id != self.right[self.t]


def test_a_saved_plan_acts_the_same(tmp_path):
    planner, loaded = (make(Planner, PlannerConfig(steps=2000), Sacrifice, seed) for seed in (0, 9))
    planner.train(vector(Sacrifice), 0, tmp_path)
    loaded.load(tmp_path)
    env = vector(Sacrifice)(3)
    observation, _ = env.reset(seed=0)
    for _ in range(2):
        for greedy in (True, False):
            acted = [c.act(observation, greedy, np.random.default_rng(4)) for c in (planner, loaded)]
            np.testing.assert_array_equal(*acted)
        observation, *_ = env.step(planner.act(observation))
    assert loaded.plan.dreamt_return == 2.0
