"""Rules found by enumeration, written in the rule language."""

from collections import Counter

from rlflow.errors import RLFlowError
from rlflow.generator.conditions import WINDOWS, Pattern
from rlflow.generator.operators import Label, Node, Term, operators, variables
from rlflow.rules.language import parse


def name_of(pattern: Pattern) -> str:
    """What the operators of both sides are called, outputs first."""
    sides = ["-".join(_names(terms)).lower() or "input" for terms in (pattern.source, pattern.target)]
    return f"{sides[0]}-to-{sides[1]}"


def _names(terms: tuple[Term, ...]) -> list[str]:
    """Names of the operators, each once, from the outputs on."""
    found: dict[tuple, str] = {}

    def visit(term: Term) -> None:
        if isinstance(term, Node) and term[:2] not in found:
            found[term[:2]] = term.label.op
            for child in term.inputs:
                visit(child)

    for term in terms:
        visit(term)
    return list(found.values())


def rule_text(pattern: Pattern, name: str) -> str:
    """The rule in the rule language, parsed once. Raises RLFlowError if the language refuses it."""
    source, target = _side(pattern.source, "source"), _side(pattern.target, "target")
    if len(source) == len(target) == 1:
        equation = [f"{source[0].removeprefix('y = ')} => {target[0].removeprefix('y = ')}"]
    else:
        equation = [*source, *(f"  {'=>' if k == 0 else '  '} {line}" for k, line in enumerate(target))]
    clauses = [f'if {text} else "{reason}"' for text, reason in _clauses(pattern)]
    text = "\n".join([f"{name}: {_why(pattern)}", *(f"  {line}" for line in (*equation, *clauses))]) + "\n"
    parse(text, "generated")
    return text


def _why(pattern: Pattern) -> str:
    before, after = (
        sum(not set(variables(*op[1])) <= set(pattern.constants) for op in operators(*side))
        for side in (pattern.source, pattern.target)
    )
    what = f"{before} operators become {after}" if before != after else f"{before} operators in another order"
    return f"{what}, those on weights not counted" if pattern.constants else what


def _clauses(pattern: Pattern):
    constants = set(pattern.constants)
    if len(pattern.source) > 1:  # the language asks it of tensors that are not under every output
        constants |= set(variables(*pattern.source)) - set.intersection(
            *(set(variables(root)) for root in pattern.source)
        )
    if constants:
        yield f"constant({', '.join(sorted(constants))})", "a weight is not constant"
    sizes = {found.get("parts").text for found in _labels(pattern.source) if found.op == "Split"}
    if sizes:
        yield f"constant({', '.join(sorted(sizes))})", "sizes are not constant"
    for text in pattern.conditions:
        yield text, "it does not hold for such shapes or attributes"
    for found in dict.fromkeys(f for f in _labels(pattern.source) if f.op in WINDOWS):
        rest = found.get("rest").text
        yield f"attributes({rest}, 'auto_pad') is None", "automatic padding"
        if found.op != "Conv":
            yield f"attributes({rest}, 'ceil_mode', 0) == 0", "the last window may lie outside"
            yield f"attributes({rest}, 'dilations') is None", "a dilated window"


def _labels(terms: tuple[Term, ...]) -> list[Label]:
    return [found for found, _ in sorted(operators(*terms), key=repr)]


def _side(roots: tuple[Term, ...], side: str) -> list[str]:
    """Lines that define the outputs: y, or y1, y2 …; Splits and operators that are used twice have lines of their own."""
    outputs = {root: f"y{k + 1}" if len(roots) > 1 else "y" for k, root in enumerate(roots)}
    uses = Counter(child[:2] for op in operators(*roots) for child in set(op[1]) if isinstance(child, Node))
    names: dict[Node, str] = {}
    lines: list[str] = []
    inner = iter("mnoqrvh")

    def define(term: Node) -> None:
        """A line for a Split, or for what is used twice."""
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
        found = text(root)
        if found != outputs[root]:
            lines.append(f"{outputs[root]} = {found}")
    return lines


def _attributes(found: Label) -> list[str]:
    if found.get("rest") is not None:
        return [f"**{found.get('rest').text}"]
    if found.op.startswith("Reduce"):
        return ["keepdims=1"]
    return [f"{name}={value.text}" for name, value in found.attributes if name != "parts"]


def write(patterns: list[Pattern], skipped: Counter) -> str:
    """All rules as one file, in their order; a rule that is another one in other letters is left out."""
    texts: dict[str, str] = {}
    used: Counter = Counter()
    for pattern in patterns:
        name = name_of(pattern)
        try:
            text = rule_text(pattern, name)
        except RLFlowError as error:
            skipped[str(error).partition(": ")[2]] += 1
            continue
        body = text.partition("\n")[2]
        if body in texts:
            skipped["written already"] += 1
            continue
        used[name] += 1
        texts[body] = text if used[name] == 1 else text.replace(f"{name}:", f"{name}-{used[name]}:", 1)
    return "# Found by enumeration (run.py rules enumerate): written by the machine, not by hand.\n\n" + "\n".join(texts.values())
