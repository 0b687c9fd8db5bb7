"""Which files an ONNX model consists of: its weights may lie beside it as external data."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from tvmflow.errors import ModelFileError, first_line

MAX_ONNX_BYTES = 2 << 30  # protobuf's own limit
MAX_EXTERNAL_BYTES = 8 << 30


def read_proto(path: Path) -> Any:
    """Return the ModelProto without its external data. Raises ModelFileError."""
    import onnx

    if path.stat().st_size > MAX_ONNX_BYTES:
        raise ModelFileError(f"{path.name} holds {path.stat().st_size} bytes", f"at most {MAX_ONNX_BYTES}")
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf and onnx each have their own
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{path.name} is not a whole, valid ONNX file: {first_line(error)}",
        "an ONNX model, with its external data beside it where it has some",
    )


def external_files(path: Path) -> dict[str, Path]:
    """Return name -> file of the external data of a model. Raises ModelFileError when one is gone, or leads elsewhere."""
    found: dict[str, Path] = {}
    for tensor in _tensors(read_proto(path)):
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        name = PurePosixPath(location)
        if not location or name.is_absolute() or ".." in name.parts or "\\" in location:
            raise ModelFileError(
                f"{path.name} keeps tensor {tensor.name!r} in {location!r}", "a file beside the model",
                "export the model again",
            )  # fmt: skip
        file = path.parent / name
        if not file.is_file() or file.is_symlink():
            raise ModelFileError(f"no {location} beside {path.name}", "the external data of the model", "bring it too")
        found[location] = file
    total = sum(file.stat().st_size for file in found.values())
    if total > MAX_EXTERNAL_BYTES:
        raise ModelFileError(f"the external data of {path.name} holds {total} bytes", f"at most {MAX_EXTERNAL_BYTES}")
    return found


def _tensors(model: Any) -> list[Any]:
    """Return every tensor of a model, those in attributes of nodes and subgraphs too, that is kept outside."""
    import onnx

    found, graphs = [], [model.graph]
    while graphs:
        graph = graphs.pop()
        tensors = list(graph.initializer)
        for node in graph.node:
            for attribute in node.attribute:
                tensors += [attribute.t] if attribute.HasField("t") else []
                tensors += list(attribute.tensors)
                graphs += [attribute.g] if attribute.HasField("g") else []
                graphs += list(attribute.graphs)
        found += [tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL]
    return found
