"""Load PyTorch models: a factory and its weights (safetensors or state_dict), a .pt2 file, or TorchScript."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tvmflow.frontends.archives import checked_copy, is_archive
from tvmflow.frontends.pytorch.files import is_torchscript, load_program, load_script
from tvmflow.frontends.pytorch.fixed_inputs import fix_parameters
from tvmflow.frontends.pytorch.float_ends import common_float, with_float_ends
from tvmflow.frontends.pytorch.module_states import with_states
from tvmflow.frontends.pytorch.running import Model
from tvmflow.frontends.source_model import SourceDescription, is_of_package, wrong_weights
from tvmflow.support.errors import ModelFileError, first_line


def load_as(kind: type[Model], folder: Path, description: SourceDescription) -> Model:
    """Build the network and load its weights. Raises ModelFileError when file and network do not match.

    kind: TorchModel for running it only, ExportedModel to convert it, too.
    """
    from tvmflow.sources.networks.torch_zoo import build

    path = folder / description.weights_file
    inputs = description.plain_inputs
    if path.suffix == ".pt2":
        return kind.of_program(load_program(path), inputs, path.name, description.fixed)
    if path.suffix == ".torchscript" or is_torchscript(path):
        program, original = load_script(path, inputs, description.fixed)
        return kind.of_program(program, inputs, path.name, original=original)
    if description.network is None:
        raise ModelFileError(
            "a torch model without network:",
            "the factory that builds the network, or a whole .pt2 or TorchScript file",
        )
    network = build(description.network, folder=folder)
    try:
        network.load_state_dict(_add_versions(_state_dict(path), network))
    except (RuntimeError, ValueError) as error:
        raise wrong_weights(error, description.network) from error
    network = fix_parameters(network.eval(), len(inputs), description.fixed, str(description.network))
    stored = common_float(network)
    types = [stored] * len(inputs)
    module = with_float_ends(network, inputs, types, [stored] if stored else [])
    if is_of_package(description.network):
        return kind(module, inputs)
    return with_states(kind, module, network, inputs, description.network)


def _add_versions(state: dict[str, Any], network: Any) -> dict[str, Any]:
    """Add the version numbers that safetensors does not store to a state, from the current network."""
    versioned = OrderedDict(state)
    versioned._metadata = getattr(network.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    return versioned


def _state_dict(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        with checked_copy(path, _damaged) if is_archive(path) else nullcontext(path) as file:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        raise _damaged(path, error) from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise ModelFileError(f"{path.name} holds no state_dict", "a mapping from names to tensors")
    return state


def _damaged(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{path.name} is damaged or not only tensors: {first_line(error)}",
        "a safetensors file, or a state_dict of tensors (never a pickled module)",
        "save the model with safetensors.torch.save_file(model.state_dict(), ...)",
    )
