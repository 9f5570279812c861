"""Test the contract of rlflow/common/task.py for every registered task and both templates in docs/EXTENDING.md."""

import pickle
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlflow.common.errors import RLFlowError
from rlflow.common.task import ONE_SHOT, STEP_BY_STEP, LocalState, State, location_masks, valid_actions
from rlflow.optimisation.candidates import Candidate, Decision, follow
from rlflow.runs.config import load_config
from rlflow.search.base import run_search
from rlflow.tasks import TASKS
from rlflow.tasks.plain import deliver_decisions, deliver_steps
from tests.tasks.placement.models import TINY_DEVICE
from tests.toys.template import MODULES, register

PROBLEMS = {
    "rewriting": "tiny_squeezenet1_1", "word": "abbacabba", "jobs": "9-2-7-3-8-1-6-4-5-5-2", "ordering": "layered-12-2",
    "placement": "tiny_resnet18",
    "expressions": "(let (t (mul x y)) (if p (add (mul t z) (mul t (div x y))) (sum (build i (lam (k : Integer) t)))))",
}  # fmt: skip
STEPS = 12


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """Yield problem name → specification of the task."""
    with pytest.MonkeyPatch.context() as patch:
        register(tmp_path_factory.mktemp("templates"), patch)
        options = ["cost.name=analytic", "env.max_steps=20", f"placement.device={TINY_DEVICE}"]
        config, result = load_config([], options), {}
        for name, problem in PROBLEMS.items():
            kind = TASKS.get(name)
            result[name] = kind.of(config, kind.fetch(problem, 0, tmp_path_factory.mktemp(name)))
        yield result


def shape_of(name: str) -> str:
    return ONE_SHOT if name in ("jobs", "ordering", "placement") else STEP_BY_STEP


STEP_TASKS = [name for name in PROBLEMS if shape_of(name) == STEP_BY_STEP]
ONE_SHOTS = [name for name in PROBLEMS if shape_of(name) == ONE_SHOT]


@pytest.fixture(scope="module", params=STEP_TASKS)
def spec(request, specs):
    return specs[request.param]


def played(task, seed: int = 0, steps: int = STEPS) -> tuple[list, list]:
    """Return (states, actions) of random play."""
    rng, states, actions = np.random.default_rng(seed), [task.initial], []
    while len(actions) < steps and len(valid := valid_actions(states[-1].counts, stop=False)):
        actions.append(tuple(map(int, valid[rng.integers(len(valid))])))
        states.append(states[-1].apply(*actions[-1]))
    return states, actions


def test_every_registered_task_has_a_problem_in_this_file():
    assert set(PROBLEMS) == {*TASKS, *MODULES}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_spec_makes_the_same_task_in_any_process(specs, name):
    spec = specs[name]
    assert spec.shape == shape_of(name)
    one, other = spec.make_task(), pickle.loads(pickle.dumps(spec.absolute())).make_task()
    assert one.initial.hash == other.initial.hash and one.unit and one.per_unit > 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_spec_loads_other_problems_by_their_names(specs, name):
    assert specs[name].other_task(PROBLEMS[name]).initial.hash == specs[name].make_task().initial.hash
    with pytest.raises(RLFlowError):
        specs[name].other_task("no such problem")


@pytest.mark.parametrize("name", PROBLEMS)
def test_an_unknown_problem_is_refused(specs, name, tmp_path):
    kind = type(specs[name])
    with pytest.raises(RLFlowError):
        kind.of(load_config(), kind.fetch("no such problem", 0, tmp_path)).make_task()


@pytest.mark.parametrize("name", PROBLEMS)
def test_arrays_have_the_sizes_of_the_encoding(specs, name):
    task = specs[name].make_task()
    instances = [task.initial] if shape_of(name) == ONE_SHOT else played(task)[0]
    for one in instances:
        arrays, sizes = one.arrays(), task.encoding_spec
        n, edges = len(arrays.ops), len(arrays.senders)
        assert arrays.ops.dtype == np.int32 and 0 < arrays.ops.min() <= arrays.ops.max() < sizes.n_ops
        assert arrays.nodes.shape == (n, sizes.node_features) and arrays.edges.shape == (edges, sizes.edge_features)
        assert arrays.globals.shape == (sizes.global_features,)
        assert arrays.senders.shape == arrays.receivers.shape == (edges,)
        assert max(arrays.senders.max(initial=0), arrays.receivers.max(initial=0)) < n
        assert all(array.dtype == np.float32 for array in (arrays.nodes, arrays.edges, arrays.globals))
        assert all(np.isfinite(array).all() for array in arrays)


# -- step by step ----------------------------------------------------------------------------------


def test_applying_a_choice_does_not_change_the_state(spec):
    task = spec.make_task()
    for state in played(task)[0]:
        assert isinstance(state, State) and isinstance(state.objective, int)
        before = state.hash, state.objective, state.counts.tolist()
        for sort, index in valid_actions(state.counts, stop=False)[:5].tolist():
            assert state.apply(sort, index).hash != state.hash
        assert (state.hash, state.objective, state.counts.tolist()) == before
        assert state.counts.dtype == np.int32 and state.counts.shape == (task.encoding_spec.n_rules,)
        assert 0 <= state.counts.min() and state.counts.max() <= task.encoding_spec.max_locations


def test_the_same_actions_lead_to_equal_states_in_separate_tasks(spec):
    for seed in range(3):
        (states, actions), task = played(spec.make_task(), seed), spec.make_task()
        for state, again in zip(states, played(task, seed)[0], strict=True):
            assert state.hash == again.hash and state.objective == again.objective
            assert np.array_equal(state.counts, again.counts)
            assert all(np.array_equal(one, other) for one, other in zip(state.arrays(), again.arrays(), strict=True))
        assert follow(task, actions).hash == states[-1].hash


def test_distant_choices_lead_to_equal_states_in_either_order(spec):
    def after_both(state, first, second):
        state = state.follow(first)
        (same,) = [match for match in state.matches if (match.xfer_id, match.nodes) == (second.xfer_id, second.nodes)]
        return state.follow(same)

    start = spec.make_task().initial
    pairs = [(a, b) for a, b in combinations(start.matches, 2) if start.near(a.nodes, 1).isdisjoint(b.nodes)]
    assert pairs
    for one, other in pairs[:: 1 + len(pairs) // 10]:
        state, again = after_both(start, one, other), after_both(start, other, one)
        assert state.hash == again.hash and state.objective == again.objective
        assert np.array_equal(state.counts, again.counts)
        assert all(np.array_equal(*parts) for parts in zip(state.arrays(), again.arrays(), strict=True))


def test_choices_that_do_not_exist_are_refused(spec):
    state, sizes = spec.make_task().initial, spec.make_task().encoding_spec
    wrong = [(sort, int(count)) for sort, count in enumerate(state.counts)]
    for sort, index in (*wrong, (sizes.n_rules, 0), (-1, 0), (0, -1)):
        with pytest.raises(RLFlowError):
            state.apply(sort, index)


def test_matches_of_local_states_are_the_choices(spec):
    states, _ = played(spec.make_task())
    assert all(isinstance(state, LocalState) for state in states)
    for state in states:
        actions = valid_actions(state.counts, stop=False).tolist()
        assert [match.xfer_id for match in state.matches] == [sort for sort, _ in actions]
        for (sort, index), match in zip(actions, state.matches, strict=True):
            assert state.match(sort, index) == match and state.index_of(match) == index
        for (sort, index), match in list(zip(actions, state.matches, strict=True))[:5]:
            after = state.follow(match)
            assert after.hash == state.apply(sort, index).hash
            assert set(match.nodes) <= state.near(match.nodes, 0) <= state.near(match.nodes, 2)


def test_each_node_of_a_local_state_has_its_own_row_of_features(spec):
    """A node that a choice leaves alone keeps its operator in the next state, and each node has a row of its own."""
    states, actions = played(spec.make_task())
    kept = 0
    for before, after, action in zip(states, states[1:], actions, strict=False):
        ops = [state.arrays().ops for state in (before, after)]
        for state, each in zip((before, after), ops, strict=True):
            assert {node for match in state.matches for node in match.nodes} <= state.rows.keys()
            rows = sorted(state.rows.values())
            assert len(set(rows)) == len(rows) and 0 <= rows[0] and rows[-1] < len(each)
        same = (before.rows.keys() & after.rows.keys()) - set(before.match(*action).nodes)
        assert all(ops[0][before.rows[node]] == ops[1][after.rows[node]] for node in same)
        kept += len(same)
    assert kept


def test_a_match_far_from_a_change_keeps_its_gain(spec):
    """A match outside `near(touched, 1 + reach)` that two successive states share keeps its gain; searches rely on
    this. A task whose choices all may change each other's gains has a reach beyond all of its graphs."""
    states, _ = played(spec.make_task(), steps=6)
    compared = 0
    for before, after in zip(states, states[1:], strict=False):
        near = after.near(after.touched, 1 + after.reach)
        gains = {
            match.nodes + (match.xfer_id,): before.objective - before.follow(match).objective
            for match in before.matches
        }
        for match in after.matches:
            if near.isdisjoint(match.nodes) and (known := gains.get(match.nodes + (match.xfer_id,))) is not None:
                assert after.objective - after.follow(match).objective == known
                compared += 1
    assert compared or states[0].reach > len(states[0].rows)


def test_the_environment_passes_gymnasiums_checker_and_ends_if_no_choice_is_left(spec):
    task = spec.make_task()
    env = spec.make_env(task, 50)
    check_env(env, skip_render_check=True)
    observation, info = env.reset(seed=0)
    rng, sizes = np.random.default_rng(0), task.encoding_spec
    for _ in range(50):
        assert np.array_equal(observation["location_masks"], location_masks(env.state.counts, sizes))
        assert observation["xfer_mask"][-1] == sizes.stop
        valid = valid_actions(env.state.counts, sizes.stop)
        observation, _, terminated, truncated, info = env.step(valid[rng.integers(len(valid))])
        assert info["cost"] == env.state.objective / task.per_unit
        if terminated or truncated:
            break
    assert terminated or truncated
    assert sizes.stop or terminated == (not env.state.counts.any())


def test_the_stop_action_is_invalid_in_a_task_without_one(specs):
    env = specs["word"].make_env(specs["word"].make_task(), 9)
    env.reset()
    state = env.state
    _, reward, terminated, _, info = env.step((env.encoding_spec.n_rules, 0))
    assert (reward, terminated, info["valid"]) == (-100.0, False, False) and env.state is state


@pytest.mark.parametrize("method, options", [
    ("greedy", {"max_steps": 50}), ("beam", {"width": 2, "depth": 3, "radius": 1}), ("best-first", {"budget": 20}),
    ("annealing", {"restarts": 2, "steps": 20, "hot": 0.5, "cold": 0.01, "focus": 0.9}),
    ("random", {"max_steps": 10, "episodes": 5}), ("descent", {"max_steps": 5}),
    ("grasp", {"unit": 1e-3, "max_steps": 5, "patience": 2}),
])  # fmt: skip
def test_searches_work_on_every_task(spec, method, options):
    task = spec.make_task()
    result = run_search(method, task.initial, seed=1, **options)
    assert result.state.objective <= task.initial.objective
    assert follow(task, result.actions).objective == result.state.objective


def test_a_candidate_with_a_false_claim_is_not_delivered(specs, tmp_path):
    spec = specs["word"]
    task = spec.make_task()
    best = run_search("greedy", task.initial, max_steps=50)
    honest = Candidate("honest", best.state, best.actions, 1, 0.0)
    states, actions = played(task)
    liar = Candidate("liar", states[-1], actions[:-1], 1, 0.0)
    outcome = deliver_steps(spec, [liar, honest], tmp_path)
    assert outcome["delivered"] == "honest" and not outcome["candidates"]["liar"]["equal"]
    assert (tmp_path / "receipt.json").exists()
    nothing = deliver_steps(spec, [replace(honest, state=task.initial, actions=[])], tmp_path / "none")
    assert nothing["delivered"] == "original" and not (tmp_path / "none" / "receipt.json").exists()


# -- one-shot --------------------------------------------------------------------------------------


def drawn(instance, n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(instance.space.nvec, size=(n, len(instance.space.nvec)))


def near_the_control(instance, n: int) -> np.ndarray:
    """Return n copies of the control with three random entries each."""
    result, rng = np.tile(instance.control(), (n, 1)), np.random.default_rng(1)
    for row in result:
        for entry in rng.integers(len(row), size=3):
            row[entry] = rng.integers(instance.space.nvec[entry])
    return result


@pytest.fixture(params=ONE_SHOTS)
def one_shot(request, specs):
    return specs[request.param]


def test_a_decision_is_evaluated_independently_of_the_batch(one_shot):
    instance = one_shot.make_task().initial
    decisions = drawn(instance, 200)
    result = instance.evaluate(decisions)
    assert result.objectives.shape == (200,) and np.issubdtype(result.objectives.dtype, np.integer)
    for row in (0, 7, 199):
        single = instance.evaluate(decisions[row : row + 1])
        assert single.objectives[0] == result.objectives[row]
        assert np.array_equal(single.decisions[0], result.decisions[row])


def test_a_repaired_decision_is_valid_and_has_the_reported_objective(one_shot):
    instance = one_shot.make_task().initial
    decisions = np.concatenate([drawn(instance, 200), np.zeros((1, len(instance.space.nvec)), np.int64)])
    result = instance.evaluate(decisions)
    assert all(decision in instance.space for decision in result.decisions)
    assert np.array_equal(result.repaired, (result.decisions != decisions).sum(axis=1)) and result.repaired[-1] > 0
    again = instance.evaluate(result.decisions)
    assert np.array_equal(again.objectives, result.objectives) and not again.repaired.any()


def test_no_decision_is_below_the_bound_and_the_control_is_valid(one_shot):
    instance = one_shot.make_task().initial
    assert instance.evaluate(drawn(instance, 3000)).objectives.min() >= instance.lower_bound()
    control = instance.evaluate(instance.control()[None])
    assert not control.repaired[0] and instance.control() in instance.space


def test_a_decision_with_a_false_objective_is_not_delivered(one_shot, tmp_path):
    spec = one_shot
    instance = spec.make_task().initial
    result = instance.evaluate(np.concatenate([drawn(instance, 500), near_the_control(instance, 500)]))
    best = int(result.objectives.argmin())
    honest = Decision("honest", result.decisions[best], int(result.objectives[best]), 500, 0.0)
    liar = replace(honest, name="liar", objective=honest.objective - 1)
    unrepaired = Decision("unrepaired", np.zeros(len(instance.space.nvec), np.int64), 1, 1, 0.0)
    outcome = deliver_decisions(spec, [liar, unrepaired, honest], tmp_path)
    assert outcome["delivered"] == "honest" and outcome["lower_bound"] == instance.lower_bound()
    assert [outcome["candidates"][name]["equal"] for name in ("liar", "unrepaired")] == [False, False]
