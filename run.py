"""The command line of RLFlow: subcommands → config → one stage. `python run.py --help` teaches it."""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.files import check_writable, read_json, write_json
from rlflow.common.progress import progress_bar, say

LEARNING = {"collect", "world_model", "iterations", "dream", "controller"}  # groups of options that say that `optimise` learns
STAGES = ("collect", "train-wm", "train-controller", "eval")
FRESH = 32  # random episodes that a world model is judged on where its training kept none
MEASURED = Path(__file__).parent / "docs" / "results" / "families.json"  # by `python -m benchmarks.families --json`

DESCRIPTION = """\
RLFlow makes an ONNX model faster by proved substitutions, and learns how in a dream.

One command:    python run.py optimise MODEL.onnx --out FASTER.onnx      (Ctrl-C: the best so far)
Stage by stage: python run.py collect          --run runs/x --model MODEL.onnx   (or a zoo name)
                python run.py train-wm         --run runs/x
                python run.py train-controller --run runs/x
                python run.py eval             --run runs/x
Watch:          tensorboard --logdir runs/x

Every stage can be killed and started again: it goes on where it stopped. Options stand in
configs/default.yaml; change them with --config FILE.yaml or KEY=VALUE, e.g. controller.name=cma-es."""


SEARCHING = """\
Looks for a cheaper graph with one search, without learning: a model in, a faster one out.

    python run.py search --method beam --model MODEL.onnx --out FASTER.onnx --seconds 60 --measure

  beam         chains of substitutions at one place, a loss first if need be: the one to try first
  annealing    random substitutions near by, losses accepted less and less; goes on as long as it may
  greedy       always the substitution that gains most; ends within seconds
  descent      what a roofline promises most is tried first; times fewer operators than the others before it has something
  best-first   first the graph that could become the cheapest
  taso         the backtracking search of TASO, the control
  random       random play, the other control

The cost is the configured one: cost.name=profiled (operators timed on this machine; the first search of a
model times its operators) or cost.name=analytic. Ctrl-C ends the search with the best so far. The result is
checked to be equal to the original; FASTER.receipt.json repeats it with `python run.py replay`."""


OPTIMISING = """\
Makes a model faster: searches on the real graph (a descent that tries first what a roofline promises, then greedy, beam and
annealing), checks that what was found is equal, measures it against the original and writes what is best; a file that is measured
to be slower than the original never.

--seconds S is for the whole command (default: 120, and 900 where it learns). Ctrl-C or SIGTERM writes the best so far, checked and
measured in short; once more leaves at once. What is known lies in DIR/found.json, so that the same command goes on after
whatever happened, and with more seconds looks further.

--learn: after the searches a world model learns from random episodes, a controller learns in its dream and acts on the real
graph (collect, train-wm, train-controller, eval); the best of all is written. --iterations, and every option of these
stages, say so too."""


SWEEPING = """\
Runs a sweep: every combination of some options (or so many that a sampler proposes), each with several seeds.

  python run.py sweep configs/sweeps/temperature.yaml --run runs/temperature

A sweep file says `model`, `base` (options of all trials), `parameters` (option: list, or {low, high, log} for samplers; or a
name of one's own with cases {NAME: {OPTION: value}}), `seeds`, `sampler` (grid, random or tpe, with `trials` and `sampler_seed`),
`pruner` (none, or median: a trial that is behind after its first seeds gets no more), `objective` ({figure, direction}),
`executor` (local or ray) and `workers`. Each run is a run folder in DIR/trials; what runs have in common (episodes, world
models) is made once, in DIR/shared. Killed at any moment, the same command goes on, and so does one with a longer file.

DIR/report.md has the table and plots, trials.csv and trials.json one row a run, optuna.db Optuna's study;
`tensorboard --logdir DIR/tensorboard` shows the HParams view."""


ITERATIONS = """.

--iterations N: random play seldom comes where a controller goes, and a dream that promises too much there misleads it.
So in every iteration after the first a controller learns in the dream so far and plays the real graph, and the world
model learns from that too. All real interactions together stay below iterations.interactions; `collect` plays the first
of them. Each iteration tells how far the dream was off about the controller's own episodes, before and after it learnt
from them. Everything of an iteration lies in DIR/iterations; a killed command goes on there."""


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    parsed, rest = parser.parse_known_args(arguments)
    wrong = [text for text in rest if text.startswith("-") or "=" not in text]
    if wrong or (rest and "config" not in parsed):
        parser.error(f"unrecognized arguments: {' '.join(wrong or rest)}")
    parsed.overrides = rest
    try:
        for path in (parsed.json, getattr(parsed, "out", None)):
            if path:
                check_writable(path)
        results = parsed.function(parsed)
        if parsed.json:
            write_json(parsed.json, results)
        return int(results.get("ok") is False)  # `validate`: the question was answered, with no
    except RLFlowError as error:
        if parsed.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # a mistake of ours, but nobody is helped by a page of text
        if parsed.debug:
            raise
        text = " ".join(str(error).split())[:300]
        print(f"error: unexpected {type(error).__name__}: {text} (--debug shows where)", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function, text: str, run: bool = True) -> argparse.ArgumentParser:
        sub = add_command(commands, name, function, text)
        if run:
            sub.add_argument("--config", action="append", default=[], metavar="FILE", help="a YAML file on top of the defaults; repeatable")
            sub.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help="size of a symbolic dimension, e.g. input_ids=1x128 or batch=1; repeatable")
            sub.add_argument("--seed", type=int, help="decides every random choice")
            sub.epilog = "KEY=VALUE arguments change single options of configs/default.yaml, e.g. env.max_steps=50"
        return sub

    stages = {
        "collect": (collect, "play random episodes of the real environment and store them"),
        "train-wm": (train_world_model, "train the world model on the episodes (or online)"),
        "train-controller": (train_controller, "train the controller inside the dream"),
        "eval": (evaluate, "let the controller act on the real graph, with controls, checks and a report; or judge the world model"),
    }
    for name, (function, text) in stages.items():
        sub = command(name, evaluate_chosen if name == "eval" else in_run(function), text)
        sub.add_argument("--run", required=True, metavar="DIR", help="folder of the run; everything goes there")
        sub.add_argument("--model", help="a zoo name or the path of an ONNX file (once per run folder)")
        if name == "collect":
            sub.add_argument("--executor", metavar="NAME", help="local: processes of this machine; ray: the cluster of $RAY_ADDRESS, else one on this machine")
        if name == "train-wm":
            add_rounds(sub)
        if name == "eval":
            sub.add_argument("--what", choices=tuple(EVALUATIONS), default="controllers", help="controllers (the default), or world-model: how far its predictions are from reality")
    sub = command("optimise", optimise, "a model in, a faster one out: searches, with --learn all four stages too")
    sub.description = OPTIMISING
    sub.add_argument("model", metavar="MODEL", help="the path of an ONNX file or a zoo name")
    sub.add_argument("--out", required=True, metavar="FILE", help="where the optimised model goes")
    sub.add_argument("--run", metavar="DIR", help="folder of the run (default: FILE without suffix, plus .run)")
    sub.add_argument("--seconds", type=float, metavar="S", help="for the whole command (optimise.seconds)")
    sub.add_argument("--learn", action="store_true", help="a controller learns in the dream, too (optimise.learn=true)")
    add_rounds(sub)
    sub.add_argument("--exact", action="store_true", help="only substitutions that change no rounding: equal bit for bit (env.exact=true)")
    sub.add_argument("--standard-operators-only", action="store_true", help="no operators of ONNX Runtime's own: the model stays portable (env.standard_operators_only=true)")
    add_search(command)
    sub = command("sweep", sweep, "compare options: every combination, or what a sampler proposes, over several seeds", run=False)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.description = SWEEPING
    sub.add_argument("file", metavar="SWEEP.yaml", help="configs/sweeps/ has examples")
    sub.add_argument("--run", required=True, metavar="DIR", help="folder of the sweep; everything goes there")
    sub = command("report", report, "one report over several finished runs: models × controllers × seeds, as Markdown, PNG, CSV and one HTML page", run=False)
    sub.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs with a finished eval")
    sub.add_argument("--out", required=True, dest="folder", metavar="FOLDER", help="where the report goes")
    sub = command("bound", bound, "how far from the best a model is: what no graph that the substitutions make costs less than", run=False)
    sub.add_argument("--model", required=True, help="a zoo name or the path of an ONNX file")
    sub.add_argument("--seconds", type=float, default=600.0, metavar="S", help="in which an answer is wanted (default: 600)")
    sub.add_argument("--iterations", type=int, default=4, metavar="N", help="how many substitutions may need one another (default: 4)")
    sub.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help="size of a symbolic dimension; repeatable")
    sub = command("replay", replay, "repeat a receipt: the same model again, byte for byte", run=False)
    sub.add_argument("receipt", metavar="RECEIPT.json")
    sub.add_argument("--model", required=True, metavar="MODEL", help="the original ONNX file")
    sub.add_argument("--out", required=True, metavar="FILE", help="where the replayed model goes")
    sub = command("validate", validate_models, "whether two models are the same: structure, interface, numerics, receipt; exit status 1 if not", run=False)
    sub.add_argument("original", metavar="A.onnx", help="the original: a path or a zoo name")
    sub.add_argument("candidate", metavar="B.onnx", help="what must equal it: a path or a zoo name")
    sub.add_argument("--receipt", metavar="R.json", help="how B was made of A; names the substitution at which outputs part")
    sub.add_argument("--seed", type=int, action="append", metavar="N", help="of the inputs; repeatable (default: 0, 1 and 2)")
    sub.add_argument("--tolerance", type=float, default=1e-4, metavar="X", help="largest relative error of an output (default: 1e-4)")
    sub.add_argument("--exact", action="store_true", help="equal bit for bit, ONNX Runtime's own optimisations off")
    sub.add_argument("--threads", type=int, default=1, metavar="N", help="of ONNX Runtime (default: 1)")
    sub.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help="size of a symbolic dimension; repeatable")
    add_rules(commands.add_parser("rules", help="the substitutions: list them, explain them in a model, prove them, find new ones"))
    add_costs(commands.add_parser("costs", help="the timings of the profiled cost: show, export, clear, calibrate"))
    command("zoo", list_zoo, "list the models that need no download", run=False)
    return parser


def add_rounds(sub: argparse.ArgumentParser) -> None:
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.description += ITERATIONS
    sub.add_argument("--iterations", type=int, metavar="N", help="of learning the world model (iterations.count)")


def add_search(command) -> None:
    sub = command("search", search, "look for a cheaper graph with one search, without learning: a model in, a faster one out")
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.description = SEARCHING
    sub.add_argument("--method", required=True, metavar="NAME", help="random, greedy, taso, best-first, beam, annealing or descent")
    sub.add_argument("--model", required=True, help="a zoo name or the path of an ONNX file")
    sub.add_argument("--out", required=True, metavar="FILE", help="where the model goes; its receipt lies beside it")
    sub.add_argument("--seconds", type=float, metavar="S", help="after which the best so far is taken (search.seconds)")
    sub.add_argument("--measure", action="store_true", help="measure the result against the original (eval.measure_seconds); a slower one is not delivered")


def add_command(commands, name: str, function, text: str) -> argparse.ArgumentParser:
    """A command with the two arguments that all have."""
    sub = commands.add_parser(name, help=text, description=text)
    sub.set_defaults(function=function)
    sub.add_argument("--json", metavar="FILE", help="write the results as JSON")
    sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return sub


def add_costs(parser: argparse.ArgumentParser) -> None:
    """`costs show`, `costs export`, `costs clear`, `costs calibrate`, `costs fit`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function, text: str) -> argparse.ArgumentParser:
        sub = add_command(commands, name, function, text)
        sub.add_argument("--database", metavar="FILE", help="the SQLite file (default: the user's own, as for cost.database=null)")
        return sub

    def choice(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--threads", type=int, metavar="N", help="timings with N threads alone")
        sub.add_argument("--machine", metavar="TEXT", help="timings of machines whose name holds the text alone")
        return sub

    choice(command("show", show_costs, "how many kernels of each operator have a timing, and how long they take"))
    sub = choice(command("export", export_costs, "all timings as a table"))
    sub.add_argument("--out", required=True, metavar="FILE", help="where they go: NAME.csv or NAME.json")
    sub = choice(command("clear", clear_costs, "delete timings, so that they are taken anew"))
    sub.add_argument("--yes", action="store_true", help="all of them, where neither --threads nor --machine chooses")
    sub = command("calibrate", calibrate_costs, "measure what a FLOP, a byte and a launch cost on this machine (for cost.name=roofline)")
    sub.add_argument("--threads", type=int, default=1, metavar="N", help="with N threads")
    sub = command("fit", fit_costs, "learn from measured graphs how far the profiled cost is off (for cost.name=corrected)")
    sub.add_argument("measurements", metavar="FILE", help="what `python -m benchmarks.cost_trust --json FILE` wrote on this machine")


def add_rules(parser: argparse.ArgumentParser) -> None:
    """`rules list`, `rules explain`, `rules picture`, `rules docs`, `rules prove`, `rules enumerate`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = partial(add_command, commands)
    command("list", list_rules, "list the substitutions")
    sub = command("explain", explain_rules, "what fires where in a model, and the nearest miss of each rule with its reason")
    sub.add_argument("model", metavar="MODEL", help="the path of an ONNX file or a zoo name")
    sub.add_argument("--rule", action="append", default=[], metavar="NAME", help="this rule alone; repeatable")
    sub.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help="size of a symbolic dimension; repeatable")
    sub = command("picture", picture_rule, "one substitution as a Mermaid diagram")
    sub.add_argument("name", metavar="NAME")
    sub = command("docs", document_rules, "the substitutions as a page in Markdown, with a picture of each family")
    sub.add_argument("--out", metavar="FILE", help="where the page goes; docs/RULES.md is made so")
    sub = command("prove", prove_rules, "prove the substitutions anew")
    sub.add_argument("names", nargs="*", metavar="NAME", help="these rules alone")
    sub.add_argument("--workers", type=int, default=0, metavar="N", help="processes; 0 for one a core")
    sub = command("enumerate", enumerate_rules, "find substitutions by machine: graphs of few operators that are equal")
    sub.add_argument("--operators", type=int, default=4, metavar="N", help="operators of a side, at most")
    sub.add_argument("--folder", metavar="DIR", help="where checkpoints are kept; the same command goes on from there")
    sub.add_argument("--workers", type=int, default=2, metavar="N", help="processes")
    sub.add_argument("--seconds", type=float, default=1800.0, metavar="S", help="after which no further candidate is looked at")
    sub.add_argument("--out", metavar="FILE", help="where the rules go")


def in_run(function):
    """A stage as a command: opens the run folder, runs the stage, prints where the results are."""

    def run_stage(parsed) -> dict:
        return function(open_run(parsed, parsed.run))

    return run_stage


def open_run(parsed, folder):
    from rlflow.runs.config import groups_of, parse_shapes
    from rlflow.runs.folder import RunFolder

    executor = getattr(parsed, "executor", None)  # of `collect` alone
    overrides = parsed.overrides + ([f"collect.executor={executor}"] if executor else [])
    iterations = getattr(parsed, "iterations", None)  # of `train-wm` and `optimise`
    overrides += [f"iterations.count={iterations}"] if iterations is not None else []
    if "learn" in parsed:  # `optimise`
        overrides += [f"optimise.seconds={parsed.seconds}"] if parsed.seconds is not None else []
        learns = parsed.learn or iterations is not None or LEARNING & groups_of(parsed.config, parsed.overrides)
        overrides += ["optimise.learn=true"] if learns else []
    overrides += ["env.exact=true"] if getattr(parsed, "exact", False) else []  # of `optimise` alone
    overrides += ["env.standard_operators_only=true"] if getattr(parsed, "standard_operators_only", False) else []
    return RunFolder.open(
        folder, parsed.model, parsed.config, overrides, parse_shapes(parsed.shape), parsed.seed, check_names
    )


def check_names(config) -> None:
    """Refuses what names nothing before anything is done with it. Imports no TensorFlow."""
    from controllers import CONTROLLERS
    from rlflow.collect.executors import EXECUTORS
    from rlflow.costs import COSTS
    from rlflow.env.rewards import REWARDS
    from rlflow.rules.language import load_rules
    from worldmodel import WORLD_MODELS
    from worldmodel.config import world_model_config

    chosen = [
        (CONTROLLERS, config.controller.name), (COSTS, config.cost.name), (REWARDS, config.env.reward),
        (EXECUTORS, config.collect.executor), (WORLD_MODELS, config.world_model.name),
    ]  # fmt: skip
    for registry, name in chosen:
        registry.check(name)
    load_rules(list(config.env.rules))
    world_model_config(config.world_model)
    if config.iterations.count > 1 and config.world_model.mode == "online":
        raise RLFlowError("iterations need episodes on disk: world_model.mode=offline")
    if config.iterations.count > 1 and config.controller.train_on == "real":
        raise RLFlowError("in iterations controllers learn in the dream: controller.train_on=dream")


# -- stages ----------------------------------------------------------------------------------------


def collect(run) -> dict:
    """Random episodes of the real environment, on disk."""
    from rlflow.collect.rollouts import collect as play

    options = run.config.collect

    def work() -> dict:
        with progress_bar(options.episodes, "collect", "episode") as bar, events(run, "collect") as writer:
            return play(
                run.env_spec(), run.path / "episodes", options.episodes, run.config.workers, run.config.seed, bar,
                writer.scalars, options.executor,
            )  # fmt: skip

    results = run.stage("collect", work)
    say(f"collected {results['episodes']} episodes, {results['interactions']} interactions, in {run.path / 'episodes'}")
    return results


def train_world_model(run) -> dict:
    """The world model, from disk or online; in several iterations, from the episodes of controllers too."""
    from rlflow.collect.rollouts import online_batches
    from worldmodel.fidelity_report import markdown_table

    spec, options = run.env_spec(), run.config.iterations

    def stream(batch, first):
        return online_batches(spec, batch, run.config.workers, run.config.seed, first, run.config.collect.executor)

    def work() -> dict:
        from controllers.iterations import learn_in_iterations

        episodes = stream if run.config.world_model.mode == "online" else run.random_episodes()[1]
        if options.count == 1:
            return learn_world_model(run, episodes, run.path / "world-model")
        return learn_in_iterations(RunIterations(run), episodes, options.count, options.interactions, run.config.controller.max_steps, run.config.seed, report_iteration)

    results = run.stage("train-wm", work)
    if results["fidelity"]:
        say(markdown_table(results["fidelity"]))
    return results


def learn_world_model(run, source, folder: Path) -> dict:
    from worldmodel.base import UnpredictableRewardError
    from worldmodel.config import world_model_config
    from worldmodel.training import train

    config = world_model_config(run.config.world_model)
    with progress_bar(config.total_steps, "train-wm", "step") as bar, events(run, "train-wm") as writer:
        try:
            return train(config, run.task.encoding_spec, source, folder, run.config.seed, writer.scalars, bar)
        except UnpredictableRewardError as error:
            raise RLFlowError(f"env.reward={run.config.env.reward}: {error}") from error


class RunIterations:
    """What an iteration is made of (controllers/iterations.py), in a run folder: iterations/K/ holds what iteration K left."""

    def __init__(self, run):
        self.run, self.path = run, run.begin_iterations()

    def learn(self, number: int, episodes) -> dict:
        """The world model of the last iteration becomes that of the run."""
        from rlflow.common.files import copy_file

        folder = self.path / str(number) / "world-model"
        results = learn_world_model(self.run, episodes, folder)
        if number == self.run.config.iterations.count:
            for file in sorted(file for file in folder.iterdir() if not file.name.startswith(".")):  # without half-written ones
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
        from controllers.recording import Player, collect

        config = self.run.config
        player = Player(controller, controllers_environment(self.run), model)
        with progress_bar(interactions, f"iteration {number}", "interaction") as bar:
            return collect(player, self.path / str(number) / "episodes", interactions, config.collect.episodes, (config.seed, number), bar)


def report_iteration(result: dict) -> None:
    before, after = (f"{100 * error:.1f} %" if (error := result[key]["improvement"]["relative_error"]) is not None else "–" for key in ("before", "after"))
    say(
        f"iteration {result['iteration']}: {result['episodes']} episodes of the controller, {result['interactions']} interactions; the world model "
        f"was {before} off about what they gain, now {after}"
    )


def train_controller(run) -> dict:
    """One controller per temperature, inside the dream alone."""
    run.require("train-wm")
    config, model = run.config, load_world_model(run)

    def work() -> dict:
        result = []
        for temperature in config.dream.temperatures:
            folder = controller_folder(run, temperature)
            _, results = learn_to_act(run, model, temperature, folder, folder.name)
            result.append({"temperature": temperature, **results})
        return {"controller": config.controller.name, "trainings": result}

    results = run.stage("train-controller", work)
    for training in results["trainings"]:
        say(f"τ={training['temperature']:g}: dreamt return {training['best_return']:.3f}, stopped by {training['stop_reason']}")
    return results


def learn_to_act(run, model, temperature: float, folder: Path, name: str) -> tuple:
    """(the controller that learnt in the model's dreams, or on the real graph; what its training reports)."""
    from controllers.real_env import train_for_real
    from rlflow.env.rewriting import GraphRewriteEnv
    from worldmodel.dream import DreamVectorEnv
    from worldmodel.latent_env import LatentEnv

    dream, options, spec = run.config.dream, run.config.controller, run.env_spec()

    def make_env(n):
        return DreamVectorEnv(model, run.task.initial, n, dream.max_steps, temperature, dream.uncertainty_limit, dream.uncertainty_penalty)

    def make_real():
        return LatentEnv(GraphRewriteEnv(run.task, spec.make_reward(), spec.max_steps), model)

    controller = make_controller(run, model)
    with progress_bar(1, f"train-controller τ={temperature:g}", "iteration") as bar, events(run, name) as writer:
        def show(done, total):
            bar.total = total
            bar.update(done - bar.n)

        told = run.config.seed, folder, writer.scalars, show
        if options.train_on == "real":
            return controller, train_for_real(controller, make_real, options.interactions, *told)
        return controller, controller.train(make_env, *told)


def evaluate(run, result=None) -> dict:
    """The controller and its controls on the real graph; checks, measurement, receipt, report. found: what searches found before."""
    from controllers.evaluation import best_of
    from rlflow.collect.rollouts import best_random
    from rlflow.deliver.delivery import Candidate, follow
    from rlflow.search.greedy import greedy
    from worldmodel.latent_env import LatentEnv

    trained = run.require("train-controller")
    config, spec, model = run.config, run.env_spec(), load_world_model(run)
    options, task = config.eval, run.task

    def work() -> dict:
        real = LatentEnv(controllers_environment(run), model)
        started, tries, played = time.monotonic(), [], 0
        for temperature in config.dream.temperatures:
            controller = make_controller(run, model)
            controller.load(controller_folder(run, temperature))
            tries.append(best_of(controller, real, options.samples, config.seed))
            played += sum(len(trajectory.actions) for trajectory in tries[-1].trajectories)
        best = min(tries, key=lambda result: result.cost)
        for_real = trained["trainings"][0]["env_steps"] if config.controller.train_on == "real" else 0
        learnt = run.require("train-wm")["interactions"] + for_real + played
        candidates = [Candidate("controller", follow(task, best.actions), best.actions, learnt, time.monotonic() - started)]
        started = time.monotonic()
        descent = greedy(task.initial, options.greedy_steps, options.greedy_seconds)
        candidates.append(Candidate("greedy", descent.state, descent.actions, descent.interactions, time.monotonic() - started))
        started = time.monotonic()
        actions, interactions = best_random(task, run.path / "episodes", learnt, spec.max_steps, config.seed)
        candidates.append(Candidate("random", follow(task, actions), actions, interactions, time.monotonic() - started))
        if result is not None:
            names = [candidate.name for candidate in candidates]
            candidates += [candidate for candidate in result.candidates() if candidate.name not in names]
            result.offer(candidates[0])
        outcome = check_and_choose(run, candidates, run.path / "eval", options.measure_seconds)
        outcome["dreamt"] = [
            {
                "temperature": training["temperature"],
                "dreamt_return": training["best_return"],
                "real_return": sum(result.trajectories[0].rewards[: training.get("dreamt_steps", config.dream.max_steps)]),  # as long as the dream
                "acting_seconds": result.trajectories[0].seconds,
            }
            for training, result in zip(trained["trainings"], tries, strict=True)
        ]
        return outcome

    outcome = run.stage("eval", work)
    write_up(run, outcome)
    return outcome


def check_and_choose(run, candidates, folder: Path, measure_seconds: float, **options) -> dict:
    """What `deliver` makes of the candidates. options: further ones of `deliver`."""
    from rlflow.deliver.delivery import DeliveryOptions, deliver

    config = run.config
    checks = DeliveryOptions(
        list(config.eval.seeds), config.eval.tolerance, measure_seconds, config.eval.sessions, config.cost.threads, config.seed,
        config.env.exact,
    )  # fmt: skip
    return deliver(run.task, run.source, candidates, folder, checks, run.shapes, list(config.env.rules), **options)


def write_up(run, outcome: dict) -> None:
    """Events, pages and a line about what `check_and_choose` and the stages before left."""
    from rlflow.graph.onnx_runtime import machine
    from rlflow.reports.html import write_html
    from rlflow.reports.markdown import summary_line, write_report
    from worldmodel.curves import read_curves

    config, folder = run.config, run.path / "eval"
    for name, result in outcome["candidates"].items():
        with events(run, f"eval-{name}") as writer:
            for step, milliseconds in enumerate(result["path_ms"]):
                writer.scalars(step, {"eval/estimated_ms": milliseconds})
    stages = {name: result for name in ("search", *STAGES) if (result := run.results(name))}
    results = {
        "model": config.model, "seed": config.seed, "eval": outcome, "stages": stages, "machine": machine(),
        "versions": read_json(run.path / "versions.json"), "curves": read_curves(run.path / "tensorboard"),
    }  # fmt: skip
    write_report(folder, results)
    say(summary_line(outcome))
    say(f"model:  {outcome['optimised']}\nreport: {write_html(folder, results, run.task)}")


def evaluate_world_model(run) -> dict:
    """How well the world model predicts held-out random episodes, and those that the trained controllers play."""
    from itertools import islice

    from controllers.recording import recorded
    from worldmodel.fidelity import fidelity, improvement
    from worldmodel.fidelity_report import write_fidelity

    run.require("train-wm")
    config, model, folder = run.config, load_world_model(run), run.path / "eval"
    options = {"uncertainty_limit": config.dream.uncertainty_limit or 0.0, "seed": config.seed}
    training, held_out = random_episodes(run)
    result = {"held-out random": fidelity(model, held_out, training, **options)}
    if run.results("train-controller"):
        real = controllers_environment(run)
        for temperature in config.dream.temperatures:
            controller = make_controller(run, model)
            controller.load(controller_folder(run, temperature))
            episodes = list(islice(recorded(controller, real, model, config.seed), 1 + config.eval.samples))
            figures = fidelity(model, episodes, training, **options)
            result[controller_folder(run, temperature).name] = figures | {"improvement": improvement(model, episodes)}
    write_json(folder / "world-model.json", result)
    say(f"report: {write_fidelity(folder, result)}")
    return result


EVALUATIONS = {"controllers": evaluate, "world-model": evaluate_world_model}


def evaluate_chosen(parsed) -> dict:
    return in_run(EVALUATIONS[parsed.what])(parsed)


def optimise(parsed) -> dict:
    """The searches, with --learn the four stages, under one budget of time; the best file goes to --out, when stopped too."""
    from rlflow.deliver import anytime
    from rlflow.deliver.delivery import copy_model

    out, started = Path(parsed.out), time.monotonic()
    run = open_run(parsed, parsed.run or out.with_suffix(".run"))
    check_apart(run.source, out)
    config, options, results = run.config, run.config.optimise, {}
    if options.learn:
        make_controller_config(config)  # what is wrong with it is said now
    budget, result = anytime.Budget.of(options.seconds, options.learn, started), anytime.BestSoFar(run.task, run.path / "found.json")

    def choose(measure_seconds: float, go_on) -> dict:
        def work() -> dict:
            seconds = min(config.eval.measure_seconds, measure_seconds)
            return check_and_choose(run, result.candidates(), run.path / "eval", seconds, go_on=go_on) | {"dreamt": []}

        return run.stage("eval", work)

    def deliver_to_out() -> None:
        copy_model(Path(results["eval"]["optimised"]), out, same=results["eval"]["delivered"] == "original")
        copy_fault_report(results["eval"], out)

    try:
        with anytime.stoppable(budget.looking):
            results["search"] = run.stage("search", lambda: anytime.search_all(result, config.search, budget.searches, config.seed, budget.end))
            if options.learn:
                results |= learn(run, result)
            else:
                results["eval"] = choose(max(budget.left / 2, anytime.SHORT_MEASUREMENT), anytime.until_faster(budget))
            deliver_to_out()
    except KeyboardInterrupt as stop:
        if not run.task.cost_is_known:
            reason = f"stopped ({stop or 'interrupted'}) before all operators of the model were timed; the original is returned"
            copy_model(run.source, out, same=True)
            say(f"{reason}, in {out}; the same command goes on from there")
            return {"eval": {"candidates": {}, "delivered": "original", "reason": reason, "optimised": str(run.source)}}
        say(f"stopped ({stop or 'interrupted'}): {result}; it is checked and measured in short. Ctrl-C again leaves at once, with no file")
        results["eval"] = choose(anytime.SHORT_MEASUREMENT, anytime.first_equal)
        deliver_to_out()
    say(f"copied to {out}")
    if "train-wm" not in results:  # else `evaluate` has done so; the file comes before the pages about it
        write_up(run, results["eval"])
    return results


def learn(run, result) -> dict:
    """The four stages, in whose last the controller competes with what searches found."""
    results = {}
    for name, stage in zip(STAGES, (collect, train_world_model, train_controller, partial(evaluate, result=result)), strict=True):
        if name != "collect" or run.config.world_model.mode == "offline":
            results[name] = stage(run)
            say(f"{name} has ended: {result}")
    return results


def search(parsed) -> dict:
    """One search on the real graph; the checked result and its receipt."""
    from tempfile import TemporaryDirectory

    from rlflow.common.files import copy_file
    from rlflow.deliver.delivery import Candidate, copy_model
    from rlflow.search import SEARCHES
    from rlflow.search.search import Limits, run_search

    SEARCHES.check(parsed.method)
    parsed.overrides += [f"search.seconds={parsed.seconds}"] if parsed.seconds is not None else []
    out = Path(parsed.out)
    with TemporaryDirectory(prefix=".search-", dir=out.parent) as folder:
        run = open_run(parsed, folder)
        check_apart(run.source, out)
        config, options = run.config, run.config.search
        limits = Limits(options.seconds, options.interactions, options.memory_mb * 2**20)
        with progress_bar(None, parsed.method, " substitutions") as bar:
            answer = run_search(parsed.method, run.task.initial, limits, config.seed, bar, **options[parsed.method])
        candidate = Candidate(parsed.method, answer.state, answer.actions, answer.interactions, answer.seconds)
        outcome = check_and_choose(run, [candidate], Path(folder), config.eval.measure_seconds if parsed.measure else 0.0)
        copy_model(Path(outcome["optimised"]), out, same=outcome["delivered"] == "original")
        copy_fault_report(outcome, out)
        if outcome["delivered"] != "original":
            copy_file(Path(folder) / "receipt.json", out.with_suffix(".receipt.json"))
    result = outcome["candidates"][parsed.method]
    say(
        f"{parsed.method} stopped by '{answer.stop}': estimated {result['estimated_improvement_percent']:.2f} % lower, "
        f"{result['substitutions']} substitutions, {answer.interactions} interactions, {answer.seconds:.1f} s"
    )
    if result["measured"]:
        measured = result["measured"]
        say("measured {ratio:.3f} of the original's latency: {verdict}".format(**measured))
    say(f"{'the original' if outcome['delivered'] == 'original' else 'the result'} is in {out}: {outcome['reason']}")
    trace = [{"seconds": s, "interactions": n, "best_ps": ps} for s, n, ps in answer.trace]
    return {"method": parsed.method, "stop": answer.stop, "trace": trace, **outcome, "optimised": str(out)}


def sweep(parsed) -> dict:
    """All trials of a sweep; tables and pages are written after every block of trials."""
    from rlflow.runs.sweeps.file import load_sweep
    from rlflow.runs.sweeps.report import write_tables
    from rlflow.runs.sweeps.trials import run_sweep

    options, folder = load_sweep(parsed.file, check_names), Path(parsed.run)
    check_writable(folder / "report.md")
    results = {}

    def tell(trials) -> None:
        results.update(write_tables(folder, options, trials, Path(parsed.file).stem))
        show_parameters(folder / "tensorboard", options, results["rows"])

    run_sweep(options, folder, (sys.executable, str(Path(__file__).resolve())), tell)
    failed = sum(row["state"] == "failed" for row in results["rows"])
    say(f"report: {folder / 'report.md'}" + (f"; {failed} runs failed, the same command tries them again" if failed else ""))
    return {"ok": not failed, **results}


def show_parameters(folder: Path, options, rows: list[dict]) -> None:
    """TensorBoard's HParams view of the rows, written anew."""
    from shutil import rmtree

    from rlflow.runs.sweeps.runs import FIGURES
    from worldmodel.monitor import EventWriter

    rmtree(folder, ignore_errors=True)
    for row in rows:
        if row["state"] != "failed":
            name = f"trial-{row['trial']:04d}"
            with EventWriter(folder / f"{name}-seed-{row['seed']}") as writer:
                writer.parameters(name, {parameter.name: row[parameter.name] for parameter in options.parameters})
                writer.scalars(0, {figure: row[figure] for figure in FIGURES})


# -- other commands --------------------------------------------------------------------------------


def replay(parsed) -> dict:
    from rlflow.deliver.receipt import replay as repeat
    from rlflow.graph.onnx_writer import save_graph

    receipt = read_json(parsed.receipt)
    check_apart(parsed.model, parsed.out)
    save_graph(repeat(receipt, parsed.model), parsed.out)
    say(f"{len(receipt['actions'])} substitutions repeated; the model is the same, byte for byte: {parsed.out}")
    return {"substitutions": len(receipt["actions"]), "model_sha256": receipt["model_sha256"]}


def report(parsed) -> dict:
    from rlflow.reports.comparison import read_runs
    from rlflow.reports.comparison_report import write_comparison
    from worldmodel.curves import read_curves

    folder = Path(parsed.folder)
    check_writable(folder / "report.html")
    result = write_comparison(folder, read_runs([Path(run) for run in parsed.runs], read_curves))
    say(f"report: {folder / 'report.html'}")
    return result


def bound(parsed) -> dict:
    """The bound of equality saturation on the analytic cost, and the gaps of the original and of greedy's result."""
    from rlflow.costs.analytic import AnalyticCost
    from rlflow.env.state import Task
    from rlflow.graph.onnx_reader import load_graph
    from rlflow.rules.language import load_rules
    from rlflow.runs.config import parse_shapes
    from rlflow.search.bound import lower_bound
    from rlflow.search.greedy import greedy

    if not parsed.seconds > 0 or parsed.iterations < 1:
        raise RLFlowError("--seconds is above 0, --iterations at least 1")
    graph = load_graph(zoo_or_path(parsed.model), parse_shapes(parsed.shape))
    task, started = Task(graph, load_rules(), AnalyticCost()), time.monotonic()
    descent = greedy(task.initial, max_steps=1000, seconds=parsed.seconds / 4)
    with progress_bar(parsed.iterations, "bound", "iteration") as bar:
        def show(iterations, nodes):
            bar.set_postfix(operators=nodes)
            bar.update(iterations - bar.n)

        left = parsed.seconds - (time.monotonic() - started)
        result = lower_bound(task, left, [descent.state.graph], parsed.iterations, progress=show)
    results = {key: value for key, value in vars(result).items() if key != "best"}
    for name, cost_ps in (("original", task.initial.cost.runtime_ps), ("greedy", descent.state.cost.runtime_ps), ("best", result.best_ps)):
        results[name] = {"cost_ps": cost_ps, "gap": result.gap(cost_ps)}
        print(f"{name:9} {cost_ps / 1e9:12.6f} ms, at most {100 * result.gap(cost_ps):.3f} % from the best")
    print(f"bound     {result.lower_bound_ps / 1e9:12.6f} ms: {result.scope}")
    say(f"ended by '{result.stop}' after {result.iterations} iterations, {result.nodes} operators, {result.seconds:.1f} s")
    return results


def validate_models(parsed) -> dict:
    from rlflow.deliver.validate import validate
    from rlflow.runs.config import parse_shapes

    seeds = parsed.seed or (0, 1, 2)
    if min(seeds) < 0 or not parsed.tolerance >= 0 or parsed.threads < 1:
        raise RLFlowError("--seed and --tolerance are at least 0, --threads at least 1")
    original, candidate = map(zoo_or_path, (parsed.original, parsed.candidate))
    result = validate(
        original, candidate, seeds, 0.0 if parsed.exact else parsed.tolerance, parse_shapes(parsed.shape),
        parsed.threads, not parsed.exact, read_json(parsed.receipt) if parsed.receipt else None,
    )  # fmt: skip
    print(result)
    failures = len(result.failures())
    say("the two are the same" if result.ok else f"the two are NOT the same: {failures} of {len(result.findings)} findings failed")
    return result.to_dict()


def list_rules(parsed) -> dict:
    from rlflow.rules.exactness import exactness
    from rlflow.rules.language import load_rules

    rules = load_rules()
    for xfer_id, rule in enumerate(rules):
        print(f"{xfer_id:3}  {rule.family:12}  {exactness(rule):8}  {rule.name:36}  {rule.why}")
    listed = [
        {"name": rule.name, "family": rule.family, "exactness": exactness(rule), "why": rule.why, "text": rule.text} for rule in rules
    ]
    return {"hash": rules.hash, "rules": listed}


def explain_rules(parsed) -> dict:
    from rlflow.graph.onnx_reader import load_graph
    from rlflow.rules import explain
    from rlflow.rules.language import load_rules
    from rlflow.runs.config import parse_shapes

    rules = load_rules()
    for name in parsed.rule:
        rules.index(name)  # raises for one that there is not
    model = zoo_or_path(parsed.model)
    entries = explain.explain_rules(load_graph(model, parse_shapes(parsed.shape)), rules, parsed.rule)
    print(explain.as_text(entries, whole=bool(parsed.rule)))
    return {"rules": entries}


def picture_rule(parsed) -> dict:
    from rlflow.rules.language import load_rules
    from rlflow.rules.picture import picture

    rules = load_rules()
    drawn = picture(rules[rules.index(parsed.name)])
    print(drawn)
    return {"name": parsed.name, "mermaid": drawn}


def document_rules(parsed) -> dict:
    from rlflow.common.files import write_bytes
    from rlflow.rules.language import load_rules
    from rlflow.rules.page import page
    from rlflow.rules.prover.records import load_proofs, proof_of

    rules, proofs = load_rules(), load_proofs()
    proved = {rule.name: record for rule in rules if (record := proof_of(rule, proofs))}
    measured = read_json(MEASURED)["figures"]["families"] if MEASURED.exists() else {}
    text = page(rules, proved, measured)
    if parsed.out:
        write_bytes(parsed.out, text.encode())
    else:
        print(text)
    return {"hash": rules.hash, "page": text}


def prove_rules(parsed) -> dict:
    from rlflow.rules.language import load_rules
    from rlflow.rules.prover.prove import prove
    from rlflow.rules.prover.records import store_proofs

    def tell(result) -> None:
        if result.proof in ("all-shapes", "bounded"):
            store_proofs(rules, [result])
        print(f"{result.proof:12}  {result.name:36}  {result.seconds:6.2f} s  {result.bound or result.how}", flush=True)

    rules = load_rules()
    proofs = prove(rules, parsed.names, parsed.workers, tell)
    return {"hash": rules.hash, "rules": [proof.record() for proof in proofs]}


def enumerate_rules(parsed) -> dict:
    from dataclasses import asdict

    from rlflow.common.files import write_bytes
    from rlflow.rules.generator.enumerate import enumerate_rules

    report = enumerate_rules(parsed.operators, folder=parsed.folder, workers=parsed.workers, seconds=parsed.seconds)
    if not report.finished:
        say("not finished: the same command with --folder goes on from here")
    elif parsed.out:
        write_bytes(parsed.out, report.rules.encode())
    else:
        print(report.rules)
    return asdict(report)


def show_costs(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase, summary, summary_table

    result = summary(TimingDatabase(parsed.database).rows(parsed.threads, parsed.machine))
    print(summary_table(result))
    return {"operators": result}


def export_costs(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase, export

    rows = TimingDatabase(parsed.database).rows(parsed.threads, parsed.machine)
    export(rows, parsed.out)
    say(f"{len(rows)} timings in {parsed.out}")
    return {"timings": len(rows)}


def clear_costs(parsed) -> dict:
    from rlflow.costs.database import TimingDatabase

    if not parsed.yes and parsed.threads is None and parsed.machine is None:
        raise RLFlowError("this deletes every timing: say --yes, or choose with --threads or --machine")
    count = TimingDatabase(parsed.database).clear(parsed.threads, parsed.machine)
    say(f"{count} timings deleted")
    return {"deleted": count}


def calibrate_costs(parsed) -> dict:
    from rlflow.costs.calibrate import calibrate
    from rlflow.costs.database import TimingDatabase

    result = calibrate(TimingDatabase(parsed.database), parsed.threads)
    say(f"{result.flop} ps a FLOP, {result.byte} ps a byte, {result.launch} ps a launch, with {parsed.threads} threads")
    return {"threads": parsed.threads, **result._asdict()}


def fit_costs(parsed) -> dict:
    from rlflow.costs.corrected import correction_path, fit, read_measurements

    result, threads = read_measurements(parsed.measurements)
    correction, path = fit(result, threads), correction_path(threads, parsed.database)
    correction.save(path)
    error = f"; on models that it had not seen it was off by {100 * correction.error['mean']:.1f} % in the mean" if correction.error else ""
    say(f"learned from {correction.graphs} graphs of {correction.models} models, in {path}{error}")
    return {"models": correction.models, "graphs": correction.graphs, "error": correction.error}


def list_zoo(parsed) -> dict:
    from rlflow.zoo import ZOO

    for name in ZOO:
        print(f"{name:24}  {(ZOO.get(name).__doc__ or '').splitlines()[0]}")
    return {"models": list(ZOO)}


# -- wiring ----------------------------------------------------------------------------------------


def zoo_or_path(name: str):
    """The model of that name in the zoo; else the name, as a path."""
    from rlflow.zoo import ZOO, load

    return load(name) if name in ZOO else name


def events(run, name: str):
    from worldmodel.monitor import EventWriter

    return EventWriter(run.path / "tensorboard" / name)


def load_world_model(run, folder: Path | None = None):
    """The one in the folder, by default that of the run."""
    from worldmodel.config import option_key, world_model_config
    from worldmodel.training import load, prepare_tensorflow

    wanted = world_model_config(run.config.world_model)
    if wanted.uses_tensorflow:
        prepare_tensorflow(run.config.seed, wanted.threads)
    model = load((folder or run.path) / "world-model", run.task.encoding_spec)
    for name, value in model.config.to_dict().items():
        if name not in ("checkpoint_seconds", "threads") and getattr(wanted, name) != value:
            key = option_key(model.config, name)
            raise RLFlowError(
                f"the world model in {run.path} was trained with {key}={value}, not {getattr(wanted, name)}; "
                f"say {key}={value}, or use another --run"
            )
    return model


def copy_fault_report(outcome: dict, out: Path) -> None:
    """Puts it beside the file that is delivered, and takes away that of an earlier one."""
    from rlflow.common.files import copy_file

    beside = out.with_suffix(".fault-report.md")
    if outcome["fault_report"] is None:
        beside.unlink(missing_ok=True)
    else:
        copy_file(Path(outcome["fault_report"]), beside)


def check_apart(source: Path | str, out: Path | str) -> None:
    """Refuses to write a model where one of the files of the original lies."""
    from rlflow.graph.onnx_reader import model_files

    files = model_files(source)
    for target in (Path(out), Path(f"{out}.data")):
        if target.exists() and any(target.samefile(file) for file in files):
            raise RLFlowError(f"--out {out}: {target} is the model itself, which is never overwritten; name another file")


def random_episodes(run) -> tuple[list | None, list]:
    """(what the world model learnt from, random episodes of this run's model that it did not); the latter newly played if it kept none."""
    import numpy as np

    from rlflow.collect.episodes import read_episodes
    from rlflow.collect.rollouts import play_random
    from worldmodel.training import split_episodes

    config, spec, trained, training = run.config, run.env_spec(), run.require("train-wm"), None
    if config.world_model.mode == "offline" and config.world_model.holdout:
        own, episodes = run.random_episodes()
        for played in trained.get("iterations", [])[1:]:
            episodes = episodes + read_episodes(run.path / "iterations" / str(played["iteration"]) / "episodes", played["episodes"])
        training, held_out = split_episodes(episodes, config.world_model.holdout, config.seed)
        own = set(map(id, own))
        held_out = [episode for episode in held_out if id(episode) in own]
        if held_out:
            return training, held_out
    task, reward, unused = run.task, spec.make_reward(), trained["interactions"]
    return training, [play_random(task, reward, spec.max_steps, np.random.default_rng([config.seed, k]), k) for k in range(unused, unused + FRESH)]


def controllers_environment(run):
    """The real environment, in episodes as long as a controller's may be."""
    from rlflow.env.rewriting import GraphRewriteEnv

    return GraphRewriteEnv(run.task, run.env_spec().make_reward(), run.config.controller.max_steps)


def make_controller(run, model):
    from controllers import CONTROLLERS
    from worldmodel import spaces
    from worldmodel.training import prepare_tensorflow

    kind = CONTROLLERS.get(run.config.controller.name)
    if kind.uses_tensorflow:
        prepare_tensorflow(run.config.seed, run.config.world_model.threads)
    observation_space = spaces.observation_space(model)
    return kind(make_controller_config(run.config), observation_space, spaces.action_space(model.spec), run.config.seed)


def make_controller_config(config):
    from controllers.config import controller_config

    return controller_config(config)


def controller_folder(run, temperature: float) -> Path:
    options = run.config.controller
    return run.path / "controller" / f"{options.name}-{'real' if options.train_on == 'real' else format(temperature, 'g')}"


if __name__ == "__main__":
    sys.exit(main())
