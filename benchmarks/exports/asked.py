"""What the commands that go over exported models are told, whatever they do with one of them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of such a command.

    Attributes:
      folder: of this rule set.
      seconds: what `optimise` gets; None for its default.
      measure_seconds: what a measurement gets; sessions: how many it may have.
      overrides: options of configs/default.yaml, KEY=VALUE.
      exporter_python: a Python that has the exporters.
    """

    folder: Path
    seed: int
    seconds: float | None
    measure_seconds: float
    sessions: int
    overrides: Sequence[str]
    exporter_python: str


def asked(parsed: argparse.Namespace) -> dict:
    """The fields of `Asked`, as the command line has them."""
    return {field.name: getattr(parsed, field.name) for field in fields(Asked)}
