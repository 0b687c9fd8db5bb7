"""The frontends, a row each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvmflow.errors import UnknownNameError
from tvmflow.frontends import keras, mxnet, onnx, tensorflow, torch
from tvmflow.frontends.source_model import SourceDescription, SourceModel

FRONTENDS: dict[str, Callable[[Path, SourceDescription], SourceModel]] = {
    "torch": torch.load,
    "keras": keras.load,
    "mxnet": mxnet.load,
    "onnx": onnx.load,
    "tensorflow": tensorflow.load,
}
TOOLS = {
    "torch": ("torch", "torchvision", "onnxscript"),
    "keras": ("keras", "torch", "onnxscript"),
    "mxnet": ("tool:mxnet",),
    "onnx": ("onnx", "onnxruntime"),
    "tensorflow": ("tflite", "ai-edge-litert", "tool:tensorflow"),
}


def load_source(folder: Path, description: SourceDescription) -> SourceModel:
    """Load a fetched model in its own framework. Raises UnknownNameError or ModelFileError."""
    if description.framework not in FRONTENDS:
        raise UnknownNameError(f"no frontend for {description.framework!r}", legal=FRONTENDS)
    return FRONTENDS[description.framework](folder, description)
