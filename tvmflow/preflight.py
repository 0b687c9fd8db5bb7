"""Look at what a cell is made from before anything runs: does the model's file fit its entry in params.yaml?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.errors import ModelFileError
from tvmflow.params import DTYPES, InputTensor, ModelEntry
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
        _compare(name, file, header, entry)


def read_model_header(file: Path) -> dict[str, Any] | None:
    """Return a `headers.Header` as plain data, None where the format is not recognized. Raises ModelFileError."""
    policy = Policy(_TIMEOUT_S, reads=(file.parent, file.resolve()))
    found: dict[str, Any] | None = run_in_sandbox(
        "tvmflow.frontends.headers:read_header", {"path": str(file), "size": MAX_BYTES}, policy
    )
    return found


def _compare(name: str, file: Path, header: dict[str, Any], entry: ModelEntry) -> None:
    framework = entry.framework
    if framework not in header["frameworks"]:
        raise ModelFileError(
            f"{file.name} is {header['kind']}", f"a file for {framework}, as models.{name}.framework says",
            f"set models.{name}.framework to {header['frameworks'][0]}",
        )  # fmt: skip
    inputs = header["inputs"]
    if inputs is None:
        return
    wanted = entry.tensors
    if len(inputs) == len(wanted) == 1:
        pairs = [(inputs[0], "input", *wanted.values())]
    else:
        _check_names(name, file, [str(found["name"]) for found in inputs], entry)
        pairs = [(found, f"inputs.{found['name']}", wanted[found["name"]]) for found in inputs]
    for found, key, tensor in pairs:
        _compare_input(f"input {found['name']} of {file.name}", found, f"models.{name}.{key}", tensor, framework)


def _check_names(name: str, file: Path, found: list[str], entry: ModelEntry) -> None:
    if sorted(found) != sorted(entry.tensors):
        key = "input" if entry.input is not None else "inputs"
        raise ModelFileError(
            f"{file.name} has {len(found)} inputs: {', '.join(found)}", f"{', '.join(entry.tensors)}, as models.{name}.{key} says",
            f"give models.{name} inputs: with a block of shape and dtype for each",
        )  # fmt: skip


def _compare_input(what: str, found: dict[str, Any], key: str, wanted: InputTensor, framework: str) -> None:
    """Compare one input of the file with its block in params.yaml."""
    is_quantized = framework == "tensorflow" and found["dtype"] in ("int8", "uint8") and wanted.dtype == "float32"
    if found["dtype"] not in ("", wanted.dtype) and not is_quantized:
        fix = (
            f"set {key}.dtype to {found['dtype']}"
            if found["dtype"] in DTYPES
            else "export the model with a float32 input"
        )
        raise ModelFileError(f"{what} is {found['dtype']}", f"{wanted.dtype}, as {key}.dtype says", fix)
    shape, sizes = found["shape"], wanted.shape
    fits = len(shape) == len(sizes) and all(have in (-1, want) for have, want in zip(shape, sizes, strict=False))
    if framework in _CHANNELS_FIRST and shape and not fits:
        raise ModelFileError(
            f"{what} has shape {['?' if size < 0 else size for size in shape]}",
            f"{list(sizes)}, as {key}.shape says", "correct one of the two",
        )  # fmt: skip
