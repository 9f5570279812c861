"""Read and write the records of proofs (proofs.json).

Each record holds the result of one rule's proof and the hash of the rule's text. A record is valid only for this text:
`proof_of` returns None after the rule has changed. The proofs themselves are made offline by
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
    """The result of proving one rule.

    Attributes:
      name: the rule's name.
      proof: `all-shapes`, `bounded`, `refuted` or `unproved`.
      bound: the shapes that the proof covers, in words.
      seconds: duration of the proof.
      how: the method of the proof, the counterexample, or the reason why there is no proof.
    """

    name: str
    proof: str
    bound: str
    seconds: float
    how: str


def text_hash(rule: Rule) -> str:
    """Return the SHA-256 of the rule's canonical text, in hexadecimal."""
    return hashlib.sha256(rule.text.encode()).hexdigest()


def load_proofs(path: Path = PROOFS) -> dict[str, dict]:
    """Return rule name → fields of `Proof`, and `text`, the hash of the proved text; {} if the file does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def store_proofs(rules: Iterable[Rule], proofs: Iterable[Proof], path: Path = PROOFS) -> None:
    """Add proofs to the file and delete the records of rules that no longer exist or whose text changed.

    Args:
      rules: all rules that exist now.
      proofs: the new results, each for one of these rules.
      path: the file of records.
    """
    texts = {rule.name: text_hash(rule) for rule in rules}
    known = {name: record for name, record in load_proofs(path).items() if record["text"] == texts.get(name)}
    known |= {proof.name: {**asdict(proof), "text": texts[proof.name]} for proof in proofs}
    write_json(path, dict(sorted(known.items())))


def proof_of(rule: Rule, proofs: dict[str, dict]) -> dict | None:
    """Return the record of a rule's proof, or None if no record is for the rule's current text.

    Args:
      rule: the rule.
      proofs: rule name → record, as `load_proofs` returns them.
    """
    record = proofs.get(rule.name)
    return record if record is not None and record["text"] == text_hash(rule) else None
