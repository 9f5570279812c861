"""Leaving out options that no cheapest choice needs."""

from collections.abc import Iterable

from rlflow.search.saturation.options import Option, in_order, makers_of


def reduced(options: list[Option], wanted: frozenset[int]) -> list[Option]:
    while True:
        before = len(options)
        options = _unbeaten(_useful(options, wanted))
        if len(options) == before:
            return options


def _useful(options: list[Option], wanted: frozenset[int]) -> list[Option]:
    """Those that can be computed and lead to what is wanted, in an order in which they can be computed."""
    options = in_order(options)
    makers = makers_of(options)
    reached, stack = set(wanted), list(wanted)
    while stack:
        for option in makers.get(stack.pop(), ()):
            new = [c for c in option.needs if c not in reached]
            reached.update(new)
            stack += new
    return [option for option in options if not reached.isdisjoint(option.makes)]


class Requirements:
    """What a class, or an option, cannot be computed without. Sets are whole numbers, a bit for each class.

    The largest solution of: a class cannot do without itself and what none of its options can do without; an option not
    without what any of its needs cannot. `options` must be in an order in which they can be computed.
    """

    def __init__(self, options: list[Option]):
        makers = makers_of(options)
        self._bit = {c: 1 << position for position, c in enumerate(makers)}
        self._of_class = dict.fromkeys(makers, -1)  # all there is
        changed = True
        while changed:
            changed = False
            for c, makes_it in makers.items():
                bits = -1
                for option in makes_it:
                    bits &= self.all(option.needs)
                bits |= self._bit[c]
                if bits != self._of_class[c]:
                    self._of_class[c], changed = bits, True

    def all(self, classes: Iterable[int]) -> int:
        bits = 0
        for c in classes:
            bits |= self._of_class[c]
        return bits

    def exactly(self, classes: Iterable[int]) -> int:
        return sum(self._bit[c] for c in set(classes))

    def of(self, classes: Iterable[int]) -> set[int]:
        bits = self.all(classes)
        return {c for c, bit in self._bit.items() if bits & bit}

    def is_circular(self, option: Option) -> bool:
        """Whether all that the option gives would be there before it could be computed."""
        bits = self.all(option.needs)
        return all(bits & self._bit[c] for c in option.makes)


def _unbeaten(options: list[Option]) -> list[Option]:
    """Without those that are circular or beaten; of equally good ones the first stays.

    An option is beaten by one that gives at least the same, costs no more, and needs only what the option cannot do
    without.
    """
    musts = Requirements(options)
    options = [option for option in options if not musts.is_circular(option)]
    needs = {option: musts.exactly(option.needs) for option in options}
    makers, beaten = makers_of(options), set()
    for option in reversed(options):
        there = musts.all(option.needs)
        for other in makers[option.makes[0]]:
            if (
                other is not option and other not in beaten and other.cost <= option.cost
                and needs[other] & ~there == 0 and set(option.makes) <= set(other.makes)
            ):  # fmt: skip
                beaten.add(option)
                break
    return [option for option in options if option not in beaten]
