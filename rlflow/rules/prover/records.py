"""Proofs on disk: beside each rule's proof the hash of its text, and of the prover that made it."""

import ast
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from rlflow.common.files import write_json
from rlflow.rules.rule import Rule

FOLDER = Path(__file__).parent
PROOFS = FOLDER / "proofs.json"
CODE = (*sorted(FOLDER.glob("*.py")), FOLDER.parent / "expressions.py")


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


@cache
def prover_hash() -> str:
    """Of the code that proofs depend on, without its comments."""
    digest = hashlib.sha256()
    for path in CODE:
        digest.update(ast.dump(ast.parse(path.read_text())).encode())
    return digest.hexdigest()


def text_hash(rule: Rule) -> str:
    return hashlib.sha256(rule.text.encode()).hexdigest()


def load_proofs(path: Path = PROOFS) -> dict[str, dict]:
    """Rule name → its proof's record, with the hashes of the text and the prover."""
    return json.loads(path.read_text()) if path.exists() else {}


def store_proofs(rules: Iterable[Rule], proofs: Iterable[Proof], path: Path = PROOFS) -> None:
    """Adds the proofs to the file; those of rules that are no more, or read otherwise now, go."""
    texts = {rule.name: text_hash(rule) for rule in rules}
    known = {name: record for name, record in load_proofs(path).items() if record["text"] == texts.get(name)}
    known |= {
        proof.name: {**proof.record(), "text": texts[proof.name], "prover": prover_hash()} for proof in proofs
    }
    write_json(path, dict(sorted(known.items())))


def proof_of(rule: Rule, proofs: dict[str, dict]) -> dict | None:
    """The rule's stored proof; None if there is none for its present text."""
    record = proofs.get(rule.name)
    return record if record is not None and record["text"] == text_hash(rule) else None
