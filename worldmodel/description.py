"""model.json of a saved world model: which one it is, its options, and the encoding that it was made for."""

from dataclasses import fields
from pathlib import Path

from rlflow.common.errors import RLFlowError
from rlflow.common.files import read_json, write_json
from rlflow.common.task import EncodingSpec
from worldmodel.config import CONFIGS, WorldModelConfig

FILE = "model.json"


def write_description(folder: Path | str, config: WorldModelConfig, spec: EncodingSpec) -> None:
    write_json(Path(folder) / FILE, {"config": config.to_dict(), "spec": spec.to_dict()})


def read_description(folder: Path | str, spec: EncodingSpec | None = None) -> tuple[WorldModelConfig, EncodingSpec]:
    """What `write_description` wrote. Raises RLFlowError if it is damaged, or of another spec than the one given."""
    path = Path(folder) / FILE
    described = read_json(path)
    try:
        saved = EncodingSpec(**described["spec"])
        config = CONFIGS.get(described["config"]["name"])(**described["config"])
    except (KeyError, TypeError) as error:
        raise RLFlowError(f"{path} does not describe a world model: {error}") from error
    if spec is not None:
        _refuse_other_spec(saved, spec, str(folder))
    return config, saved


def _refuse_other_spec(saved: EncodingSpec, wanted: EncodingSpec, source: str) -> None:
    differences = [
        f"{field.name} is {getattr(saved, field.name)}, not {getattr(wanted, field.name)}"
        for field in fields(EncodingSpec) if getattr(saved, field.name) != getattr(wanted, field.name)
    ]
    if differences:
        raise RLFlowError(f"the world model in {source} was made for another encoding: {'; '.join(differences)}")
