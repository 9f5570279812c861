"""How fast dreams are: steps a second of many side by side with a PPO policy inside, and the time of one step.

    python -m benchmarks.dream_speed [--model NAME] [--wm edits,mdn-rnn]

The bound is measured in the same run, for as many dreams: the matrix products of the policy and of the world model's
step only, with weights of the same sizes in one compiled program, and one copy of what a model predicts of a step (z, h
and both counts). A world model is trained on a few random episodes first; how well it predicts is of no concern here.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.fidelity import FULL, MODELS, WORLD_MODELS, Job
from benchmarks.harness import bar, each, finish, parser

JUDGES = ("worldmodel", "controllers/policies.py")

BATCHES = (64, 256, 1024)
QUICK = (  # as fast as well trained ones
    "world_model.mdn-rnn.encoder_steps=10", "world_model.mdn-rnn.steps=10", "world_model.graph-mdn.match_steps=200",
    "world_model.graph-mdn.node_steps=200",
)  # fmt: skip
STEPS_A_SECOND, SHARE_OF_BOUND, LATENCY_MS = 20_000, 0.7, 1.0
WARM_UPS = 5
# what Sonnet calls a matrix that inputs are multiplied with; embeddings are looked up
FACTORS = ("/w:0", "/w_i:0", "/w_h:0")


def measure(name: str, kind: str, parsed) -> dict:
    """One world model's figures."""
    job = Job(name, kind, FULL, parsed.seed, parsed)
    model, _ = job.learn(job.random_episodes()[1], 0)
    controller = job.controller(model)
    batches = {n: batched(job.dreams(model, n), controller, parsed) for n in BATCHES}
    for n, result in batches.items():
        result["bound"] = n / seconds_of(bound(model, controller, n), parsed.seconds)
        result["share_of_bound"] = result["steps_a_second"] / result["bound"]
    return {"batches": {str(n): result for n, result in batches.items()}, "single_ms": single(job, model, parsed)}


def batched(env, controller, parsed) -> dict:
    """Steps a second with sampled actions, and the shares of the policy and of the dream in the time."""
    rng, spent = np.random.default_rng(parsed.seed), np.zeros(2)
    observation, _ = env.reset(seed=parsed.seed)
    steps = -WARM_UPS
    while spent.sum() < parsed.seconds or steps <= 0:
        began = time.perf_counter()
        actions = controller.act(observation, greedy=False, rng=rng)
        acted = time.perf_counter()
        observation, *_ = env.step(actions)
        if steps >= 0:
            spent += acted - began, time.perf_counter() - acted
        steps += 1
    policy, dream = spent / spent.sum()
    return {"steps_a_second": steps * env.num_envs / spent.sum(), "policy_share": policy, "dream_share": dream}


def bound(model, controller, n: int) -> Callable[[], None]:
    """The least that a step of n dreams does."""
    import tensorflow as tf

    networks = [controller.actor, *getattr(model, "members", [])]  # a model without members multiplies no matrices
    weights = [v for network in networks for v in network.trainable_variables if v.name.endswith(FACTORS)]
    inputs = {size: tf.random.stateless_normal([n, size], (0, size)) for size in {v.shape[0] for v in weights}}
    widths = (
        (model.latent, np.float32), (model.hidden, np.float32), (model.spec.n_rules, np.int32),
        (len(model.match_classes), np.int32),
    )  # fmt: skip
    predicted = [np.ones((n, width), dtype) for width, dtype in widths]

    @tf.function(autograph=False)
    def products():
        return [tf.matmul(inputs[v.shape[0]], v) for v in weights]

    def least() -> None:
        products()
        for array in predicted:
            array.copy()

    return least


def seconds_of(work: Callable[[], None], seconds: float) -> float:
    """Seconds that one call takes, in the mean of all calls that fit."""
    for _ in range(WARM_UPS):
        work()
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        work()
        calls += 1
    return (time.perf_counter() - began) / calls


def single(job: Job, model, parsed) -> dict:
    """Milliseconds of one step of one dream, without a policy: valid actions, drawn before the clock starts."""
    env, rng, times = job.dream(model), np.random.default_rng(parsed.seed), []
    observation, _ = env.reset(seed=parsed.seed)
    while sum(times) < parsed.seconds:
        counts = observation["counts"]
        xfer_id = rng.choice(np.flatnonzero(counts[:-1])) if counts[:-1].any() else job.task.no_op
        action = np.array([xfer_id, rng.integers(counts[xfer_id])])
        began = time.perf_counter()
        observation, _, terminated, truncated, _ = env.step(action)
        times.append(time.perf_counter() - began)
        if terminated or truncated:
            observation, _ = env.reset(seed=len(times))
    times = 1e3 * np.array(times[WARM_UPS:])
    return {"median": float(np.median(times)), "p95": float(np.quantile(times, 0.95)), "steps": len(times)}


def bars_of(kind: str, result: dict) -> list[dict]:
    """Of the number of dreams that is fastest."""
    fastest = max(result["batches"].values(), key=lambda batch: batch["steps_a_second"])
    rate, share, single_ms = fastest["steps_a_second"], fastest["share_of_bound"], result["single_ms"]["median"]
    return [
        bar(f"{kind}: dream steps, policy inside", rate, "a second", f"≥ {STEPS_A_SECOND}", rate >= STEPS_A_SECOND),
        bar(f"{kind}: of the bound measured in this run", share, "", f"≥ {SHARE_OF_BOUND}", share >= SHARE_OF_BOUND),
        bar(f"{kind}: a single dream step, median", single_ms, "ms", f"≤ {LATENCY_MS:g}", single_ms <= LATENCY_MS),
    ]


def table(figures: dict) -> str:
    lines = [
        "| world model | dreams | steps a second | bound | share | of the time, policy "
        "| one step of one dream, ms (median, 95 %) |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for kind, result in figures["world_models"].items():
        one = "{median:.3f}, {p95:.3f}".format(**result["single_ms"])
        for n, batch in result["batches"].items():
            rates = f"{batch['steps_a_second']:.0f} | {batch['bound']:.0f}"
            shares = f"{batch['share_of_bound']:.2f} | {batch['policy_share']:.2f}"
            lines.append(f"| {kind} | {n} | {rates} | {shares} | {one} |")
    return "\n".join(lines)


def main() -> int:
    arguments = parser(__doc__, "runs/dream_speed")
    arguments.add_argument("--model", default="bert_base", choices=MODELS)
    arguments.add_argument(
        "--wm", type=lambda text: text.split(","), default=list(WORLD_MODELS), metavar="NAMES",
        help="world models, with commas between them",
    )  # fmt: skip
    arguments.add_argument(
        "--interactions", type=int, default=2000, help="random ones, that the world models learn from"
    )
    arguments.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    arguments.add_argument("--threads", type=int, default=2, help="TensorFlow's")
    arguments.add_argument("--cost", default="analytic")
    arguments.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    parsed = arguments.parse_args()
    parsed.controller, parsed.iterations, parsed.workers = None, 1, 1
    parsed.overrides = [*QUICK, f"world_model.threads={parsed.threads}", "controller.name=ppo"]
    results = each(
        [f"{parsed.model}-{kind}" for kind in parsed.wm],
        parsed.folder / "results",
        lambda job: measure(parsed.model, job.removeprefix(f"{parsed.model}-"), parsed),
    )
    figures = {
        "model": parsed.model,
        "world_models": {job.removeprefix(f"{parsed.model}-"): result for job, result in results.items()},
    }
    if parsed.table:
        print(table(figures))
        return 0
    return finish(
        "dream_speed", parsed, figures, [b for kind, f in figures["world_models"].items() for b in bars_of(kind, f)]
    )


if __name__ == "__main__":
    sys.exit(main())
