"""Write an enumerated rule in the rule language: its name, its purpose and its text.

The name of a rule describes its sides: `conv-by-sum` matches a convolution whose weight is a sum.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import count

from rlflow.proving.generator.attributes import WINDOWS
from rlflow.proving.generator.operators import COMMUTATIVE, Label, Node, Pattern, Term, operators, variables
from rlflow.rules.language import parse

NOUNS = {
    "Add": "sum", "Mul": "product", "Conv": "conv", "MatMul": "matmul", "Relu": "relu", "Concat": "concat",
    "Split": "split",
    "Transpose": "transpose", "Pad": "pad", "MaxPool": "maxpool", "AveragePool": "averagepool",
    "ReduceSum": "reducesum", "ReduceMean": "reducemean",
}  # fmt: skip
COUNTS = ("none", "one", "two", "three", "four", "five", "six")


def names_of(pattern: Pattern) -> Iterator[str]:
    """Yield possible names of a rule: its source in words, then source and target in words, then numbered names."""
    name, result = _name_of_side(pattern.source), _name_of_side(pattern.target)
    yield from (name, f"{name}-as-{result}")
    yield from (f"{name}-as-{result}-{number}" for number in count(2))


def _name_of_side(roots: tuple[Term, ...]) -> str:
    """Return one side of a rule in words, for example `two-convs-sharing-input`."""
    roots = list(dict.fromkeys(root[:2] for root in roots if isinstance(root, Node)))
    if not roots:
        return "input"
    if len(roots) == 1:
        return _phrase(Node(*roots[0]))
    result = [_phrase(Node(*root)) for root in roots]
    name = f"{COUNTS[len(roots)]}-{_plural(result[0])}" if len(set(result)) == 1 else "-beside-".join(result)
    shared = _shared(tuple(Node(*root) for root in roots))
    return f"{name}-sharing-{shared}" if shared else name


def _phrase(term: Node) -> str:
    """Return a term in words, for example `conv-by-sum`."""
    noun = NOUNS[term.label.op]
    parts = [child for child in term.inputs if isinstance(child, Node)]
    if not parts:
        return noun
    if len(parts) == 2 and _phrase(parts[0]) == _phrase(parts[1]):
        shared = _shared(tuple(parts))
        return f"{noun}-of-{_plural(_phrase(parts[0]))}" + (f"-sharing-{shared}" if shared else "")
    if len(parts) == 2:
        return f"{noun}-of-{_phrase(parts[0])}-and-{_phrase(parts[1])}"
    right = term.label.op not in COMMUTATIVE and term.inputs[1:] == (parts[0],)
    return f"{noun}-{'by' if right else 'of'}-{_phrase(parts[0])}"


def _plural(phrase: str) -> str:
    noun, *rest = phrase.split("-")
    return "-".join([f"{noun}s", *rest])


def _shared(terms: tuple[Node, ...]) -> str | None:
    """Return the name of the operand that the terms share, such as "input" or "weight", or None."""
    binary = {"Conv": ("input", "weight"), "MatMul": ("left", "right")}
    if {term.label.op for term in terms} <= {"Add", "Mul"}:
        return "operand" if set.intersection(*(set(term.inputs) for term in terms)) else None
    for position in range(min(len(term.inputs) for term in terms)):
        if len({term.inputs[position] for term in terms}) == 1:
            return binary.get(terms[0].label.op, ("input",) * 2)[position]
    return None


def why(pattern: Pattern) -> str:
    """Return the purpose of a rule in words: how the numbers of operators change.

    Operators on weights alone are not counted, because they do not run.
    """
    before, after = (_running(side, pattern.constants) for side in (pattern.source, pattern.target))
    if not after:
        return "they undo each other" if before.total() > 1 else "it does nothing"
    changed = [f"{_count(before[op], op)} {_become(before[op])} {_count(after[op], None)}" for op in (*before, *after)
               if before[op] and after[op] and before[op] != after[op]]  # fmt: skip
    changed = list(dict.fromkeys(changed))
    gone = [_count(before[op], op) for op in before if not after[op]]
    come = [_count(after[op], op) for op in after if not before[op]]
    if gone and come:
        changed.append(f"{_and(gone)} {_become(sum(before[op] for op in before if not after[op]))} {_and(come)}")
    elif gone:
        changed.append(f"{_and(gone)} {'is' if sum((before - after).values()) == 1 else 'are'} not needed")
    elif come:
        changed.append(f"with {_and(come)} to put the parts together")
    if changed:
        return ", ".join(changed)
    first, last = (
        next(root.label.op for root in side if isinstance(root, Node)) for side in (pattern.source, pattern.target)
    )
    return f"{last} after {first}" if first != last else "the same operators in another order"


def _running(side: tuple[Term, ...], constants: tuple[str, ...]) -> Counter:
    """Return the number of operators that run if `constants` are weights, by operator type."""
    result = [op[0].op for op in sorted(operators(*side), key=repr) if not set(variables(*op[1])) <= set(constants)]
    return Counter(result)


def _count(number: int, op: str | None) -> str:
    if op is None:
        return COUNTS[number]
    if number > 1:
        return f"{COUNTS[number]} {op}s"
    return f"{'an' if op[0] in 'AEIOU' else 'a'} {op}"


def _become(number: int) -> str:
    return "becomes" if number == 1 else "become"


def _and(parts: list[str]) -> str:
    return " and ".join(parts)


REASONS = (
    (r"rank\(\w\) == rank\(\w\)( and .*)?", "the operands have different ranks"),
    (r"rank\(\w\) <= rank\(\w\)", "an operand has more axes than the other"),
    (r"rank\(\w\) == \d", "an operand has another number of axes"),
    (r"rank\(\w\) > 1", "the operand has but one axis"),
    (r"size\(\w\) == 1", "the operand is not one number"),
    (r"shape\(\w\) == shape\(\w\)|broadcasts\(.*", "the operands have different shapes"),
    (r"shape\(\w\)\[1:\] == shape\(\w\)\[1:\]", "the operands differ in more than their first axis"),
    (r"prod\(shape\(\w\)\[2:\]\) == 1", "the kernel is not 1×1"),
    (r"value\(\w\) == .*", "the parts have other sizes"),
    (r"\w == rank.*|\w < rank.*|\w == [01]", "the axis is another one"),
    (r"g % 2 == 0", "the groups are no pairs"),
    (r"\w != \w", "the two axes are the same"),
    (r"\w == tuple\(.*", "the permutation moves an axis"),
    (r"\w == .*|\w\[-1\] == .*", "rows and columns alone are not exchanged"),
    (r"compose.*", "the moves do not cancel"),
    (r"attributes\(\w+, .group.\).*", "the convolution is grouped"),
    (r"attributes\(\w+, .pads.\).*", "the window pads"),
    (r"attributes\(\w+, .strides.\).*", "the window strides"),
    (r"attributes\(\w+, .dilations.\).*", "the window is dilated"),
    (r"attributes\(\w+, .auto_pad.\).*", "automatic padding"),
    (r"attributes\(\w+, .ceil_mode.*", "the last window may lie outside"),
)


def reason_of(condition: str) -> str:
    """Return the reason that a refusal gives if a condition fails."""
    return next(reason for form, reason in REASONS if re.fullmatch(form, condition))


def rule_text(pattern: Pattern, name: str) -> str:
    """Return a rule in the rule language.

    Args:
      pattern: the rule.
      name: the name of the rule.

    Raises:
      RLFlowError: if the parser of the language refuses the text.
    """
    source, target = _lines_of_side(pattern.source), _lines_of_side(pattern.target)
    if len(source) == len(target) == 1:
        equation = [f"{source[0].removeprefix('result = ')} => {target[0].removeprefix('result = ')}"]
    else:
        equation = [*source, *(f"  {'=>' if k == 0 else '  '} {line}" for k, line in enumerate(target))]
    clauses = [f'if {text} else "{reason}"' for text, reason in _clauses(pattern)]
    text = "\n".join([f"{name}: {why(pattern)}", *(f"  {line}" for line in (*equation, *clauses))]) + "\n"
    parse(text, "generated")
    return text


def _clauses(pattern: Pattern):
    """Yield (condition, reason for the refusal if it fails) for each condition of a rule."""
    constants = set(pattern.constants)
    # The language requires it of tensors that are not under every output.
    constants |= set(variables(*pattern.source)) - set.intersection(*(set(variables(y)) for y in pattern.source))
    if constants:
        yield f"constant({', '.join(sorted(constants))})", "a weight is not constant"
    sizes = {result.get("parts").text for result in _labels(pattern.source) if result.op == "Split"}
    if sizes:
        yield f"constant({', '.join(sorted(sizes))})", "sizes are not constant"
    for text in pattern.conditions:
        yield text, reason_of(text)
    for result in dict.fromkeys(f for f in _labels(pattern.source) if f.op in WINDOWS):
        rest = result.get("rest").text
        texts = [f'attributes({rest}, "auto_pad") is None']
        if result.op != "Conv":
            texts += [f'attributes({rest}, "ceil_mode", 0) == 0', f'attributes({rest}, "dilations") is None']
        yield from ((text, reason_of(text)) for text in texts if text not in pattern.conditions)


def _labels(terms: tuple[Term, ...]) -> list[Label]:
    return [result for result, _ in sorted(operators(*terms), key=repr)]


def _lines_of_side(roots: tuple[Term, ...]) -> list[str]:
    """Return lines of the rule language that define these outputs of one side.

    A single output is named `result`, several outputs y1, y2, …. Each Split and each operator with several readers has
    its own line.
    """
    outputs = {root: f"y{k + 1}" if len(roots) > 1 else "result" for k, root in enumerate(roots)}
    uses = Counter(child[:2] for op in operators(*roots) for child in set(op[1]) if isinstance(child, Node))
    names: dict[Node, str] = {}
    lines: list[str] = []
    inner = iter("mnocdefv")

    def define(term: Node) -> None:
        """Add a line that defines a Split or an operator with several readers."""
        if term.label.op == "Split":
            both = [term._replace(slot=k) for k in (0, 1)]
            for one in both:
                names[one] = outputs.get(one) or next(inner)
            lines.append(f"{', '.join(names[one] for one in both)} = {body(term)}")
        else:
            names[term] = next(inner)
            lines.append(f"{names[term]} = {body(term)}")

    def text(term: Term) -> str:
        if isinstance(term, str):
            return term
        if term not in names and (term.label.op == "Split" or uses[term[:2]] > 1):
            define(term)
        return names.get(term) or body(term)

    def body(term: Node) -> str:
        parts = [text(child) for child in term.inputs]
        if term.label.op == "Split":
            parts.append(term.label.get("parts").text)
        if term.label.op == "Pad":
            parts.append("[0, 0, 1, 1, 0, 0, 1, 1]")
        if term.label.op.startswith("Reduce"):
            parts.append(f"[{term.label.get('axis').text}]")
        return f"{term.label.op}({', '.join([*parts, *_attributes(term.label)])})"

    for root in roots:
        result = text(root)
        if result != outputs[root]:
            lines.append(f"{outputs[root]} = {result}")
    return lines


def _attributes(result: Label) -> list[str]:
    if result.get("rest") is not None:
        return [
            *(f"{name}={value.text}" for name, value in result.attributes if name != "rest"),
            f"**{result.get('rest').text}",
        ]
    if result.op.startswith("Reduce"):
        return ["keepdims=1"]
    return [f"{name}={value.text}" for name, value in result.attributes if name != "parts"]
