"""Look at what a cell is made from before anything runs: does the model's file fit its entry in params.yaml?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.errors import ModelFileError
from tvmflow.sandbox.process import Policy, run_in_sandbox
from tvmflow.sources.weights import local_file
from tvmflow.workspace import Workspace

MAX_BYTES = 2 << 30  # files over that are left to the import, which reads them in parts
_TIMEOUT_S = 60.0
_CHANNELS_FIRST = ("onnx", "torch")  # the entry's shape is the file's own; the others may lie channels last


def check_model(workspace: Workspace, name: str) -> None:
    """Compare a local model file with the model's entry: framework, number, type and shape of inputs."""
    entry = workspace.params.models[name]
    if entry.weights.file is None:
        return
    file = local_file(entry.weights.file, workspace.root)
    header = read_model_header(file)
    if header is not None:
        _compare(name, file, header, entry.framework, entry.input.shape)


def read_model_header(file: Path) -> dict[str, Any] | None:
    """Return a `headers.Header` as plain data, None where the format is not recognized. Raises ModelFileError."""
    policy = Policy(_TIMEOUT_S, reads=(file.parent, file.resolve()))
    found: dict[str, Any] | None = run_in_sandbox(
        "tvmflow.frontends.headers:read_header", {"path": str(file), "size": MAX_BYTES}, policy
    )
    return found


def _compare(name: str, file: Path, header: dict[str, Any], framework: str, wanted: tuple[int, ...]) -> None:
    if framework not in header["frameworks"]:
        raise ModelFileError(
            f"{file.name} is {header['kind']}", f"a file for {framework}, as models.{name}.framework says",
            f"set models.{name}.framework to {header['frameworks'][0]}",
        )  # fmt: skip
    inputs = header["inputs"]
    if inputs is None:
        return
    if len(inputs) != 1:
        raise ModelFileError(
            f"{file.name} has {len(inputs)} inputs: {', '.join(str(i['name']) for i in inputs)}", "one input",
            "export the model with one input, the others as constants",
        )  # fmt: skip
    found = inputs[0]
    is_integer = found["dtype"] not in ("", "float32") and not (
        framework == "tensorflow" and found["dtype"] in ("int8", "uint8")
    )
    if is_integer:
        raise ModelFileError(
            f"input {found['name']} of {file.name} is {found['dtype']}",
            "float32",
            "export the model with a float32 input",
        )
    shape = found["shape"]
    fits = len(shape) == len(wanted) and all(have in (-1, want) for have, want in zip(shape, wanted, strict=False))
    if framework in _CHANNELS_FIRST and shape and not fits:
        raise ModelFileError(
            f"input {found['name']} of {file.name} has shape {['?' if size < 0 else size for size in shape]}",
            f"{list(wanted)}, as models.{name}.input.shape says", "correct one of the two",
        )  # fmt: skip
