"""The stage `eval`: trained controllers act on the real graph and are compared with controls.

`evaluate_world_model` measures the accuracy of the world model instead. `acted` plays a controller that was trained on
other ONNX models, for `optimise --controller`.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from controllers.evaluation import best_of, rollout
from controllers.recording import recorded
from controllers.stages import one_shot
from controllers.stages.parts import (
    as_seen,
    controller_folder,
    controller_from,
    controllers_environment,
    dream_options,
    load_world_model,
    make_controller,
    sees_candidates,
    trained_controller,
    with_candidates,
    world_model_of,
)
from rlflow.collect import rollouts
from rlflow.collect.episodes import read_episodes
from rlflow.common.errors import first_line
from rlflow.common.files import write_json
from rlflow.common.messages import say
from rlflow.common.task import ONE_SHOT, EpisodeReward, LocalState
from rlflow.optimisation.candidates import Candidate, follow, states_along
from rlflow.search.descents import greedy
from worldmodel.dream import DreamEnv
from worldmodel.fidelity import fidelity, improvement
from worldmodel.fidelity_report import write_fidelity
from worldmodel.run_pages import draw_dream_and_reality
from worldmodel.train_and_load import prepare_tensorflow, split_episodes

FRESH = 32  # number of new random episodes on which a world model is tested if its training held no episodes out


def acted(run, folder: str, seconds: float) -> Candidate:
    """Play a trained controller on the run's ONNX model and return the cheapest graph that its episodes visit.

    Args:
      run: the run folder.
      folder: the folder of a controller that observes successor graphs.
      seconds: the time in seconds after which no episode begins; the first, greedy episode is always played.
    """
    started = time.monotonic()
    prepare_tensorflow(run.config.seed, run.config.world_model.threads)
    controller = controller_from(folder, run.config.seed)
    env = with_candidates(controllers_environment(run), controller.config)
    tried = best_of(controller.players(), env, run.config.eval.samples, run.config.seed, started + seconds)
    interactions = sum(len(trajectory.actions) for trajectory in tried.trajectories)
    return Candidate(
        "transfer", follow(run.task, tried.actions), tried.actions, interactions, time.monotonic() - started
    )


def evaluate(run, result=None) -> dict:
    """Run the stage `eval`: compare the controllers with controls on the real graph and deliver the best candidate.

    Args:
      run: the run folder, with trained controllers.
      result: a `rlflow.optimisation.anytime.BestSoFar` of earlier searches, or None. Its candidates are compared as
        well, and the controller's candidate is offered to it.

    Returns:
      The outcome of `TaskSpec.deliver`. In a step-by-step task it also has the entries "dreamt" (see
      `_dream_and_reality`) and "compared_returns" (see `_compared_returns`).
    """
    if run.spec.shape == ONE_SHOT:
        return one_shot.evaluate(run)
    trained, config = run.require("train-controller"), run.config
    model, actors, tries = world_model_of(run), [], []

    def work() -> dict:
        environment, started = as_seen(run, controllers_environment(run), model), time.monotonic()
        actors[:] = [trained_controller(run, model, temperature) for temperature in config.dream.temperatures]
        tries[:] = [best_of(actor.players(), environment, config.eval.samples, config.seed) for actor in actors]
        controller = _cheapest_reached(run, trained, tries, started)
        candidates = [controller, *_fastest_measured(run, trained, controller)]
        if isinstance(run.task.initial, LocalState):
            candidates.append(_greedy_control(run))
        candidates.append(_random_control(run, controller.interactions))
        if result is not None:
            candidates = _merged(candidates, result.candidates())
            result.offer(controller)
        outcome = run.spec.deliver(run.task, candidates, run.path / "eval", config)
        outcome["dreamt"] = _dream_and_reality(run, trained, tries) if model is not None else []
        outcome["compared_returns"] = _compared_returns(run, model, environment, candidates)
        return outcome

    outcome = run.stage("eval", work)
    if model is None:
        return outcome
    try:
        _draw(run, model, actors, tries)
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


def _draw(run, model, actors: list, tries: list) -> None:
    """Draw the returns of each controller's greedy episode in the dream and of its greedy episode on the real graph.

    Args:
      run: the run folder.
      model: the world model that dreams.
      actors: the trained controllers, one per temperature.
      tries: a `BestOf` of real episodes per controller.
    """
    for temperature, actor, tried in zip(run.config.dream.temperatures, actors, tries, strict=True):
        dream = DreamEnv(model, run.task.initial, **dream_options(run, temperature))
        dreamt = rollout(actor, dream, greedy=True, seed=run.config.seed)
        draw_dream_and_reality(run, temperature, dreamt.rewards, tried.trajectories[0].rewards)


def _cheapest_reached(run, trained: dict, tries: list, started: float) -> Candidate:
    """Return the cheapest state that any controller reached, as a candidate.

    The candidate's interactions and measurement seconds include data collection, training and acting.

    Args:
      run: the run folder.
      trained: the results of the stage `train-controller`.
      tries: a `BestOf` of real episodes per controller.
      started: the value of time.monotonic() from which the candidate's seconds count.
    """
    best = min(tries, key=lambda tried: tried.cost)
    interactions, measured = 0, 0.0
    if not sees_candidates(run):
        interactions = run.require("train-wm")["interactions"]
        measured = (run.results("collect") or {}).get("measurement_seconds", 0.0)  # none if the training is online
    if run.config.controller.train_on == "real":
        interactions += trained["trainings"][0]["env_steps"]
        measured += trained["trainings"][0]["measurement_seconds"]
    acting = 0.0
    for tried in tries:
        interactions += sum(len(trajectory.actions) for trajectory in tried.trajectories)
        for info in tried.trajectories[-1].infos[-1:]:
            acting = info.get("measurement_seconds", 0.0)  # cumulative over all episodes
    state = follow(run.task, best.actions)
    return Candidate("controller", state, best.actions, interactions, time.monotonic() - started, measured + acting)


def _fastest_measured(run, trained: dict, controller: Candidate) -> Iterator[Candidate]:
    """Yield the fastest graph that was measured while each controller trained on the real graph, as a candidate.

    A training without measurements yields nothing. The other entries are copied from the candidate `controller`.
    """
    for training in trained["trainings"]:
        best = training.get("measured")
        if best and (actions := best["actions"]):
            yield replace(
                controller, name="measured", state=follow(run.task, actions), actions=actions,
                seconds=trained["seconds"],
            )  # fmt: skip


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


def _dream_and_reality(run, trained: dict, tries: list) -> list[dict]:
    """Return one entry per temperature, with the returns of the controller in the dream and on the real graph.

    "real_return" sums the rewards of the greedy real episode over at most as many steps as the dream has.
    """
    result = []
    for training, tried in zip(trained["trainings"], tries, strict=True):
        episode, steps = tried.trajectories[0], training.get("dreamt_steps", run.config.dream.max_steps)
        result.append(
            {
                "temperature": training["temperature"],
                "dreamt_return": training["best_return"],
                "real_return": sum(episode.rewards[:steps]),
                "acting_seconds": episode.seconds,
            }
        )
    return result


def _compared_returns(run, model, environment, candidates: list[Candidate]) -> dict[str, float]:
    """Return real returns with which the return of a trained controller is compared, by name.

    "untrained" is the return of the greedy episode of the same controller with the same seed before any training.
    "greedy" and "random" are the returns of the paths of the controls. The dictionary is empty if there is no world
    model, or if the reward depends on whole episodes (`EpisodeReward`), which may need measurements.
    """
    reward = run.spec.make_reward()
    if model is None or isinstance(reward, EpisodeReward):
        return {}
    untrained = rollout(make_controller(run, model), environment, greedy=True, seed=run.config.seed)
    returns = {"untrained": float(sum(untrained.rewards))}
    for candidate in candidates:
        if candidate.name in ("greedy", "random"):
            states = states_along(run.task, candidate.actions)
            steps = zip(states, states[1:], strict=False)
            returns[candidate.name] = float(sum(reward(before, after, states[0]) for before, after in steps))
    return returns


def evaluate_world_model(run) -> dict:
    """Measure the errors of the world model on held-out random episodes and on episodes of trained controllers.

    Returns:
      The results of `worldmodel.fidelity.fidelity` by the name of the episodes: "held-out random", or the name of the
      controller's folder. The entry of a controller also has "improvement".
    """
    run.require("train-wm")
    config, model, folder = run.config, load_world_model(run), run.path / "eval"
    options = {"uncertainty_limit": config.dream.uncertainty_limit or 0.0, "seed": config.seed}
    training, held_out = _random_episodes(run)
    result = {"held-out random": fidelity(model, held_out, training, **options)}
    if run.results("train-controller") and not sees_candidates(run):
        environment = controllers_environment(run)
        for temperature in config.dream.temperatures:
            controller = trained_controller(run, model, temperature)
            episodes = list(islice(recorded(controller, environment, model, config.seed), 1 + config.eval.samples))
            figures = fidelity(model, episodes, training, **options)
            result[controller_folder(run, temperature).name] = figures | {"improvement": improvement(model, episodes)}
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
        own, episodes = run.random_episodes()
        for played in trained.get("iterations", [])[1:]:
            folder = run.path / "iterations" / str(played["iteration"]) / "episodes"
            episodes = episodes + read_episodes(folder, played["episodes"])
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
