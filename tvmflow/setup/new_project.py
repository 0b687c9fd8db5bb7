"""Create a workspace, and add a model to params.yaml from the header of its file.

Nothing is overwritten: existing files are kept, an entry of the same name is an error, and the rest of params.yaml
stays unchanged, including comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tvmflow.config.model_params import PRESETS
from tvmflow.config.options import explain
from tvmflow.config.params import LOCAL_CPU, PRECISIONS, Cell, ModelEntry, Params
from tvmflow.config.value_types import NAME_PATTERN
from tvmflow.config.workspace import Workspace
from tvmflow.config.yaml_reader import load_yaml
from tvmflow.frontends.registry import FRONTENDS
from tvmflow.setup.model_inputs import InputRequest, inputs_of
from tvmflow.setup.preflight import check_labels, check_model, read_model_header
from tvmflow.setup.target_presets import add_target, presets
from tvmflow.setup.yaml_editor import add_entry
from tvmflow.sources.data.datasets import BUILT_IN_DATASETS
from tvmflow.sources.data.labels import BUILT_IN
from tvmflow.sources.model_files import check_dataset
from tvmflow.support.errors import ModelFileError, ParamsError, SourceError, UnknownNameError, UsageError
from tvmflow.support.files import write_atomic

_PARAMS = """\
# yaml-language-server: $schema=params.schema.json
# The models, targets and cells of this workspace. What is not written here has its default:
# models are brought to this machine ("local-cpu") in float32. 'tvmflow add MODEL_FILE' adds a model.
models:
"""
_README = """\
# {name}

Models compiled, tuned, measured and released with tvmflow.

    tvmflow add MODEL_FILE     # its entry in params.yaml
    tvmflow run NAME           # all stages: a library, a scorecard
    tvmflow report             # a page with everything
    tvmflow promote NAME       # release it, if the gate lets it pass

params.yaml is the only file to edit; dvc.yaml, code.json, pipelines/ and params.schema.json are written by tvmflow.
After an upgrade of tvmflow run 'tvmflow init', so that 'dvc repro' knows of it.
"""
_IGNORED = """\
.venv/
__pycache__/
.prefect/
artifacts/
mlruns/
report.html
search-*.html
/dvc_storage/
"""
_DVC_IGNORED = "__pycache__\n.venv\n.prefect\nmlruns\n"


def new_files(folder: Path) -> dict[str, str]:
    """Return name -> text of the files of a new workspace that tvmflow never changes again."""
    name = folder.resolve().name
    return {
        "params.yaml": _PARAMS,
        "README.md": _README.format(name=name),
        "prefect.yaml": _deployments(name),
        ".gitignore": _IGNORED,
        ".dvcignore": _DVC_IGNORED,
    }


def _deployments(name: str) -> str:
    text = (Path(__file__).parent / "deployments.yaml").read_text(encoding="utf-8")
    return re.sub(r"^(name|  - name): tvmflow$", lambda found: f"{found[1]}: {json.dumps(name)}", text, flags=re.M)


_MARKS = ("params.yaml", "dvc.yaml")  # of a workspace


def make_workspace(folder: Path, targets: Sequence[str] = ()) -> Path:
    """Write the files of a new workspace and return its folder. targets: presets that its params.yaml gets. Raises
    UsageError if there is one already.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", "the name of a folder", "choose another name")
    for name in _MARKS:
        if (folder / name).exists():
            raise UsageError(
                f"{folder} already has a {name}",
                "a new or empty folder, or one without params.yaml and dvc.yaml",
                "change to it and use 'tvmflow add MODEL_FILE', or choose another folder",
            )
    files = new_files(folder)
    for target in targets:
        files["params.yaml"] = add_target(files["params.yaml"], target)
    for name, text in sorted(files.items(), key=lambda one: one[0] in _MARKS):  # last: they say it is there
        if not (folder / name).exists():
            write_atomic(folder / name, text)
    return folder.resolve()


@dataclass(frozen=True)
class ModelRequest:
    """A user's options for a model to add; None: from the file, or the default. dataset: a built-in name, an .npz file
    or a folder of images by class; labels: a built-in name or a file; preset: of the preprocessing; network: the
    factory of the network whose weights the file has; tokenizer: a tokenizer.json.
    """

    name: str | None = None
    target: str = LOCAL_CPU
    precision: str = "float32"
    inputs: InputRequest = field(default_factory=InputRequest)
    dataset: str | None = None
    labels: str | None = None
    preset: str | None = None
    network: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True)
class Added:
    """name, entry: the model in params.yaml, new or with a further cell; cell_name, cell: its new cell."""

    name: str
    entry: dict[str, Any]
    cell_name: str
    cell: Cell


def add_model(workspace: Workspace, path: Path, request: ModelRequest) -> Added:
    """Read a model file's header and write its entry and cell into params.yaml; only the cell, and its target, of a
    model that is there. Writes nothing if it raises.
    """
    params = workspace.params
    name = request.name or re.sub(r"[^A-Za-z0-9_-]+", "-", _stem(path)).strip("-_")[:64] or "model"
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(
            f"name {name!r} is not safe: names reach a shell and the file system",
            "letters, digits, '-' and '_', starting with a letter or digit, at most 64",
        )
    before = workspace.params_path.read_text(encoding="utf-8")
    known = _known_entry(before, name, path, workspace.root, request) if name in params.models else None
    for word, wanted, legal in (
        ("target", request.target, {**params.targets, **presets()}),
        ("precision", request.precision, PRECISIONS),
    ):
        if wanted not in legal:
            raise UnknownNameError(f"unknown {word} {wanted!r}", legal=legal, name=wanted)
    cell = Cell.model_validate({"model": name, "target": request.target, "precision": request.precision})
    if cell in params.cells.values():
        raise UsageError(
            f"cell {cell} already exists", "another --target, --precision or --name", f"run it: tvmflow run {cell}"
        )
    entry = known or _entry(name, _file(path), workspace.root, request)
    after = before if known else add_entry(before, "models", name, entry)
    added = {} if request.target in params.targets else {request.target: presets()[request.target].entry}
    for target in added:
        after = add_target(after, target)
    cell_name = _free_name(params, cell)
    for listed, value in _cells_to_write(before, params, cell_name, cell):
        after = add_entry(after, "cells", listed, value.model_dump(mode="json"), compact=True)
    _check(load_yaml(before) or {}, load_yaml(after), name, entry, added)
    write_atomic(workspace.params_path, after)
    try:
        check_labels(workspace, name, workspace.params.models[name])
        check_model(workspace, name)
        check_dataset(workspace.params.models[name], workspace.root)
    except BaseException:
        write_atomic(workspace.params_path, before)
        raise
    return Added(name, entry, cell_name, cell)


def _known_entry(text: str, name: str, path: Path, root: Path, request: ModelRequest) -> dict[str, Any]:
    """Return the entry of a model in params.yaml. Raises UsageError unless the request is a further cell of it."""
    entry: dict[str, Any] = (load_yaml(text).get("models") or {})[name]
    weights = entry.get("weights")
    file = weights.get("file") if isinstance(weights, dict) else None
    if file is None or not path.exists() or (root / file).resolve() != _file(path):
        raise UsageError(f"models.{name} already exists", "an unused name", "choose one with --name")
    if request != ModelRequest(request.name, request.target, request.precision):
        raise UsageError(
            f"models.{name} already exists, and options of the model were given",
            "for a further cell of it: --target, --precision",
            f"edit models.{name} in params.yaml, or choose another name with --name",
        )
    return entry


def _stem(path: Path) -> str:
    return path.name.removesuffix("-symbol.json") if path.name.endswith("-symbol.json") else path.name.split(".")[0]


def _file(path: Path) -> Path:
    if path.is_dir():
        if not (path / "saved_model.pb").is_file():
            raise SourceError(f"{path} is a folder", "a model file, or a SavedModel folder", "pass the file in it")
        path /= "saved_model.pb"
    if not path.is_file():
        raise SourceError(f"no file {path}", "a model file", "correct its name")
    return path.resolve()


def _entry(name: str, file: Path, root: Path, request: ModelRequest) -> dict[str, Any]:
    """Return the entry of a model file. Raises ModelFileError."""
    header = read_model_header(file)
    endings = "; ".join(f"{name}: {', '.join(row.files.suffixes)}" for name, row in FRONTENDS.items())
    if header is None:
        raise ModelFileError(f"{file.name} is not a supported model file", f"one of {endings}")
    if header["pickled"]:
        raise ModelFileError(
            f"{file.name} is a pickled nn.Module, of class {header['pickled']}: it has weights and the names of Python "
            "code, which it does not contain and which nobody should run from a file",
            "a file with the whole graph, or weights alone",
            "in Python: torch.export.save(torch.export.export(model.eval(), (example,)), 'model.pt2'), then add that; "
            "or safetensors.torch.save_file(model.state_dict(), 'w.safetensors') and --network FILE.py:FUNCTION",
        )
    if not header["is_whole"] and request.network is None:
        raise ModelFileError(
            f"{file.name} is {header['kind']}: weights without the network",
            "a file with the whole model",
            "export the model (torch.export.save, model.save('x.keras'), torch.onnx.export), or name the function that "
            "builds it: --network FILE.py:FUNCTION --shape 1,3,224,224",
        )
    framework = header["frameworks"][0]
    if not file.name.lower().endswith(FRONTENDS[framework].files.suffixes):
        raise ModelFileError(
            f"{file.name} is {header['kind']}",
            f"a name that ends in {', '.join(FRONTENDS[framework].files.suffixes)}",
            "rename it",
        )
    entry: dict[str, Any] = {"framework": framework, "weights": {"file": _inside(file, root)}}
    if request.network is not None:
        entry["network"] = request.network
    entry |= inputs_of(file, header, request.inputs) | _data(root, request)
    try:
        ModelEntry.model_validate(entry)
    except ValidationError as error:
        lines = "\n".join(explain(error, ModelEntry, f"models.{name}"))
        raise ModelFileError(f"no valid entry can be made from {file.name}:\n{lines}") from None
    return entry


def _inside(file: Path, root: Path) -> str:
    """Return a file's path as params.yaml has it: relative, if the workspace can be moved with it."""
    return str(file.relative_to(root) if file.is_relative_to(root) else file)


def _data(root: Path, request: ModelRequest) -> dict[str, Any]:
    """Return the keys of an entry that options name. Raises UnknownNameError, SourceError."""
    entry: dict[str, Any] = {}
    if request.preset is not None:
        if request.preset not in PRESETS:
            raise UnknownNameError(f"unknown preprocessing {request.preset!r}", legal=PRESETS, name=request.preset)
        entry["preprocess"] = {"preset": request.preset}
    for key, text, built_in in (
        ("dataset", request.dataset, BUILT_IN_DATASETS),
        ("labels", request.labels, BUILT_IN),
        ("tokenizer", request.tokenizer, ()),
    ):
        if text is None:
            continue
        path = Path(text).resolve()
        if text not in built_in and not path.exists():
            expected = ", ".join([*built_in, "a file"])
            raise SourceError(f"no {key} {text}", expected, "correct its name")
        name = text if text in built_in else _inside(path, root)
        entry[key] = {"folder": name} if text not in built_in and path.is_dir() else name
    return entry


def _free_name(params: Params, cell: Cell) -> str:
    """Return an unused name for the cell: the model's, with a suffix for non-default choices."""
    parts = [cell.model]
    parts += [cell.target] if cell.target != LOCAL_CPU else []
    parts += [cell.precision.replace("_", "-")] if cell.precision != "float32" else []
    name = "-".join(parts)[:60]
    return next(n for n in (name, *(f"{name}-{i}" for i in range(2, 1000))) if n not in params.cells)


def _cells_to_write(text: str, params: Params, cell_name: str, cell: Cell) -> Iterator[tuple[str, Cell]]:
    """Yield the cells to list: none if the default suffices, all if listing one would remove the default."""
    if (load_yaml(text) or {}).get("cells") is None:
        if cell.target == LOCAL_CPU and cell.precision == "float32":
            return
        yield from params.cells.items()
    yield cell_name, cell


def _check(
    before: dict[str, Any], after: dict[str, Any], name: str, entry: dict[str, Any], added: dict[str, Any]
) -> None:
    """Check that the edit made exactly the intended change; a valid file stays valid. added: targets."""
    expected = {**before, "models": {**(before.get("models") or {}), name: entry}}
    expected |= {"targets": {**(before.get("targets") or {}), **added}} if added else {}
    if {**after, "cells": None} != {**expected, "cells": None}:
        raise UsageError(
            "params.yaml has a form that this command cannot edit",
            "block style",
            f"add this under models: by hand: {name}: {entry}",
        )
    try:
        Params.model_validate(after)
    except ValidationError as error:
        raise ParamsError(f"models.{name} would not be valid:\n" + "\n".join(explain(error, Params))) from None
