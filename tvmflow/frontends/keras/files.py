"""Validate Keras files before loading: known layers, and arrays of their own only.

A configuration names classes and functions that Keras imports and calls; HDF5 can reference arrays or subtrees in other
files of the machine.
"""

from __future__ import annotations

import builtins
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from tvmflow.frontends.archives import MAX_UNPACKED_BYTES
from tvmflow.support.errors import ModelFileError, TvmflowError, first_line

MAX_CONFIG_BYTES = 64 << 20
_ENTRIES = {"metadata.json", "config.json", "model.weights.h5"}
_MODULE = re.compile(
    r"keras(\.(layers|models|initializers|regularizers|constraints|activations|src|ops|dtype_policies)(\.\w+)*)?"
)
# These run code, call another framework, or read files named in the configuration.
_REFUSED = frozenset(
    """
    Lambda TFSMLayer TorchModuleWrapper JaxLayer FlaxLayer StringLookup IntegerLookup IndexLookup TextVectorization
    Hashing HashedCrossing __lambda__
    """.split()
)


def check_file(path: Path) -> None:
    """Raise ModelFileError unless a .keras or HDF5 file contains only known layers and its own arrays."""
    try:
        if path.suffix == ".keras":
            _check_archive(path)
        else:
            _check_hdf5(path, path)
    except TvmflowError:
        raise
    except Exception as error:  # errors of zip, JSON and HDF5, which have no common type
        raise damaged_file_error(path, error) from error


def damaged_file_error(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{path.name} cannot be loaded by Keras: {first_line(error)}",
        "a whole .keras or .h5 file of layers (no Lambda: it would run code)",
        "save the model again with model.save('model.keras')",
    )


def _check_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_UNPACKED_BYTES:
            raise ModelFileError(f"{path.name} unpacks to {size} bytes", f"at most {MAX_UNPACKED_BYTES}")
        if not _ENTRIES - {"metadata.json"} <= set(entries) <= _ENTRIES or len(entries) < len(archive.infolist()):
            raise _not_allowed_error(path, f"the files {sorted(entries)[:10]}")
        if entries["config.json"].file_size > MAX_CONFIG_BYTES:
            raise _not_allowed_error(path, f"a configuration of {entries['config.json'].file_size} bytes")
        _check_classes(path, json.loads(archive.read("config.json")))
        with archive.open("model.weights.h5") as file:
            _check_hdf5(path, file)


def _check_hdf5(path: Path, file: Any) -> None:
    import h5py

    with h5py.File(file, "r") as tree:
        config = tree.attrs.get("model_config")
        if config is not None:
            _check_classes(path, json.loads(config))
        size, groups, seen = 0, [tree], set()
        while groups:
            group = groups.pop()
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise _not_allowed_error(path, f"a link to elsewhere under {name[:100]!r}")
                part = group[name]
                address = h5py.h5o.get_info(part.id).addr
                if address in seen:
                    raise _not_allowed_error(path, f"{name[:100]!r} twice")
                seen.add(address)
                if isinstance(part, h5py.Group):
                    groups.append(part)
                elif part.external or part.is_virtual:
                    raise _not_allowed_error(path, f"the array {name[:100]!r} in another file")
                else:
                    size += part.nbytes
        if size > MAX_UNPACKED_BYTES:
            raise ModelFileError(f"{path.name} unpacks to {size} bytes", f"at most {MAX_UNPACKED_BYTES}")


def _check_classes(path: Path, config: Any) -> None:
    todo = [config]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        elif isinstance(value, dict):
            todo += value.values()
            if "class_name" in value:
                _check_class(path, value)


def _check_class(path: Path, entry: dict[str, Any]) -> None:
    name, module, registered = (entry.get(key) for key in ("class_name", "module", "registered_name"))
    full_name = f"{module}.{name}" if module else str(name)
    if name == "function":
        own = str(entry.get("config"))
        if (
            module not in ("builtins", "keras.activations")  # Keras writes builtins for functions of its own
            or not re.fullmatch("[a-z0-9_]+", own)
            or hasattr(builtins, own)
        ):
            raise _not_allowed_error(path, f"the function {full_name}: {str(entry.get('config'))[:100]!r}")
    elif (
        not isinstance(name, str)
        or not re.fullmatch(r"[A-Za-z_]\w*", name)
        or name in _REFUSED
        or (module is not None and not _MODULE.fullmatch(str(module)))
        or registered not in (None, name)
    ):
        raise _not_allowed_error(path, f"{full_name[:200]} (registered as {str(registered)[:100]})")


def _not_allowed_error(path: Path, what: str) -> ModelFileError:
    return ModelFileError(
        f"{path.name} holds {what}",
        "Keras layers that only compute, and arrays in the file itself (model files are not trusted; no Lambda)",
        "save a model of other layers with model.save('model.keras')",
    )
