"""The commands `rules`: list, explain, draw, document, prove and enumerate rules."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rlflow.cli.command import add_command, add_custom_ops, add_sizes, ending
from rlflow.common.errors import RLFlowError
from rlflow.common.messages import counted, shape_words

PROVED = "all-shapes", "bounded"  # kinds of proofs

TEXT = "list the rules, explain where they match, prove them, find new ones"
EXPLAIN = "show where each rule matches in a model, or the nearest miss with its reason"
ENUMERATE = "find rules automatically: equal graphs of few operators"


def add(commands) -> None:
    """Add `rules list`, `explain`, `picture`, `docs`, `prove` and `enumerate`."""
    commands = commands.add_parser("rules", help=TEXT).add_subparsers(required=True, metavar="COMMAND")
    add_command(commands, "list", run_list, "list the rules")
    explain = add_command(commands, "explain", run_explain, EXPLAIN)
    explain.add_argument("model", metavar="MODEL", help="path of an ONNX file, or a zoo name")
    explain.add_argument("--rule", action="append", default=[], metavar="NAME", help="only this rule; repeatable")
    explain.add_argument("--all", action="store_true", help="show all matches of each rule, and reasons of near misses")
    add_sizes(explain)
    add_custom_ops(explain)
    picture = add_command(commands, "picture", run_picture, "draw one rule as a Mermaid diagram")
    picture.add_argument("name", metavar="NAME")
    docs = add_command(commands, "docs", run_docs, "write the rules as a Markdown page, with a picture of each family")
    docs.add_argument("--out", metavar="FILE", help="file for the page (docs/RULES.md in the repository)")
    prove = add_command(commands, "prove", run_prove, "prove the rules again")
    prove.add_argument("names", nargs="*", metavar="NAME", help="only these rules")
    prove.add_argument("--workers", type=int, default=0, metavar="N", help="number of processes; 0: one for each core")
    add_enumerate(commands)


def add_enumerate(commands) -> None:
    command = add_command(commands, "enumerate", run_enumerate, ENUMERATE, resumes="folder")
    command.add_argument("--operators", type=int, default=4, metavar="N", help="largest number of operators on a side")
    folder = "folder of checkpoints; the same command continues from there"
    command.add_argument("--folder", metavar="DIR", help=folder)
    command.add_argument("--workers", type=int, default=2, metavar="N", help="number of processes")
    seconds = "time limit, after which no further pair of graphs is tried"
    command.add_argument("--seconds", type=float, default=1800.0, metavar="S", help=seconds)
    command.add_argument("--out", metavar="FILE", help="file for the rules")


def run_list(parsed) -> dict:
    from rlflow.rules.exactness import exactness
    from rlflow.rules.language import families, load_rules

    rules, listed = load_rules(families()), []
    for xfer_id, rule in enumerate(rules):
        exact = exactness(rule)
        print(f"{xfer_id:3}  {rule.family:12}  {exact:8}  {rule.name:36}  {rule.why}")
        listed.append(
            {"name": rule.name, "family": rule.family, "exactness": exact, "why": rule.why, "text": rule.text}
        )
    exact = sum(entry["exactness"] == "exact" for entry in listed)
    result = f"{len(listed)} rules of {len(families())} families, {exact} of which change no rounding"
    ending({"result": result}, "rules", "explain", "light_squeezenet")
    return {"hash": rules.hash, "rules": listed}


def run_explain(parsed) -> dict:
    from rlflow.graph.typical import load_at
    from rlflow.rules import explain
    from rlflow.rules.language import families, load_rules
    from rlflow.rules.locations import prepared
    from rlflow.runs.config import parse_shapes
    from rlflow.zoo import zoo_or_path

    rules = load_rules(families())
    for name in parsed.rule:
        rules.index(name)  # raises if there is no such rule
    model, shapes = zoo_or_path(parsed.model), parse_shapes(parsed.shape)
    graph, _ = load_at(model, shapes, parsed.fix)
    graph, first = prepared(graph, rules)
    if first:
        print(f"{counted(len(first), 'rewrite')} of shape arithmetic applied first; in the remaining graph:")
    entries = explain.explain_rules(graph, rules, parsed.rule)
    in_full = bool(parsed.all or parsed.rule)
    print(explain.as_text(entries, whole=bool(parsed.rule)) if in_full else explain.overview(entries))
    fires = [entry["name"] for entry in entries if entry["locations"]]
    result = {"result": f"{len(fires)} of {counted(len(entries), 'rule')} can be applied to {parsed.model}"}
    following = ["rules", "explain", parsed.model, "--all"]
    if in_full:
        following = ["optimise", parsed.model, "--out", f"{Path(parsed.model).stem}.faster.onnx"]
    ending(result, *following, *shape_words(shapes, parsed.fix))
    return {"rules": entries}


def run_picture(parsed) -> dict:
    from rlflow.rules.language import families, load_rules
    from rlflow.rules.page import picture

    rules = load_rules(families())
    drawn = picture(rules[rules.index(parsed.name)])
    print(drawn)
    ending({"result": f"{parsed.name} as a Mermaid diagram"}, "rules", "prove", parsed.name, is_piped=True)
    return {"name": parsed.name, "mermaid": drawn}


def run_docs(parsed) -> dict:
    from rlflow.common.files import write_bytes
    from rlflow.rules.language import families, load_rules
    from rlflow.rules.page import page
    from rlflow.rules.proofs import load_proofs, proof_of

    rules, proofs = load_rules(families()), load_proofs()
    proved = {rule.name: record for rule in rules if (record := proof_of(rule, proofs))}
    text = page(rules, proved)
    if parsed.out:
        write_bytes(parsed.out, text.encode())
    else:
        print(text)
    lines = {"result": f"{len(rules)} rules, {len(proved)} of them proved"}
    ending(lines | ({"page": parsed.out} if parsed.out else {}), "rules", "prove", is_piped=not parsed.out)
    return {"hash": rules.hash, "page": text}


def run_prove(parsed) -> dict:
    from rlflow.proving.prove import prove
    from rlflow.rules.language import families, load_rules
    from rlflow.rules.proofs import store_proofs

    def store(result) -> None:
        if result.proof in PROVED:
            store_proofs(rules, [result])
        seconds = f"{result.seconds:6.2f} s"
        print(f"{result.proof:12}  {result.name:36}  {seconds}  {result.bound or result.how}", flush=True)

    if parsed.workers < 0:
        raise RLFlowError("pass --workers of at least 0")
    rules = load_rules(families())
    proofs = prove(rules, parsed.names, parsed.workers, store)
    kinds = Counter(proof.proof for proof in proofs)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    ending({"result": f"{counted(len(proofs), 'rule')}: {counts}"}, "rules", "docs", "--out", "RULES.md")
    proved = all(proof.proof in PROVED for proof in proofs)
    return {"ok": proved, "hash": rules.hash, "rules": [asdict(proof) for proof in proofs]}


def run_enumerate(parsed) -> dict:
    from rlflow.common.files import write_bytes
    from rlflow.proving.generator.enumerate import enumerate_rules

    if parsed.workers < 1:
        raise RLFlowError("pass --workers of at least 1")
    report = enumerate_rules(parsed.operators, folder=parsed.folder, workers=parsed.workers, seconds=parsed.seconds)
    again = ["rules", "enumerate", "--operators", parsed.operators, "--workers", parsed.workers]
    again += ["--folder", parsed.folder] if parsed.folder else []
    count = sum(line[:1].isalpha() for line in report.rules.splitlines())  # each begins with its name
    lines = {"result": counted(count, "rule") if report.finished else "not finished within the time limit"}
    if not report.finished:
        # With a folder the same command continues. Without one it starts again, and needs more time.
        seconds = parsed.seconds if parsed.folder else max(2 * parsed.seconds, 60.0)
        ending(lines, *again, "--seconds", f"{seconds:g}", *(["--out", parsed.out] if parsed.out else []))
    elif parsed.out:
        write_bytes(parsed.out, report.rules.encode())
        ending(lines | {"rules": parsed.out}, "rules", "list")
    else:
        print(report.rules)
        ending(lines, *again, "--seconds", f"{parsed.seconds:g}", "--out", "generated.rules", is_piped=True)
    return asdict(report)
