"""The stage `eval`: trained controllers act on the real graph and are compared with controls.

`evaluate_world_model` measures the accuracy of the world model instead. `acted` plays a controller that was trained on
other ONNX models, for `optimise --controller`.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from controllers.base import Learner
from controllers.evaluation import BestOf, best_of, rollout
from controllers.recording import recorded
from controllers.stages import one_shot
from controllers.stages.experiments import Training, playable_trainings
from controllers.stages.parts import (
    as_seen,
    controller_from,
    controllers_environment,
    dream_options,
    iteration_episodes,
    load_world_model,
    make_controller,
    with_real_observations,
)
from rlflow.collect import rollouts
from rlflow.common.errors import RLFlowError, first_line
from rlflow.common.files import write_json
from rlflow.common.messages import command, say
from rlflow.common.task import ONE_SHOT, EpisodeReward, LocalState
from rlflow.optimisation.candidates import Candidate, follow, states_along
from rlflow.search.descents import greedy
from worldmodel.dream import DreamEnv
from worldmodel.fidelity import fidelity, improvement
from worldmodel.fidelity_report import write_fidelity
from worldmodel.run_pages import draw_dream_and_reality
from worldmodel.train_and_load import prepare_tensorflow, split_episodes

CONTROLS = ("untrained", "no-prior")  # names of the untrained controllers, see `Played.controls`
FRESH = 32  # number of new random episodes on which a world model is tested if its training held no episodes out


def acted(run, folder: str, seconds: float) -> Candidate:
    """Play a trained controller on the run's ONNX model and return the cheapest graph that its episodes visit.

    Args:
      run: the run folder.
      folder: the folder of a controller that needs no world model.
      seconds: the time in seconds after which no episode begins; the first, greedy episode is always played.
    """
    started = time.monotonic()
    prepare_tensorflow(run.config.seed, run.config.world_model.threads)
    controller = controller_from(folder, run.task.encoding_spec, run.config.seed)
    env = with_real_observations(controllers_environment(run), controller.config)
    tried = best_of(controller.players(), env, run.config.eval.samples, run.config.seed, started + seconds)
    return Candidate(
        "transfer", follow(run.task, tried.actions), tried.actions, tried.interactions, time.monotonic() - started
    )


class Played(NamedTuple):
    """A trained controller and its episodes on the real graph.

    Attributes:
      training: the training.
      controller: the trained controller.
      tried: its episodes.
      controls: the episodes of untrained controllers with the same options, seed and decoding: "untrained" starts from
        the same prior, and "no-prior" without any prior. "no-prior" is missing if the controller has no prior. Both are
        missing if the reward depends on whole episodes (`EpisodeReward`), because it may need measurements.
    """

    training: Training
    controller: object
    tried: BestOf
    controls: dict[str, BestOf]


def evaluate(run, result=None, only: Sequence[str] = ()) -> dict:
    """Run the stage `eval`: compare the controllers with controls on the real graph and deliver the best candidate.

    The candidates are greedy search and the untrained controllers, then the trained controllers and random play. If
    two candidates have equal estimates, the earlier one is delivered, so the name "controller" means that training
    found more than greedy search and the untrained controllers.

    Args:
      run: the run folder, with trained controllers. All of them act, and the best one is the candidate "controller".
      result: a `rlflow.optimisation.anytime.BestSoFar` of earlier searches, or None. Its candidates are compared as
        well, and the controller's candidate is offered to it.
      only: names of the experiments whose controllers act; () for all of them.

    Returns:
      The outcome of `TaskSpec.deliver` with the entry "experiments", one row for each trained controller. In a
      step-by-step task, `_row` describes the rows, to which "greedy_cost" is added: the cost that greedy search
      reaches, or None. The outcome then also has the entry "compared_returns" (see `_compared_returns`).

    Raises:
      RLFlowError: no controller was trained in the present world model.
    """
    if run.spec.shape == ONE_SHOT:
        return one_shot.evaluate(run, only)
    config, played = run.config, []
    trainings, model = playable_trainings(run, only)
    if not trainings:
        again = command("train-controller", "--run", run.path)
        raise RLFlowError(f"the world model has changed since all controllers were trained; run `{again}` first")

    def work() -> dict:
        played[:] = _play(run, model, trainings)
        controller = _cheapest_reached(run, played)
        searched = [_greedy_control(run)] if isinstance(run.task.initial, LocalState) else []
        candidates = [*searched, *_untrained_candidates(run, played)]
        candidates += [controller, *_fastest_measured(run, played, controller)]
        candidates.append(_random_control(run, controller.interactions))
        if result is not None:
            # A killed run of this stage may have offered its controller already, which comes after the others.
            earlier = [one for one in result.candidates() if one.name != controller.name]
            candidates = _merged(earlier, candidates)
            result.offer(controller)
        outcome = run.spec.deliver(run.task, candidates, run.path / "eval", config)
        greedy_cost = searched[0].state.objective / run.task.per_unit if searched else None
        outcome["experiments"] = [_row(one) | {"greedy_cost": greedy_cost} for one in played]
        outcome["compared_returns"] = _compared_returns(run, _best(played), candidates)
        return outcome

    outcome = run.stage("eval", work)
    try:
        _draw(run, model, played)
    except (Exception, KeyboardInterrupt) as error:  # the stage is complete without the pictures
        say(f"the stage is complete, but its plot of dreamt and real rewards failed: {first_line(error)}")
    return outcome


def _merged(candidates: list[Candidate], others: list[Candidate]) -> list[Candidate]:
    """Merge two lists of candidates. Of two candidates with one name, keep the one with the lower objective.

    The name `greedy`, for example, occurs as a control and as a search.
    """
    result = {candidate.name: candidate for candidate in candidates}
    for other in others:
        if other.name not in result or other.state.objective < result[other.name].state.objective:
            result[other.name] = other
    return list(result.values())


def _play(run, model, trainings: Sequence[Training]) -> list[Played]:
    """Play the episodes of trained controllers on the real graph.

    Args:
      run: the run folder.
      model: the world model that encodes observations, or None if all controllers need none.
      trainings: the trainings of the controllers.
    """
    played, environments = [], {}
    is_measured = isinstance(run.spec.make_reward(), EpisodeReward)
    for training in trainings:
        own, name = None if training.needs_no_world_model else model, training.environment
        if name not in environments:
            environments[name] = as_seen(training.run, controllers_environment(run), own, acts=True)
        controller, options = training.controller(own), (environments[name], run.config.eval.samples, run.config.seed)
        tried = best_of([controller], *options)
        controls = {} if is_measured else _untrained(training, own)
        controls = {control: best_of([other], *options) for control, other in controls.items()}
        played.append(Played(training, controller, tried, controls))
    return played


def _untrained(training: Training, model) -> dict[str, Learner]:
    """Return the untrained controllers that `Played.controls` describes, by name.

    Args:
      training: the training of the controller to compare with.
      model: the world model that encodes observations, or None for a controller that needs none.
    """
    untrained = make_controller(training.run, model)
    blank = untrained.without_prior()
    return {"untrained": untrained} | ({} if blank is None else {"no-prior": blank})


def _best(played: Sequence[Played]) -> Played:
    return min(played, key=lambda one: one.tried.cost)


def _draw(run, model, played: Sequence[Played]) -> None:
    """Draw the returns of each controller's greedy episode in the dream and of its greedy episode on the real graph.

    Args:
      run: the run folder.
      model: the world model that dreams, or None.
      played: the controllers. A controller without a world model is left out, because it cannot dream.
    """
    for training, controller, tried, _ in played:
        if training.needs_no_world_model:
            continue
        dream = DreamEnv(model, run.task.initial, **dream_options(training.run, training.temperature))
        dreamt = rollout(controller, dream, greedy=True, seed=run.config.seed)
        draw_dream_and_reality(run, training.name, dreamt.rewards, tried.trajectories[0].rewards)


def _cheapest_reached(run, played: Sequence[Played]) -> Candidate:
    """Return the cheapest state that any controller reached, in this stage or in the iterations of `train-wm`.

    The candidate's interactions and measurement seconds include data collection, and the training and acting of all
    these controllers. Its seconds are those of acting, without the controls.

    Args:
      run: the run folder.
      played: the controllers and their episodes.
    """
    tried, interactions, measured, acting = _best(played).tried, _training_data(run, played), 0.0, {}
    cost, actions = tried.cost, tried.actions
    for episode in iteration_episodes(run) if interactions else ():
        if episode.costs.min() < cost:
            cost, actions = episode.costs.min(), episode.actions[: int(episode.costs.argmin())].tolist()
    if interactions:
        measured = (run.results("collect") or {}).get("measurement_seconds", 0.0)  # none if the training is online
    for training, _, tried, _ in played:
        if training.is_on_real_graph:
            interactions += training.results["env_steps"]
            measured += training.results["measurement_seconds"]
        interactions += tried.interactions
        for info in tried.trajectories[-1].infos[-1:]:
            acting[training.environment] = info.get("measurement_seconds", 0.0)  # cumulative over all episodes
    state, measured = follow(run.task, actions), measured + sum(acting.values())
    return Candidate("controller", state, actions, interactions, _acting_seconds(one.tried for one in played), measured)


def _acting_seconds(tried: Iterable[BestOf]) -> float:
    return sum(trajectory.seconds for one in tried for trajectory in one.trajectories)


def _training_data(run, played: Sequence[Played]) -> int:
    """Return the number of real steps that the world model learned from; 0 if no controller needs a world model."""
    return 0 if all(one.training.needs_no_world_model for one in played) else run.require("train-wm")["interactions"]


def _untrained_candidates(run, played: Sequence[Played]) -> Iterator[Candidate]:
    """Yield the cheapest state that untrained controllers of each kind in CONTROLS reached, as a candidate."""
    for name in CONTROLS:
        tried = [one.controls[name] for one in played if name in one.controls]
        if tried:
            actions = min(tried, key=lambda one: one.cost).actions
            interactions = _training_data(run, played) + sum(one.interactions for one in tried)
            yield Candidate(name, follow(run.task, actions), actions, interactions, _acting_seconds(tried))


def _fastest_measured(run, played: Sequence[Played], controller: Candidate) -> Iterator[Candidate]:
    """Yield the fastest graph that was measured while any controller trained on the real graph, as a candidate.

    Trainings without measurements yield nothing. The candidate's seconds are the duration of the training that measured
    the graph. Interactions and measurement seconds are copied from the candidate `controller`.
    """
    measured = [one.training.results for one in played if (one.training.results.get("measured") or {}).get("actions")]
    if measured:
        best = min(measured, key=lambda results: results["measured"]["latency"])
        actions = best["measured"]["actions"]
        yield replace(
            controller, name="measured", state=follow(run.task, actions), actions=actions, seconds=best["seconds"]
        )


def _greedy_control(run) -> Candidate:
    started, options = time.monotonic(), run.config.eval
    answer = greedy(run.task.initial, options.greedy_steps, options.greedy_seconds)
    return Candidate("greedy", answer.state, answer.actions, answer.interactions, time.monotonic() - started)


def _random_control(run, interactions: int) -> Candidate:
    """Return the cheapest state that random play reaches with this number of interactions, as a candidate."""
    started, steps = time.monotonic(), run.spec.max_steps
    seed, by_rule = run.config.seed, run.config.collect.by_rule
    actions, played = rollouts.best_random(run.task, run.path / "episodes", interactions, steps, seed, by_rule)
    return Candidate("random", follow(run.task, actions), actions, played, time.monotonic() - started)


def _row(played: Played) -> dict:
    """Return the row of a controller in the table of all experiments.

    Returns:
      {"experiment", "training": name of the folder, "temperature": τ, or None for a training on the real graph,
      "trained_return": best mean return in the environment of the training, "real_return": return of the greedy real
      episode over at most as many steps as the dream has (for the planner: as its plan has), "cost": cost of the
      cheapest state of all real episodes in the task's unit,
      "untrained_cost", "no_prior_cost": the same of the untrained controllers (`Played.controls`), or None,
      "acting_seconds": seconds of the greedy episode}.
    """
    training, _, tried, controls = played
    episode = tried.trajectories[0]
    return {
        "experiment": training.experiment,
        "training": training.name,
        "temperature": None if training.is_on_real_graph else training.temperature,
        "trained_return": training.results["best_return"],
        "real_return": sum(episode.rewards[: _dreamt_steps(training)]),
        "cost": tried.cost,
        **{f"{name.replace('-', '_')}_cost": controls[name].cost if name in controls else None for name in CONTROLS},
        "acting_seconds": episode.seconds,
    }


def _dreamt_steps(training: Training) -> int:
    """Return the largest number of steps of the dream with which the return of an episode is compared."""
    longest = training.run.config.dream.max_steps
    return min(longest, training.results.get("dreamt_steps", longest))


def _compared_returns(run, best: Played, candidates: list[Candidate]) -> dict[str, float]:
    """Return real returns with which the return of the best trained controller is compared, by name.

    "untrained" is the return of the greedy episode of the same controller with the same seed before any training;
    "greedy" and "random" are the returns of the paths of the controls. All are over at most as many steps as the return
    of the trained controller. The dictionary is empty if the controller needs no world model, or if the reward depends
    on whole episodes (`EpisodeReward`), which may need measurements.

    Args:
      run: the run folder.
      best: the best trained controller.
      candidates: the candidates, among them the controls.
    """
    reward = run.spec.make_reward()
    if best.training.needs_no_world_model or isinstance(reward, EpisodeReward):
        return {}
    episode = best.controls["untrained"].trajectories[0]
    most = _dreamt_steps(best.training)
    returns = {"untrained": float(sum(episode.rewards[:most]))}
    for candidate in candidates:
        if candidate.name in ("greedy", "random"):
            states = states_along(run.task, candidate.actions[:most])
            steps = zip(states, states[1:], strict=False)
            returns[candidate.name] = float(sum(reward(before, after, states[0]) for before, after in steps))
    return returns


def evaluate_world_model(run, only: Sequence[str] = ()) -> dict:
    """Measure the errors of the world model on held-out random episodes and on episodes of trained controllers.

    The results are also written to eval/world-model.json, world-model.md and world-model.png in the run folder.

    Args:
      run: the run folder.
      only: names of the experiments whose controllers play; () for all of them.

    Returns:
      The results of `worldmodel.fidelity.fidelity` by the name of the episodes: "held-out random", or the name of the
      controller's folder. The entry of a controller also has "improvement".
    """
    run.require("train-wm")
    config, folder = run.config, run.path / "eval"
    trainings, model = playable_trainings(run, only) if run.results("train-controller") else ([], None)
    model = model or load_world_model(run)
    options = {"uncertainty_limit": config.dream.uncertainty_limit or 0.0, "seed": config.seed}
    training, held_out = _random_episodes(run)
    result = {"held-out random": fidelity(model, held_out, training, **options)}
    for one in trainings:
        if one.needs_no_world_model:
            continue
        playing = recorded(one.controller(model), controllers_environment(run), model, config.seed)
        episodes = list(islice(playing, 1 + config.eval.samples))
        figures = fidelity(model, episodes, training, **options)
        result[one.name] = figures | {"improvement": improvement(model, episodes)}
    write_json(folder / "world-model.json", result)
    write_fidelity(folder, result)
    return result


def _random_episodes(run) -> tuple[list | None, list]:
    """Return (training episodes of the world model, held-out random episodes of this run's ONNX model).

    If the training held out no such episode, new random episodes are played. If `world_model.mode` is
    "online" or `world_model.holdout` is 0, the result has None for the training episodes.
    """
    config, trained, training = run.config, run.require("train-wm"), None
    if config.world_model.mode == "offline" and config.world_model.holdout:
        own, episodes = run.random_episodes(trained["episodes"])
        episodes = [*episodes, *iteration_episodes(run)]
        training, held_out = split_episodes(episodes, config.world_model.holdout, config.seed)
        own = set(map(id, own))
        held_out = [episode for episode in held_out if id(episode) in own]
        if held_out:
            return training, held_out
    spec, unused = run.spec, trained["interactions"]
    reward, fresh = spec.make_reward(), []
    for number in range(unused, unused + FRESH):  # seeds that no training used
        rng = np.random.default_rng([config.seed, number])
        fresh.append(rollouts.play_random(run.task, reward, spec.max_steps, rng, number, config.collect.by_rule))
    return training, fresh
