"""The registry of exports with symbolic sizes: what it declares fits together. No exporter is needed."""

import re

import pytest

from benchmarks.exports.dynamic import DYNAMIC, at, draw

MODELS = pytest.mark.parametrize("name", DYNAMIC)


def symbols(shapes) -> set[str]:
    return {symbol for shape in shapes for size in shape for symbol in re.findall("[a-z_]+", str(size))}


@MODELS
def test_every_size_gives_each_symbol_of_the_inputs_a_value_and_no_other(name):
    model = DYNAMIC[name]
    declared = symbols(given.shape for given in model.inputs.values())
    assert all(set(sizes) == declared for sizes in model.sizes)


@MODELS
def test_eight_different_sizes_with_a_small_a_prime_and_a_larger_one_and_a_batch(name):
    model = DYNAMIC[name]
    primes = {size for size in range(2, 1024) if all(size % factor for factor in range(2, size))}
    assert len({tuple(sizes.items()) for sizes in model.sizes}) == 8
    assert model.typical["batch"] == 1 < max(sizes["batch"] for sizes in model.sizes)
    for symbol in model.typical:
        values = {sizes[symbol] for sizes in model.sizes}
        smallest = 0 if symbol == "past" else 1
        assert min(values) == smallest and max(values) > model.typical[symbol] and values & primes, symbol


@MODELS
def test_inputs_have_the_declared_shapes(name):
    model = DYNAMIC[name]
    drawn = draw(model.inputs, model.typical, seed=0)
    assert {key: array.shape for key, array in drawn.items()} == {
        key: at(given.shape, model.typical) for key, given in model.inputs.items()
    }


def test_a_size_may_be_an_expression_and_its_symbols_must_be_given():
    assert at(("batch", 12, "past + seq", "8*height"), {"batch": 2, "past": 3, "seq": 4, "height": 5}) == (2, 12, 7, 40)
    with pytest.raises(KeyError):
        at(("seq",), {"batch": 1})
