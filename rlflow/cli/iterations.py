"""The iterations of learning a world model in a run folder: iterations/K/ holds what iteration K left."""

from controllers.recording import Player, collect
from rlflow.cli.curves import draw_iterations
from rlflow.cli.learning import learn_to_act, learn_world_model
from rlflow.cli.wiring import controllers_environment, load_world_model
from rlflow.common.files import copy_file
from rlflow.common.messages import progress_bar, say


class RunIterations:
    """What an iteration is made of: the `Steps` of controllers/iterations.py."""

    def __init__(self, run):
        self.run, self.path, self.done = run, run.begin_iterations(), []

    def learn(self, number: int, episodes) -> dict:
        """The world model of the last iteration becomes that of the run."""
        folder = self.path / str(number) / "world-model"
        results = learn_world_model(self.run, episodes, folder, f"iteration-{number}-train-wm")
        if number == self.run.config.iterations.count:
            whole = [file for file in folder.iterdir() if not file.name.startswith(".")]  # without half-written ones
            for file in sorted(whole):
                copy_file(file, self.run.path / "world-model" / file.name)
        return results

    def model(self, number: int):
        return load_world_model(self.run, self.path / str(number))

    def dream(self, number: int, model) -> tuple:
        config = self.run.config
        folder, name = self.path / str(number) / "controller", f"iteration-{number}-{config.controller.name}"
        controller, results = learn_to_act(self.run, model, config.dream.temperatures[0], folder, name)
        return controller, results["best_return"]

    def play(self, number: int, controller, model, interactions: int) -> list:
        config = self.run.config
        player = Player(controller, controllers_environment(self.run), model)
        folder, seed = self.path / str(number) / "episodes", (config.seed, number)
        with progress_bar(interactions, f"iteration {number}", "interaction") as bar:
            return collect(player, folder, interactions, config.collect.episodes, seed, bar)

    def report(self, result: dict) -> None:
        """A line, and curves, about an entry of "iterations" in the results of `learn_in_iterations`."""
        self.done.append(result)
        draw_iterations(self.run, self.done)
        _say(result)


def _say(result: dict) -> None:
    before, after = (_percent(result[key]["improvement"]["relative_error"]) for key in ("before", "after"))
    say(
        f"iteration {result['iteration']}: {result['episodes']} episodes of the controller, "
        f"{result['interactions']} interactions; the world model was {before} off about what they gain, now {after}"
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
