"""Read and write the records of proofs (proofs.json).

Each record holds the result of one rule's proof and the hash of the rule's text. A record counts only for the text that
it was made for: `proof_of` returns None after the rule has changed. The proofs themselves are made offline by
rlflow.proving; `make nightly` proves every rule again and compares the results with these records.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rlflow.common.files import write_json
from rlflow.rules.rule import Rule

PROOFS = Path(__file__).with_name("proofs.json")


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


def text_hash(rule: Rule) -> str:
    return hashlib.sha256(rule.text.encode()).hexdigest()


def load_proofs(path: Path = PROOFS) -> dict[str, dict]:
    """Rule name → its proof's record, with the hash of the text."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


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
