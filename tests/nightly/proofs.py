"""Check that a new proof of every rule gives the same result as its record in rlflow/rules/proofs.json."""

import sys

from rlflow.proving.prove import prove
from rlflow.rules.language import families, load_rules
from rlflow.rules.proofs import Proof, load_proofs, proof_of
from rlflow.rules.rule import Rule
from tests.nightly import WORKERS, parser


def differences(rules: list[Rule], proofs: list[Proof], records: dict[str, dict]) -> list[str]:
    """Return one line for each rule whose proof differs from its record.

    Args:
        rules: the rules.
        proofs: the new proof of each rule.
        records: rule name → proof record, as `load_proofs` returns them.
    """
    result = []
    for rule, proof in zip(rules, proofs, strict=True):
        record = proof_of(rule, records)
        if record is None:
            result.append(f"{rule.name}: no record for this text")
        elif (proof.proof, proof.bound) != (record["proof"], record["bound"]):
            recorded = f"{record['proof']} ({record['bound']})"
            result.append(f"{rule.name}: recorded {recorded}, now {proof.proof} ({proof.bound}): {proof.how}")
    return result


def main() -> int:
    parser(__doc__).parse_args()
    rules = list(load_rules(families()))
    proofs = prove(rules, workers=WORKERS, progress=lambda proof: print(proof.name, proof.proof, file=sys.stderr))
    found = differences(rules, proofs, load_proofs())
    print(*found, sep="\n", file=sys.stderr)
    print(f"{len(rules)} rules proved again, {len(found)} differ from their records")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
