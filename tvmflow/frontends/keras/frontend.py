"""Import Keras 3 models on its torch backend: a .keras file, or a network factory and its HDF5 weights."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from tvmflow.frontends.archives import checked_copy
from tvmflow.frontends.keras.files import check_file, damaged_file_error
from tvmflow.frontends.keras.recurrent import keep_layers_whole
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.pytorch.float_ends import with_float_ends
from tvmflow.frontends.source_model import SourceDescription, input_positions, wrong_weights


def load(folder: Path, description: SourceDescription) -> ExportedModel:
    """Load a model. Code in model files (Lambda layers) is rejected. Raises ModelFileError."""
    model = source_model(folder, description)
    keep_layers_whole()
    _draw_nothing(model)
    stored, outputs = _types(model.inputs), _types(model.outputs)
    if len(model.inputs) > 1:
        module, places = _with_separate_inputs(model, description)
        stored = [stored[place] for place in places]
        return ExportedModel(with_float_ends(module, description.inputs, stored, outputs), description.inputs)
    shape, expected = tuple(model.inputs[0].shape), description.inputs[0].shape
    is_moved = len(expected) == 4 and shape[1:] == (expected[2], expected[3], expected[1]) and shape[1:] != expected[1:]
    module = with_float_ends(_of_one(model, is_moved).eval(), description.inputs, stored, outputs)
    return ExportedModel(module, description.inputs)


def _draw_nothing(model: Any) -> None:
    """Let layers that augment images draw no random numbers for inference, where they do not use them."""
    for layer in model._flatten_layers():
        if hasattr(layer, "get_random_transformation") and hasattr(layer, "generator"):
            layer.get_random_transformation = functools.partial(_drawn, layer.get_random_transformation)


def _drawn(draw: Any, data: Any, training: bool = True, seed: Any = None) -> Any:
    return draw(data, training=training, seed=seed) if training else None


def _types(tensors: Any) -> list[torch.dtype]:
    return [getattr(torch, str(tensor.dtype)) for tensor in tensors]


def source_model(folder: Path, description: SourceDescription) -> Any:
    """Return the keras.Model as it was fetched. Raises ModelFileError."""
    path = folder / description.weights_file
    with checked_copy(path, damaged_file_error) if path.suffix == ".keras" else nullcontext(path) as file:
        check_file(file)
        return _whole_file(file) if description.network is None else _with_weights(file, description.network)


def _of_one(model: Any, from_channels_first: bool) -> Any:
    """Wrap a model for inference, a channels-last one to take (N, C, H, W), as data sets here are.

    Layers that augment images do so unless training is denied.
    """

    class OfOne(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x.permute(0, 2, 3, 1) if from_channels_first else x, training=False)

    return OfOne()


def _with_separate_inputs(model: Any, description: SourceDescription) -> tuple[Any, list[int]]:
    """Wrap a model of several inputs to take them as separate arguments, in the order of the description.

    Returns the place of each among the model's inputs, too.
    """
    places = input_positions(
        description.weights_file, [str(tensor.name) for tensor in model.inputs], description.inputs
    )

    class OfSeveral(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.inner([inputs[places.index(index)] for index in range(len(places))], training=False)

    return OfSeveral().eval(), places


def _whole_file(path: Path) -> Any:
    from tvmflow.sources.networks.keras_zoo import keras_on_torch

    keras = keras_on_torch()
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises arbitrary errors for a bad file
        raise damaged_file_error(path, error) from error


def _with_weights(path: Path, network: str) -> Any:
    from tvmflow.sources.networks.keras_zoo import build

    model = build(network)
    try:
        model.load_weights(path)
    except OSError as error:
        raise damaged_file_error(path, error) from error
    except (ValueError, KeyError) as error:
        raise wrong_weights(error, network) from error
    return model
