"""One word for one thing: the words that the table in docs/ARCHITECTURE.md retired are in no identifier and no file's
name.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("rlflow", "worldmodel", "controllers", "benchmarks", "tests")
RETIRED = {  # retired: the word that is used instead
    "alone": "single consumer", "dear": "costly", "dearer": "costlier", "doubt": "uncertainty", "doubted": "uncertain",
    "doubts": "uncertainty", "elite": "best trajectory", "elites": "best trajectories", "fact": "signature",
    "facts": "signature", "found": "result", "home": "primary output", "homes": "primary outputs", "looks": "signature",
    "place": "match, position", "places": "matches, positions", "price": "cost", "priced": "cost", "prices": "cost",
    "rounds": "iterations, restarts, session pairs", "substitution": "rule, rewrite",
    "substitutions": "rules, rewrites",
    "surroundings": "neighbourhood", "tell": "report, log", "teller": "progress", "tells": "reports",
    "told": "predicted, logged", "twin": "symmetric match", "twins": "symmetric matches", "worth": "mean reward",
    "xfer": "rule", "xfers": "rules",
}  # fmt: skip
ALLOWED = {  # whole identifiers: the paper's interface, and that of others
    "xfer_id", "xfer_ids", "n_xfer_ids", "xfer_mask", "xfer_tuples", "tell", "FileNotFoundError",
    "PackageNotFoundError",
    "ModuleNotFoundError", "home",
}  # fmt: skip


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(name, line) of every name that a file uses or declares."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield value, getattr(node, "lineno", 0)


def words(identifier: str) -> list[str]:
    """Its parts, in small letters: of MatchClass, match_class and MATCH_CLASS the same two."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]


def retired(identifier: str) -> list[str]:
    """Which of its parts are. A test's name is a sentence, in which a word has its everyday meaning."""
    if identifier in ALLOWED or identifier.startswith("test_"):
        return []
    return [word for word in words(identifier) if word in RETIRED]


def test_no_identifier_holds_a_retired_word():
    wrong = []
    for path in [ROOT / "run.py", *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]:
        if path == Path(__file__):
            continue
        where = path.relative_to(ROOT)
        wrong += [
            f"{where}: {word} → {RETIRED[word]}" for word in retired(str(where.with_suffix("")).replace("/", "_"))
        ]
        for identifier, line in identifiers(ast.parse(path.read_text())):
            wrong += [f"{where}:{line}: {identifier}: {word} → {RETIRED[word]}" for word in retired(identifier)]
    assert not wrong, "\n" + "\n".join(sorted(set(wrong)))


def test_retired_words_are_seen_however_they_are_written():
    for identifier in ("Surroundings", "node_prices", "ELITE", "_told", "hasTwin", "max_rounds"):
        assert retired(identifier), identifier
    assert not retired("xfer_id") and not retired("foundation") and not retired("replace")
    assert {name for name, _ in identifiers(ast.parse("def f(worth): a.told = g(facts=1)"))} >= {
        "worth",
        "told",
        "facts",
    }
