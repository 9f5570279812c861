"""Copies of model files, together with the external weights that they name."""

from pathlib import Path

import onnx

from rlflow.common.errors import RLFlowError
from rlflow.common.files import copy_file, file_hash
from rlflow.graph.onnx_reader import external_files, external_locations
from rlflow.graph.onnx_writer import save_model


def copy_model(source: Path, out: Path, same: bool) -> None:
    """Copies a model, its external weights first, so that the model is there only if all of it is. One that was there
    is removed before they come: they would be read as its own.

    Args:
      same: whether the copy must be the same byte for byte. If not, weights that lie in a file named after the
        model's move to one named after the copy's, so that several models may lie in one folder.

    Raises RLFlowError rather than overwrite weights that belong to another model.
    """
    renamed = {} if same else {f"{source.name}.data": f"{out.name}.data"}
    locations = external_files(source)
    copies = [(source.parent / location, out.parent / renamed.get(location, location)) for location in locations]
    for location, (weights, copy) in zip(locations, copies, strict=True):
        if location not in renamed and copy.exists() and file_hash(copy) != file_hash(weights):
            raise RLFlowError(f"{out} needs its weights in {copy}, which is another file already; name another folder")
    for weights, copy in copies:
        if not copy.exists() or not copy.samefile(weights):
            copy_file(weights, copy, outdated=out)
    if not renamed.keys() & set(locations):
        copy_file(source, out)
        return
    model = onnx.load(source, load_external_data=False)
    for entry in external_locations(model):
        entry.value = renamed.get(entry.value, entry.value)
    save_model(model, out)
