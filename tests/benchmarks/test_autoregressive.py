"""The decoder that asks anew for every node: its probabilities, on graphs so small that all orders can be written out,
what it draws, and that its training goes on after a kill."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import autoregressive, ordering
from benchmarks.autoregressive import Decoder, drawn, peaks
from benchmarks.learned_orders import instance_of
from controllers.topoformer.network import choices
from controllers.topoformer.observation import observe
from controllers.topoformer.reinforce import Batch
from rlflow.tasks.ordering import Orders
from tests.controllers.topoformer.graphs import TINY, instance
from tests.memory.small import all_orders, small


def network(seed=0, attends="seven"):
    return Decoder(replace(TINY, attends=attends), instance(12, 0), seed).networks.learner


def probabilities(one, seen, orders: np.ndarray) -> np.ndarray:
    log_p = one.log_probabilities(one.encoded(seen), orders, seen.edges, seen.sizes)
    return np.exp(log_p.numpy().astype(float))


@pytest.mark.parametrize("seed", range(4))
def test_the_probabilities_of_all_orders_add_up_to_one(seed):
    problem = small(seed)
    seen = observe([Orders(problem, np.arange(6)).arrays()])
    chances = probabilities(network(seed), seen, all_orders(problem)[None])
    assert chances.sum() == pytest.approx(1, abs=1e-5) and (chances > 0).all()


def test_orders_are_drawn_as_often_as_they_are_probable():
    problem, draws, one = small(1), 20_000, network()
    seen, orders = observe([Orders(problem, np.arange(6)).arrays()]), all_orders(problem)
    expected = probabilities(one, seen, orders[None])[0]
    number = {tuple(order): k for k, order in enumerate(orders.tolist())}
    samples, log_p = one.sampled(seen, draws, np.random.default_rng(0))
    which = [number[tuple(order)] for order in samples[0].tolist()]
    shares = np.bincount(which, minlength=len(orders)) / draws
    assert len(orders) > 5
    assert (abs(shares - expected) < 4.5 * np.sqrt(expected * (1 - expected) / draws) + 1e-9).all()
    np.testing.assert_allclose(np.exp(log_p[0]), expected[which], rtol=1e-4)


@pytest.mark.parametrize("attends", ordering.ENCODERS)
def test_a_greedy_order_runs_the_most_probable_node_at_every_step(attends):
    """At each step no other ready node has a larger logit, as TensorFlow sees it."""
    one, seen = network(attends=attends), observe([instance(17, 0).arrays(), instance(30, 1).arrays()])
    orders, encoded = one.greedy(seen), one.encoded(seen)
    width, ready = encoded.nodes.shape[-1], choices(orders[:, None], seen.edges, seen.sizes)[:, 0]
    ran = np.take_along_axis(encoded.nodes.numpy(), orders[:, :-1, None], axis=1)
    last = np.concatenate([np.broadcast_to(one.module.start.numpy(), (2, 1, width)), ran], axis=1)
    mean = np.array([last[:, : step + 1].mean(axis=1) for step in range(30)]).swapaxes(0, 1)
    logits = one.module.logits(encoded, last, mean.astype(np.float32), ready).numpy()
    chosen = np.take_along_axis(logits, orders[..., None], axis=2)[..., 0]
    assert (chosen >= logits.max(axis=2) - 1e-4).all()
    assert np.unique(logits[0, :17].round(3)).size > 17


def test_drawn_orders_are_orders_and_graphs_beside_them_change_nothing():
    one, problems = network(), [instance(10, 0), instance(17, 1)]
    both, first = (observe([each.arrays() for each in some]) for some in (problems, problems[:1]))
    orders, log_p = one.sampled(both, 6, np.random.default_rng(0))
    assert problems[0].problem.are_orders(orders[0, :, :10]).all() and problems[1].problem.are_orders(orders[1]).all()
    assert (orders[0, :, 10:] == np.arange(10, 17)).all()
    np.testing.assert_allclose(np.exp(log_p[:1]), probabilities(one, first, orders[:1, :, :10]), rtol=1e-3)
    assert np.array_equal(one.greedy(both)[0, :10], one.greedy(first)[0])
    assert len(np.unique(orders[1], axis=0)) > 1


def test_it_learns(tmp_path):
    """On graphs that it has never seen the orders that it draws need less than they did untrained."""
    controller = Decoder(replace(TINY, epochs=2), instance(12, 0))
    learner, fresh = controller.networks.learner, Batch([instance(16, 1000 + seed) for seed in range(150)])

    def costs():
        return fresh.costs(learner.sampled(fresh.seen, 8, np.random.default_rng(0))[0]).mean(axis=1)

    before = costs()
    controller.train(instance(12, 0), 0, tmp_path)
    gains = 1 - costs() / before
    assert gains.mean() > 4 * gains.std() / np.sqrt(len(gains)) and gains.mean() > 0.02


def test_a_killed_training_goes_on_to_the_same_bytes(tmp_path):
    config, one = replace(TINY, steps=3, evaluation_graphs=10), instance(12, 0)
    Decoder(config, one).train(one, 0, tmp_path / "whole")

    def kill(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Decoder(config, one).train(one, 0, tmp_path / "killed", progress=kill)
    whole, killed = (tmp_path / folder / "controller.npz" for folder in ("whole", "killed"))
    assert killed.read_bytes() != whole.read_bytes()
    Decoder(config, one).train(one, 0, tmp_path / "killed")
    assert killed.read_bytes() == whole.read_bytes()


def test_the_part_keeps_its_networks_and_has_the_peaks_of_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr(autoregressive, "TopoformerConfig", lambda attends, epochs: replace(
        TINY, attends=attends, epochs=epochs, steps=2, evaluation_graphs=4))  # fmt: skip
    arguments = ordering.options(["--folder", str(tmp_path), "--epochs", "1", "--learned", "1", "--trainings", "2"])
    names, work = ordering.learned_parts(arguments, {})["autoregressive"]
    assert names == [f"{n}-0-{t}-{kind}" for t in (0, 1) for kind in ("both-ways", "seven") for n in (500, 1000)]
    result, one = work("20-3-1-both-ways"), instance_of(20, 3)
    trained = Decoder.trained(tmp_path / "networks" / "autoregressive-both-ways-1-1", one).networks.best
    seen = observe([one.arrays()])
    greedy = drawn(trained.module, trained.encoded(seen), seen, 1)[0]
    assert result["greedy"]["peak"] == one.problem.peaks(greedy).min() == peaks(trained, one, 3)["greedy"]["peak"]
    assert result["sample"]["peak"] == peaks(trained, one, 3)["sample"]["peak"]
    assert all(one["seconds"] > 0 for one in result.values())


def test_its_table_compares_with_the_full_network():
    def peak(value, seconds=1.0):
        return {method: {"peak": value, "seconds": seconds} for method in ("greedy", "sample")}

    full = {"500-0-0-seven": peak(90), "500-0-1-seven": peak(110), "1000-0-0-seven": peak(200, 3)}
    anew = {"500-0-0-both-ways": peak(104), "1000-0-0-both-ways": peak(250, 7), "1000-0-1-both-ways": peak(250, 8)}
    rows = ordering.autoregressive_table({"ablations": full, "autoregressive": anew}).splitlines()[2:]
    assert [row.strip("| ").split(" | ")[1:] for row in rows] == [
        ["1", "4.00", "4.00", "25.00 ± 0.00", "25.00 ± 0.00", "7.5"],
        ["0", "–", "–", "–", "–", "–"],
        ["2", "0.00 ± 127.10", "0.00 ± 127.10", "0.00", "0.00", "3.0"],
    ]
    assert "–" in ordering.autoregressive_table({"ablations": {}})
