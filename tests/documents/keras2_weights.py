"""Write weights as Keras 2 did: groups of layers with the names of their arrays, which Keras 3 names differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

_NAMES = {"DepthwiseConv2D": {"kernel": "depthwise_kernel"}}  # class -> Keras 3's name -> Keras 2's


def write_keras2_weights(model: Any, path: Path) -> Path:
    """Write the weights of a Keras 3 model, for example `Conv1/kernel:0` in the group Conv1."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.name.encode() for layer in model.layers]
        file.attrs["backend"], file.attrs["keras_version"] = b"tensorflow", b"2.1.6"
        for layer in model.layers:
            own = _NAMES.get(type(layer).__name__, {})
            names = [f"{layer.name}/{own.get(one.name, one.name)}:0" for one in layer.weights]
            group = file.create_group(layer.name)
            group.attrs["weight_names"] = [name.encode() for name in names] or np.zeros(0)
            for name, variable in zip(names, layer.weights, strict=True):
                group[name] = variable.numpy()
    return path
