"""Check in under a second what a cell needs: packages, files, model header, compiler, device, disk.

Only what the pending stages need is checked. Starts neither Prefect nor TVM.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tvmflow.backends.registry import backend_for
from tvmflow.config.fixed_inputs import FLOATS
from tvmflow.config.model_params import Tensor
from tvmflow.config.params import DTYPES, Cell, DeviceEntry, ModelEntry
from tvmflow.config.workspace import Workspace
from tvmflow.devices.probe_processor import ask_processor
from tvmflow.devices.registry import transport_of
from tvmflow.frontends.registry import FRONTENDS, frontend_named
from tvmflow.frontends.source_model import fixed_specs
from tvmflow.pipeline.recipe_key import code_of
from tvmflow.pipeline.stage import AnyStage
from tvmflow.sandbox.process import Policy, memory_for, reading_s, run_in_sandbox
from tvmflow.sources.data.labels import BUILT_IN
from tvmflow.sources.model_files import check_dataset, labels_of
from tvmflow.sources.weights import local_file
from tvmflow.support.errors import (
    DeviceError,
    DeviceUnknownError,
    ModelFileError,
    SourceError,
    StageTimeoutError,
    StoreError,
    ToolchainError,
    TvmflowError,
    UsageError,
)
from tvmflow.support.files import digest_of, why_not_writable, write_atomic
from tvmflow.support.json_values import to_json
from tvmflow.targets.probed_processors import DEVICE, read_record
from tvmflow.toolchain.compilers import compiler_named
from tvmflow.toolchain.versions import version

MAX_BYTES = 2 << 30  # larger files are checked by the import, which reads them in parts
_CHANNELS_FIRST = ("onnx", "torch")  # the entry's shape is the file's own; the others may lie channels last


_FOLDERS = ("artifacts", "mlruns", ".prefect", ".dvc")  # that a run writes to
MIN_FREE_BYTES = 1 << 30  # a small network's artifacts, DVC's copy of them, the tuner's builds


def ask_processors(workspace: Workspace, cells: Collection[Cell]) -> dict[str, TvmflowError]:
    """Query the devices of targets with `mcpu: device`. Returns cell -> why it cannot be run: never queried, and
    unavailable now.
    """
    why: dict[str, TvmflowError] = {}
    for name in {cell.target: None for cell in cells if workspace.params.targets[cell.target].mcpu == DEVICE}:
        entry = workspace.params.targets[name]
        try:
            ask_processor(entry, workspace.params.deploy.device_wait_s)
        except TvmflowError as error:
            if read_record(entry) is None or not isinstance(error, DeviceError):
                hint = f"attach the device once, what it says is kept; or name its processor with targets.{name}.mcpu"
                why[name] = type(error)(
                    f"{error.found} (asked for mcpu: device)", error.expected, f"{error.hint}; {hint}"
                )
    return {str(cell): why[cell.target] for cell in cells if cell.target in why}


def check_cell(workspace: Workspace, cell: Cell, todo: Collection[AnyStage], found: set[str] | None = None) -> None:
    """Raise TvmflowError for a problem that would end a run of these stages of a cell.

    found: models and room that were found fine, which is not looked for again: 600 cells read 40 models.
    """
    found = set() if found is None else found
    model = workspace.params.models[cell.model]
    names = {stage.name for stage in todo}
    if names & {"fetch", "import_model"} and f"model {cell.model}" not in found:
        _check_packages(cell.model, model)
        check_labels(workspace, cell.model, model)
        check_model(workspace, cell.model)
        check_dataset(model, workspace.root)
        found.add(f"model {cell.model}")
    _check_compiler(workspace, cell, todo)
    if "room" not in found:
        check_room(workspace)
        found.add("room")


def why_no_device(
    workspace: Workspace, cell: Cell, todo: Collection[AnyStage], known: dict[str, TvmflowError | None]
) -> TvmflowError | None:
    """Return why these stages of a cell cannot use its device, None if they can. known: answers by target."""
    if not any(stage.measures_device for stage in todo):
        return None
    if cell.target not in known:
        known[cell.target] = None
        try:
            _check_device(cell.target, workspace.params.targets[cell.target].device)
        except DeviceError as error:
            known[cell.target] = error
    return known[cell.target]


def missing_for(workspace: Workspace, cell: Cell, todo: Collection[AnyStage]) -> list[TvmflowError]:
    """Return all that would end a run of these stages of a cell, where `check_cell` raises the first."""
    model, target = workspace.params.models[cell.model], workspace.params.targets[cell.target]
    checks: tuple[Callable[[], None], ...] = (
        lambda: _check_packages(cell.model, model),
        lambda: check_labels(workspace, cell.model, model),
        lambda: check_model(workspace, cell.model),
        lambda: check_dataset(model, workspace.root),
        lambda: _check_compiler(workspace, cell, todo),
        lambda: _check_device(cell.target, target.device),
    )
    missing = []
    for check in checks:
        try:
            check()
        except TvmflowError as error:
            missing.append(error)
    return missing


def _check_compiler(workspace: Workspace, cell: Cell, todo: Collection[AnyStage]) -> None:
    """Raise ToolchainError if the compiler that links for a cell's target is missing."""
    target = workspace.params.targets[cell.target]
    backend = backend_for(target)
    resolved = backend.target
    if any(stage.name in ("graph_pack", "build") for stage in todo):
        backend.check_tools()
    tools = {tool for stage in todo for tool in stage.toolchain(stage.settings(workspace, cell))}
    if f"cc:{resolved.cc}" in tools:
        try:
            compiler_named(resolved.cc).command(resolved.mtriple)
        except ToolchainError as error:
            raise ToolchainError(
                f"{error.found}, which target {cell.target!r} links with",
                error.expected,
                f"{error.hint}; or choose another one with targets.{cell.target}.cc",
            ) from None


def check_room(workspace: Workspace) -> None:
    """Raise StoreError if a folder of the workspace takes no files, or its disk has too little room for a run."""
    for folder in (workspace.root, *(workspace.root / name for name in _FOLDERS)):
        if folder.exists() and (error := why_not_writable(folder)):
            raise error
    free = shutil.disk_usage(workspace.root).free
    if free < MIN_FREE_BYTES:
        raise StoreError(
            f"{free >> 20} MiB are free on the disk of {workspace.root}",
            f"at least {MIN_FREE_BYTES >> 20} MiB",
            "free some space: 'dvc gc --all-commits' removes cached data that no commit uses",
        )


def _check_packages(name: str, model: ModelEntry) -> None:
    """Raise UsageError if the model's framework is not installed."""
    needed = [tool for tool in FRONTENDS[model.framework].tools[:1] if not tool.startswith("tool:")]
    if (model.network or "").startswith("torchvision/"):
        needed.append("torchvision")
    absent = [tool for tool in needed if version(tool) == "absent"]
    if absent:
        raise UsageError(
            f"{' and '.join(absent)} not installed, which models.{name} needs",
            f"the packages of {model.framework}",
            f"pip install 'tvmflow[{model.framework}]'",
        )


def check_labels(workspace: Workspace, name: str, model: ModelEntry) -> None:
    """Raise SourceError if the class names cannot be read."""
    try:
        labels_of(model, workspace.root)
    except SourceError as error:
        hint = error.hint or f"correct models.{name}.labels: {', '.join(BUILT_IN)}, or a file of this workspace"
        raise SourceError(error.found, error.expected, hint) from None


def _check_device(name: str, device: DeviceEntry) -> None:
    state = transport_of(device).state(device)
    if not state.is_there:
        raise DeviceUnknownError(
            f"no device with key {device.key!r} for target {name!r} ({state.text})",
            "at least one",
            (state.hint or f"start the RPC server on the device with --key {device.key}")
            + "; 'tvmflow devices' lists the registered devices",
        )


def check_model(workspace: Workspace, name: str) -> None:
    """Compare a local model file with the model's entry: framework, number, type and shape of inputs."""
    entry = workspace.params.models[name]
    if entry.weights.file is None:
        return
    file = local_file(entry.weights.file, workspace.root)
    header = _known_header(workspace, file)
    if header is not None:
        _compare(name, file, header, entry)


def _known_header(workspace: Workspace, file: Path) -> dict[str, Any] | None:
    """Return what `read_model_header` does, from the last time if the file and the reader are the same: each sandbox
    takes a quarter of a second.
    """
    try:
        digest = workspace.digests.sha256_of(file)
    except OSError:
        return read_model_header(file)
    reader = digest_of(code_of("tvmflow.frontends.file_headers"))
    place = workspace.common / ".index" / "headers" / f"{digest[:32]}-{reader[:16]}{file.suffix}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known: dict[str, Any] | None = json.loads(place.read_text(encoding="utf-8"))["header"]
        return known
    header = read_model_header(file)
    with contextlib.suppress(OSError):
        write_atomic(place, json.dumps({"header": header}))
    return header


def read_model_header(file: Path) -> dict[str, Any] | None:
    """Return a `headers.Header` as plain data, None where the format is not recognized. Raises ModelFileError."""
    policy = Policy(reading_s(file), reads=(file,))
    found: dict[str, Any] | None = run_in_sandbox(
        "tvmflow.frontends.file_headers:read_header", {"path": str(file), "size": MAX_BYTES}, policy
    )
    return found


def check_operators(workspace: Workspace, name: str) -> None:
    """Convert a local model file of an entry. Raises UnsupportedOperatorError with all that its importer lacks,
    UsageError where its framework is not installed.

    A SavedModel or a frozen graph is left to the import, which makes an environment for TensorFlow.
    """
    entry = workspace.params.models[name]
    _check_packages(name, entry)
    if entry.weights.file is None or entry.network is not None or entry.weights.file.endswith(".zip"):
        return
    file = local_file(entry.weights.file, workspace.root)
    if file.name.endswith((".pb", ".tar.gz", ".tgz")):
        return
    if file.stat().st_size > MAX_BYTES:
        return
    inputs = [
        {"name": name, "shape": list(tensor.shape), "dtype": tensor.dtype} for name, tensor in entry.tensors.items()
    ]
    fixed = to_json(fixed_specs(entry.fixed))
    named = {"framework": entry.framework, "file": file.name}
    files = (file, *frontend_named(entry.framework).files.companions(file).values())
    arguments = {"folder": str(file.parent), **named, "inputs": inputs, "fixed": fixed}
    policy = Policy(reading_s(*files), reads=files, memory_bytes=memory_for(*files))
    with contextlib.suppress(ModelFileError, StageTimeoutError):  # the import, which takes longer, says what is wrong
        run_in_sandbox("tvmflow.frontends.operator_check:check_operators", arguments, policy)


def _compare(name: str, file: Path, header: dict[str, Any], entry: ModelEntry) -> None:
    framework = entry.framework
    if framework not in header["frameworks"]:
        raise ModelFileError(
            f"{file.name} is {header['kind']}",
            f"a file for {framework}, as models.{name}.framework says",
            f"set models.{name}.framework to {header['frameworks'][0]}",
        )
    inputs = header["inputs"]
    if inputs is None:
        return
    fixed = {spec.name: Tensor(spec.shape, spec.dtype, None, None) for spec in fixed_specs(entry.fixed)}
    wanted = entry.tensors | fixed
    if len(inputs) == len(wanted) == 1:
        pairs = [(inputs[0], "input", *wanted.values())]
    else:
        _check_names(name, file, [str(found["name"]) for found in inputs], entry)
        pairs = [(found, f"inputs.{found['name']}", wanted[found["name"]]) for found in inputs]
    for found, key, tensor in pairs:
        _compare_input(f"input {found['name']} of {file.name}", found, f"models.{name}.{key}", tensor, framework)


def _check_names(name: str, file: Path, found: list[str], entry: ModelEntry) -> None:
    wanted = [*entry.tensors, *entry.fixed]
    if sorted(found) != sorted(wanted):
        key = "input" if entry.input is not None else "inputs"
        raise ModelFileError(
            f"{file.name} has {len(found)} inputs: {', '.join(found)}",
            f"{', '.join(wanted)}, as models.{name}.{key} says",
            f"give models.{name} inputs: with a block of shape and dtype for each",
        )


def _compare_input(what: str, found: dict[str, Any], key: str, wanted: Tensor, framework: str) -> None:
    """Compare one input of the file with its block in params.yaml."""
    is_quantized = framework == "tensorflow" and found["dtype"] in ("int8", "uint8") and wanted.dtype == "float32"
    is_cast = found["dtype"] in FLOATS and wanted.dtype == "float32"
    if found["dtype"] not in ("", wanted.dtype) and not is_quantized and not is_cast:
        fix = (
            f"set {key}.dtype to {found['dtype']}"
            if found["dtype"] in DTYPES
            else "export the model with a float32 input"
        )
        raise ModelFileError(f"{what} is {found['dtype']}", f"{wanted.dtype}, as {key}.dtype says", fix)
    shape, sizes = found["shape"], wanted.shape
    if shape is None:
        return
    fits = len(shape) == len(sizes) and all(have in (-1, want) for have, want in zip(shape, sizes, strict=False))
    if framework in _CHANNELS_FIRST and not fits:
        raise ModelFileError(
            f"{what} has shape {['?' if size < 0 else size for size in shape]}",
            f"{list(sizes)}, as {key}.shape says",
            "correct one of the two",
        )
