"""Proofs of rules: both sides, written out by rlflow.prover.semantics, are the same numbers.

A rule is taken apart into cases (ranks, axes, flags, presence of attributes; see rlflow.prover.cases), in each of which
all sizes, strides and pads are symbols. What the left side and the conditions say is assumed, and the elements of the
two sides are compared at an index that is a symbol too: such a case holds for all sizes. Where symbols do not reach,
numbers are put in their place; one that tells the sides apart refutes the rule.
"""

import hashlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import z3

from rlflow.errors import RLFlowError, first_line
from rlflow.files import write_json
from rlflow.prover.cases import Case, NotHere, Undefined, max_count, max_rank, of_integers_too
from rlflow.prover.numbers import Invalid, Numbers, floats
from rlflow.prover.semantics import Tensor
from rlflow.prover.symbolic import Border, Fork, Infeasible, Int, Symbols, Truth, Unprovable
from rlflow.rules.expressions import Unknown
from rlflow.rules.language import Rule

PROOFS = Path(__file__).parent / "proofs.json"
SECONDS = 60.0  # of the processor, for one rule
MAX_FAILURES = 3  # cases that could not be shown, before a rule is given up
POINTS = 6  # numbers tried in one case
LARGEST = 4  # size in a counterexample
TOLERANCE = 1e-6
# Operators whose inputs are checked by ONNX's shape inference when a rule is planned, so that a misfit is refused.
CHECKED = frozenset((
    "Add", "Sub", "Mul", "Div", "Pow", "Sum", "Max", "Min", "MatMul", "Concat", "Split", "Reshape", "Squeeze", "Unsqueeze",
    "Expand", "Gemm", "Transpose",
))  # fmt: skip


@dataclass
class Proof:
    """What is known about one rule.

    Attributes:
      proof: `all-shapes`, `bounded`, `refuted` or `unproved`.
      bound: what was covered, in words.
      how: how it was shown, the counterexample, or why it could not be shown.
    """

    name: str
    proof: str
    bound: str
    seconds: float
    how: str

    def record(self) -> dict:
        return asdict(self)


# -- worlds ----------------------------------------------------------------------------------------


class Picks:
    """Decisions of a case, given in advance; one that is not given is a `Fork`."""

    picks: dict

    def pick(self, key: str, options: tuple):
        if key not in self.picks:
            if not options:
                raise NotHere
            if len(options) > 1:
                raise Fork([(key, option) for option in options])
            self.picks[key] = options[0]
        return self.picks[key]

    def picked(self, key: str):
        return self.picks.get(key)


class Symbolic(Picks, Symbols):
    def __init__(self, steps: tuple):
        self.picks = dict(step for step in steps if isinstance(step, tuple))
        super().__init__(step for step in steps if not isinstance(step, tuple))


class Numeric(Picks, Numbers):
    """A case in numbers: its sizes are given, its elements random."""

    def __init__(self, picks: dict, sizes: dict[str, int], seed: int):
        base = floats()
        super().__init__(base.read, base.functions)
        self.picks, self.sizes, self.random, self.elements = dict(picks), sizes, random.Random(seed), {}
        self.positive = seed % 2 == 0

    def symbol(self, name: str, least: int | None = 1) -> int:
        return self.sizes.get(name, 1 if least is None else max(least, 1))

    def element(self, name: str, index: tuple):
        if (name, index) not in self.elements:
            drawn = self.random.randint(1, 9) / 4
            sign = 1 if self.positive or self.random.random() < 0.5 else -1
            self.elements[name, index] = self.read(sign * drawn)
        return self.elements[name, index]


# -- symbols ---------------------------------------------------------------------------------------


def check_case(rule: Rule, world: Symbolic, is_float: bool) -> bool:
    """Whether the rule fires in this case; then its sides are shown equal. Raises Unprovable where they are not."""
    try:
        case = Case(rule, world, is_float)
        source = case.source()
        if not world.feasible() or not case.fires():
            return False
        world.obligations, world.refused = [], CHECKED
        target = case.target()
        if [t.rank for t in source] != [t.rank for t in target]:
            return False
        for one, other in zip(source, target, strict=True):
            for a, b in zip(one.shape, other.shape, strict=True):
                if not _allowed(world, a == b):
                    return False
        if not world.feasible():
            return False
    except (Infeasible, NotHere, Unknown):
        return False
    for op, claim in world.obligations:
        if op in CHECKED:
            world.assume(claim)
        elif not world.entails(claim):
            raise Unprovable(f"the inputs may not fit {op} on the right side")
    if not world.feasible():
        return False
    for k, (one, other) in enumerate(zip(source, target, strict=True)):
        compare(world, one, other, k)
    return True


def _allowed(world: Symbols, claim) -> bool:
    """Shapes that differ are refused when the rule is planned, so equal ones may be assumed."""
    if isinstance(claim, Truth):
        world.assume(claim)
        return True
    return bool(claim)


def compare(world: Symbolic, one: Tensor, other: Tensor, number: int) -> None:
    index = []
    for k, size in enumerate(one.shape):
        place = z3.Int(f"i{number}.{k}")
        world.assume(z3.And(place >= 0, place < (size.term if isinstance(size, Int) else size)))
        index.append(world.integer(place))
    if not world.feasible():
        return
    world.closed = False
    left = one.at(tuple(index))
    world.closed = True
    right = other.at(tuple(index))
    if not world.same(left, right) and not world.same_by_order(left, right):
        raise Unprovable("the two sides have different normal forms")


def explore(rule: Rule, is_float: bool, until: float) -> Iterable[tuple[Symbolic, bool, str | None]]:
    """(world, whether the rule fires, why it could not be shown) for every case."""
    waiting: list[tuple] = [()]
    while waiting:
        if time.process_time() > until:
            raise TimeoutError
        steps = waiting.pop()
        world = Symbolic(steps)
        try:
            if not world.feasible():
                continue
            fired, reason = check_case(rule, world, is_float), None
        except Fork as fork:
            waiting += [(*steps, option) for option in reversed(fork.options)]
            continue
        except (Unprovable, Border, RecursionError) as failure:
            fired, reason = True, str(failure)
        yield world, fired, reason


# -- numbers ---------------------------------------------------------------------------------------


def some_sizes(world: Symbolic, seed: int) -> dict[str, int] | None:
    """Small sizes that the case's assumptions allow."""
    solver, chance = z3.Solver(), random.Random(seed)
    solver.set("timeout", 2000)
    solver.add(world.solver.assertions())
    solver.add(world.defined)
    solver.add([z3.And(s <= LARGEST, s >= -LARGEST) for s in world.symbols.values()])
    if solver.check() != z3.sat:
        return None
    for symbol in chance.sample(list(world.symbols.values()), len(world.symbols)):
        wanted = symbol == chance.choice((1, 2, 2, 3, 3, 4))
        if solver.check(wanted) == z3.sat:
            solver.add(wanted)
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    return {name: model.eval(s, model_completion=True).as_long() for name, s in world.symbols.items()}


def evaluate(rule: Rule, world: Numeric, is_float: bool) -> str | None:
    """A difference of the two sides in words; None if they are equal. Raises Invalid, NotHere where none is defined."""
    case = Case(rule, world, is_float)
    source = case.source()
    if not case.fires():
        raise NotHere
    wanted = [_all_elements(t) for t in source]
    try:
        target = case.target()
        if [t.shape for t in source] != [t.shape for t in target]:
            raise NotHere
        found = [_all_elements(t) for t in target]
    except Invalid as error:
        if world.operator in CHECKED:
            raise
        return _shown(case, f"the right side is not defined ({world.operator})", str(error))
    for left, right in zip(wanted, found, strict=True):
        for index, value in left.items():
            if not _equal(value, right[index]):
                return _shown(case, f"element {list(index)} is {float(value):.6g}", f"{float(right[index]):.6g}")
    return None


def _all_elements(tensor: Tensor) -> dict[tuple, float]:
    return {index: tensor.at(index) for index in itertools.product(*map(range, tensor.shape))}


def _equal(a, b) -> bool:
    return a == b or abs(a - b) <= TOLERANCE * max(1, abs(a), abs(b))


def _shown(case: Case, left: str, right: str) -> str:
    tensors = []
    for name, tensor in sorted(case.tensors.items()):
        for t in tensor if isinstance(tensor, list) else [tensor]:
            tensors.append(f"{name}: {list(t.content) if t.content is not None else 'x'.join(map(str, t.shape)) or 'scalar'}")
    values = [f"{name}={value}" for name, value in sorted(case.attributes.items()) if not hasattr(value, "spec")]
    values += [
        f"{rest.op}.{key}={rest[key]}" for rest in case.attributes.values() if hasattr(rest, "spec") for key in rest.keys()
    ]
    return f"{', '.join([*tensors, *values])}: left {left}, right {right}"


def counterexample(rule: Rule, world: Symbolic, is_float: bool) -> str | None:
    for seed in range(POINTS):
        sizes = some_sizes(world, seed)
        if sizes is None:
            return None
        try:
            found = evaluate(rule, Numeric(world.picks, sizes, seed), is_float)
        except (Invalid, NotHere, Unknown, Fork):
            continue
        if found is not None:
            return found
    return None


# -- one rule, all rules ---------------------------------------------------------------------------


def prove_rule(rule: Rule, seconds: float = SECONDS) -> Proof:
    """The proof of one rule, made anew."""
    start, failures, fired, cases = time.process_time(), [], 0, 0

    def result(kind: str, how: str) -> Proof:
        bound = f"ranks to {max_rank(rule)}, *inputs to {max_count(rule)}, all sizes from 1: {fired} cases"
        return Proof(rule.name, kind, bound, round(time.process_time() - start, 2), how)

    try:
        for is_float in (True, False) if of_integers_too(rule) else (True,):
            for world, fires, reason in explore(rule, is_float, start + seconds):
                cases += 1
                fired += fires
                if reason is not None:
                    found = counterexample(rule, world, is_float)
                    if found is not None:
                        return result("refuted", found)
                    failures.append(reason)
                    if len(failures) > MAX_FAILURES:
                        break
    except TimeoutError:
        failures.append("out of time")
    except Undefined as undefined:
        failures.append(str(undefined))
    except (TypeError, AttributeError, IndexError, ValueError) as error:
        failures.append(f"the symbols do not reach: {first_line(error)}")
    if not fired and not failures:
        failures.append("no case fires")
    return result("unproved", failures[0]) if failures else result("all-shapes", "equal normal forms")


def prove(rules: Iterable[Rule], names: list[str] | None = None, progress: Callable | None = None) -> list[Proof]:
    """Proofs of the named rules (None or empty: of all), made anew. `progress` is called with each.

    Raises RLFlowError for a name that no rule has.
    """
    rules, found = list(rules), []
    unknown = set(names or ()) - {rule.name for rule in rules}
    if unknown:
        raise RLFlowError(f"no rule is named '{sorted(unknown)[0]}'")
    for rule in rules:
        if not names or rule.name in names:
            found.append(prove_rule(rule))
            if progress:
                progress(found[-1])
    return found


# -- proofs on disk --------------------------------------------------------------------------------


def text_hash(rule: Rule) -> str:
    return hashlib.sha256(rule.text.encode()).hexdigest()


def load_proofs(path: Path = PROOFS) -> dict[str, dict]:
    """Rule name → its proof's record, with the hash of the text that was proved."""
    return json.loads(path.read_text()) if path.exists() else {}


def store_proofs(rules: Iterable[Rule], proofs: Iterable[Proof], path: Path = PROOFS) -> None:
    """Adds the proofs to the file; those of rules that are no more, or read otherwise now, go."""
    texts = {rule.name: text_hash(rule) for rule in rules}
    known = {name: record for name, record in load_proofs(path).items() if record["text"] == texts.get(name)}
    known |= {proof.name: {**proof.record(), "text": texts[proof.name]} for proof in proofs}
    write_json(path, dict(sorted(known.items())))


def proof_of(rule: Rule, proofs: dict[str, dict]) -> dict | None:
    """The rule's stored proof; None if there is none for its present text."""
    record = proofs.get(rule.name)
    return record if record is not None and record["text"] == text_hash(rule) else None


# -- rounding --------------------------------------------------------------------------------------

MOVES = frozenset((
    "Identity", "Dropout", "Relu", "Neg", "Abs", "Max", "Min", "Clip", "Transpose", "Reshape", "Flatten", "Squeeze",
    "Unsqueeze", "Expand", "Concat", "Split", "Slice", "Pad", "Gather", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin",
))  # fmt: skip


def exactness(rule: Rule) -> str:
    """`exact` if both sides only move, copy or select elements or change signs, else `rounding`."""
    return "exact" if {op.op for op in (*rule.ops, *rule.target_ops)} <= MOVES else "rounding"
