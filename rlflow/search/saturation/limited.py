"""An e-graph of egglog that is complete up to a limit of the cost.

The e-graph holds terms of numbers (`Num`, exact fractions), variables (`Var`) and operators, named with an underscore
at the end. Every class has two numbers that only fall: `cost`, the least cost of its terms, and `around`, the least
cost of what stands around it in the whole term. A rule of the ruleset `rewrite` compares them with `limit`.

    (rule ((= e LEFT) (<= (+ (around e) COST) (limit))) ((union e RIGHT)) :ruleset rewrite)

This rule applies exactly where the whole term costs at most the limit afterwards. If no rule adds anything any more,
the e-graph holds every term that the rules reach through terms within the limit.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from rlflow.common.errors import RLFlowError
from rlflow.search.saturation.sharing import Term

Operators = Mapping[str, tuple[int, int]]  # name → (number of operands, cost)


class LimitedEGraph:
    """The e-graph of a term, which `grow` extends up to a limit of the cost.

    Args:
      operators: the operators; each name ends with an underscore.
      rules: egglog rules of the ruleset `rewrite`.
      term: the term in the syntax of egglog.

    Raises:
      RLFlowError: the package egglog is missing.
    """

    def __init__(self, operators: Operators, rules: Iterable[str], term: str):
        try:
            from egglog.bindings import EGraph
        except ImportError:
            raise RLFlowError("the yardstick needs the package egglog: pip install '.[expressions]'") from None
        self._graph, self._operators = EGraph(), operators
        rules = dict.fromkeys(rules)  # egglog refuses a rule that it has
        self._run("\n".join([*_declarations(operators), *rules, f"(let $root {term})", "(set (around $root) 0)"]))

    def _run(self, text: str) -> list:
        return self._graph.run_program(*self._graph.parse_program(text))

    def grow(self, limit: int, most_nodes: int, seconds: float) -> bool:
        """Apply the rules up to a limit of the cost, and return whether the e-graph is complete up to this limit.

        Args:
          limit: the limit.
          most_nodes: number of nodes above which the e-graph grows no further.
          seconds: time limit.
        """
        until = time.monotonic() + seconds
        self._run(f"(set (limit) {limit})")
        while True:
            self._run("(run-schedule (saturate (run price)))")
            if not self._run("(run rewrite 1)")[0].report.updated:
                return True
            (sizes,) = self._run("(print-size)")
            if sum(size for name, size in sizes.sizes if name.endswith("_")) > most_nodes or time.monotonic() > until:
                return False

    def read(self) -> tuple[dict[str, list[Term]], str]:
        """Return class → its terms, and the class of the whole term.

        The label of a term is the name of its operator, a number as a Fraction, or ("Var", name of the variable).

        Raises:
          RLFlowError: a class holds two numbers, so that the rules divided by zero.
        """
        serialized = json.loads(self._graph.serialize([]).to_json())
        written = serialized["nodes"]
        root = next(name for name, data in serialized["class_data"].items() if data.get("let") == "$root")
        class_of = {name: node["eclass"] for name, node in written.items()}
        result: dict[str, list[Term]] = {}
        for node in written.values():
            op, children = node["op"], node["children"]
            if op == "Num":
                term = Term(Fraction(*map(int, re.findall(r"-?\d+", written[children[0]]["op"]))), 0, ())
            elif op == "Var":
                term = Term((op, json.loads(written[children[0]]["op"])), 0, ())
            elif op in self._operators:
                term = Term(op, self._operators[op][1], tuple(class_of[child] for child in children))
            else:
                continue
            result.setdefault(node["eclass"], []).append(term)
        for terms in result.values():
            if len({term.label for term in terms if isinstance(term.label, Fraction)}) > 1:
                raise RLFlowError("the rules prove that two numbers are equal: some denominator is 0")
        return result, root


def total(terms: list) -> str:
    """Return the sum of numbers and egglog terms as an egglog term."""
    result = str(terms[0])
    for term in terms[1:]:
        result = f"(+ {result} {term})"
    return result


def _declarations(operators: Operators) -> Iterator[str]:
    """Yield the egglog declarations: the datatype of terms, and the rules that compute `cost` and `around`."""
    kinds = " ".join(f"({op} {' '.join('E' * arity)})" for op, (arity, _) in operators.items())
    yield f"(datatype E (Num BigRat) (Var String) {kinds})"
    yield "(function cost (E) i64 :merge (min old new))"
    yield "(function around (E) i64 :merge (min old new))"
    yield "(function limit () i64 :merge new)"
    yield "(ruleset price) (ruleset rewrite)"
    for leaf in ("(Num a)", "(Var a)"):
        yield f"(rule ((= e {leaf})) ((set (cost e) 0)) :ruleset price)"
    for op, (arity, price) in operators.items():
        costs = {f"x{k}": f"(cost x{k})" for k in range(arity)}
        node = f"({op} {' '.join(costs)})"
        yield f"(rule ((= e {node}) (= c {total([price, *costs.values()])})) ((set (cost e) c)) :ruleset price)"
        for child in costs:
            others = [cost for other, cost in costs.items() if other != child]
            outside = total(["(around e)", price, *others])
            yield f"(rule ((= e {node}) (= c {outside})) ((set (around {child}) c)) :ruleset price)"
