"""Run a built library: load, in this process; predict, on the cell's device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.api.workspace import CellName, Where, cell_of, open_workspace
from tvmflow.support.errors import SourceError, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmflow.config.params import Cell
    from tvmflow.config.workspace import Workspace
    from tvmflow.evaluation.guesses import Guess, Prediction, TextPrediction
    from tvmflow.evaluation.loaded_library import LoadedLibrary, Outputs

_MOST_IMAGES = 10_000
_LONGEST_PATH = 254  # a longer text is no name of a folder


def load(cell: CellName, workspace: Where = None) -> LoadedLibrary:
    """Return a cell's library as a callable in this process: `with load("digits") as model: y = model(x)`.

    x: (N, ...) as the model's input, N samples; y: (N, ...). Raises StoreError where the cell is not built, UsageError
    where this machine's processor cannot run it.
    """
    from tvmflow.evaluation.loaded_library import LoadedLibrary

    where = open_workspace(workspace)
    return LoadedLibrary(_build_folder(where, cell_of(where, cell)))


def predict(cell: CellName, inputs: Any, workspace: Where = None) -> Outputs:
    """Run inputs (N, ...) through a cell's library for apps on the cell's device; return the outputs (N, ...).

    inputs: one array, or for several inputs a tuple in order or a dictionary by name. Of a model with buckets they have
    any size up to the largest: they are padded to a bucket, and outputs are cut to what the sizes make of them. Returns
    a tuple for several outputs.
    Raises StoreError if the cell is not built, DeviceError if the device is not available.
    """
    from tasks.device import device_limits, session_of
    from tvmflow.backends.manifest import read_manifest
    from tvmflow.backends.registry import resolve
    from tvmflow.devices.network_forms import network_library
    from tvmflow.evaluation.buckets import at_sizes, sizes_of_samples
    from tvmflow.evaluation.loaded_library import batch_of_specs, order_inputs
    from tvmflow.frontends.source_model import Runner, dynamic_axes, run_in_batches

    where = open_workspace(workspace)
    wanted = cell_of(where, cell)
    folder = _build_folder(where, wanted)
    manifest = read_manifest(folder)
    samples, sizes = order_inputs(manifest.inputs, inputs, str(wanted), manifest.sizes), manifest.sizes
    at = sizes_of_samples(sizes, [spec.name for spec in manifest.inputs], samples) if sizes else ()
    ships = network_library(folder, manifest.outputs, manifest.network.device)
    target = resolve(where.params.targets[wanted.target])
    with session_of(device_limits(where, wanted), target) as session:
        model: Runner = (remote := ships.upload_and_start(session))
        if sizes and at != sizes.largest:
            axes = dynamic_axes(manifest.outputs)
            model = remote.at(at) if remote.takes_sizes else at_sizes(remote, sizes, at, axes)
        outputs = run_in_batches(model, samples, batch_of_specs(manifest.inputs))
    return outputs[0] if len(outputs) == 1 else outputs


def predict_file(cell: CellName, path: Path | str, workspace: Where = None) -> dict[str, Any]:
    """Run the inputs in an .npy, .npz or CSV file as `predict` does; return the outputs by name.

    They are given to the network as they are. Raises SourceError for a file that does not fit, else like `predict`.
    """
    from pathlib import Path as AnyPath

    from tvmflow.backends.manifest import read_manifest
    from tvmflow.sources.data.input_files import read_inputs

    where = open_workspace(workspace)
    wanted = cell_of(where, cell)
    manifest = read_manifest(_build_folder(where, wanted))
    inputs = read_inputs(AnyPath(path), [(spec.name, spec.shape) for spec in manifest.inputs])
    outputs = predict(wanted, inputs, where)
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    return dict(zip([spec.name for spec in manifest.outputs], arrays, strict=True))


def takes_text(cell: CellName, workspace: Where = None) -> bool:
    """Return whether a cell's model names a tokenizer."""
    where = open_workspace(workspace)
    return where.params.models[cell_of(where, cell).model].tokenizer is not None


def texts_of(inputs: Sequence[str]) -> dict[str, str]:
    """Return name -> text: a text's name is itself, that of a .txt file, or of each in a folder, its path.

    Raises SourceError for a file that is no text.
    """
    from tvmflow.sources.data.tokens import read_texts

    texts: dict[str, str] = {}
    for one in inputs:
        is_file = one.endswith(".txt") or (len(one) <= _LONGEST_PATH and Path(one).is_dir())
        texts |= read_texts(Path(one)) if is_file else {one: one}
    return texts


def predict_text(
    cell: CellName, texts: Sequence[str], names: Sequence[str] = (), top: int = 5, workspace: Where = None
) -> list[TextPrediction]:
    """Turn texts into tokens by the tokenizer of the cell's model, run them on the cell's device, and return the
    outputs of each, and the most likely classes of a model with labels or `task: classification`.

    names: of the texts in results. A text with more tokens than the model takes is cut. Raises SourceError for an
    invalid tokenizer, UsageError for a model without one, else like `predict`.
    """
    from tvmflow.backends.manifest import read_manifest
    from tvmflow.evaluation.guesses import TextPrediction
    from tvmflow.evaluation.predict import predictions
    from tvmflow.sandbox.texts import tokenize_in_sandbox
    from tvmflow.sources.data.labels import class_names
    from tvmflow.sources.data.tokens import inputs_of, longest
    from tvmflow.sources.model_files import tokenizer_file

    where = open_workspace(workspace)
    wanted = cell_of(where, cell)
    model = where.params.models[wanted.model]
    file, manifest = tokenizer_file(model, where.root), read_manifest(_build_folder(where, wanted))
    tokens = tokenize_in_sandbox(file, texts, longest(model.tensors))
    outputs = _run_rows(wanted, [tuple(inputs_of(one, model.tensors, model.sizes).values()) for one in tokens], where)
    labels = class_names(where.folder("fetch", wanted), 0)
    results = []
    for name, one, arrays in zip(names or texts, tokens, outputs, strict=True):
        guesses: tuple[Guess, ...] = ()
        if arrays[0].ndim == 2 and (labels is not None or model.task == "classification"):
            guesses = predictions([name], arrays[0], labels, top, model.task)[0].top
        by_name = dict(zip([spec.name for spec in manifest.outputs], arrays, strict=True))
        results.append(TextPrediction(name, one.count, len(one.ids), by_name, guesses))
    return results


def _run_rows(cell: Cell, rows: Sequence[tuple[Any, ...]], workspace: Workspace) -> list[tuple[Any, ...]]:
    """Return the outputs (1, ...) of each row of inputs (1, ...). Rows of one shape run together."""
    import numpy as np

    groups: dict[tuple[Any, ...], list[int]] = {}
    for at, row in enumerate(rows):
        groups.setdefault(tuple(one.shape for one in row), []).append(at)
    found: dict[int, tuple[Any, ...]] = {}
    for places in groups.values():
        inputs = tuple(np.concatenate(arrays) for arrays in zip(*(rows[at] for at in places), strict=True))
        outputs = predict(cell, inputs, workspace)
        arrays = outputs if isinstance(outputs, tuple) else (outputs,)
        found |= {at: tuple(one[place : place + 1] for one in arrays) for place, at in enumerate(places)}
    return [found[at] for at in range(len(rows))]


def doubts(cell: CellName, workspace: Where = None) -> tuple[str, ...]:
    """Return what makes it doubtful that a cell's model gets images as in training; empty without a doubt."""
    from tvmflow.sources.data.preprocessing import doubts as of_model

    where = open_workspace(workspace)
    return of_model(where.params.models[cell_of(where, cell).model])


def classify(cell: CellName, images: Sequence[str | Path], top: int = 5, workspace: Where = None) -> list[Prediction]:
    """Preprocess image files, or those in a folder, for the cell's model, run them on the cell's device, and return the
    most likely classes of each.

    Raises SourceError for an invalid image, UsageError for a model without class scores, else like `predict`.
    """
    from pathlib import Path as AnyPath

    from tvmflow.evaluation.predict import predictions
    from tvmflow.sandbox.images import read_in_sandbox
    from tvmflow.sources.data.labels import class_names
    from tvmflow.sources.model_files import image_recipe, prepare_images

    where = open_workspace(workspace)
    wanted = cell_of(where, cell)
    _build_folder(where, wanted)
    model = where.params.models[wanted.model]
    if missing := [image for image in images if not _is_there(image)]:
        raise SourceError(
            f"no file {missing[0]}",
            "image files, or folders of them",
            "for texts, name the tokenizer.json of the model as models.NAME.tokenizer in params.yaml",
        )
    paths = [file for image in images for file in _files_in(AnyPath(image))]
    outputs = predict(wanted, prepare_images(read_in_sandbox(paths, image_recipe(model)), model), where)
    scores = outputs[0] if isinstance(outputs, tuple) else outputs
    names = class_names(where.folder("fetch", wanted), scores.shape[-1])
    return predictions([str(path) for path in paths], scores, names, top, model.task)


def _is_there(path: str | Path) -> bool:
    from pathlib import Path as AnyPath

    try:
        return AnyPath(path).exists()
    except (OSError, ValueError):  # a text that is too long for a name, or has zeros
        return False


def _files_in(path: Path) -> list[Path]:
    from tvmflow.sources.data.images import image_files

    return list(image_files(path, _MOST_IMAGES).values()) if path.is_dir() else [path]


def _build_folder(workspace: Workspace, cell: Cell) -> Path:
    folder = workspace.folder("build", cell)
    if not (folder / "library.so").is_file():
        raise StoreError(f"{cell} is not built", f"a library in {folder}", f"run 'tvmflow run {cell}'")
    return folder
