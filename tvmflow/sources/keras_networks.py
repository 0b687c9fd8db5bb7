"""Keras networks by name: ours, and `keras/mobilenet_v2_050` and its like. Keras runs on the torch backend here.

Networks are built channels-first, so that their convolutions reach TVM in NCHW; convolution weights have the same
layout either way, so weights that were trained channels-last fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmflow.errors import UnknownNameError


def keras_on_torch() -> Any:
    """Return the keras package on the torch backend. Raises UnknownNameError when another backend was loaded before."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    if keras.backend.backend() != "torch":
        raise UnknownNameError(f"keras runs on {keras.backend.backend()!r}", legal=["torch"], fix="unset KERAS_BACKEND")
    return keras


def _digits_cnn(keras: Any) -> Any:
    """Build the network of `torch_networks` in Keras, for (N, 1, 8, 8)."""
    layers = keras.layers

    def conv(channels: int) -> list[Any]:
        return [
            layers.Conv2D(channels, 3, padding="same", use_bias=False),
            layers.BatchNormalization(axis=1),
            layers.ReLU(),
        ]

    return keras.Sequential([
        keras.Input((1, 8, 8)), *conv(32), *conv(32), layers.MaxPooling2D(2), *conv(64),
        layers.GlobalAveragePooling2D(), layers.Dense(10),
    ])  # fmt: skip


def _mobilenet_v2(alpha: float) -> Callable[[Any], Any]:
    def build_it(keras: Any) -> Any:
        return keras.applications.MobileNetV2(
            input_shape=(3, 224, 224), alpha=alpha, weights=None, classes=1000, classifier_activation="softmax"
        )

    return build_it


NETWORKS: dict[str, Callable[[Any], Any]] = {
    "digits_cnn": _digits_cnn,
    "keras/mobilenet_v2_050": _mobilenet_v2(0.5),
    "keras/mobilenet_v2_100": _mobilenet_v2(1.0),
}


def build(name: str, seed: int | None = None) -> Any:
    """Return a Keras model (channels first) with weights made from `seed`. Raises UnknownNameError."""
    if name not in NETWORKS:
        raise UnknownNameError(f"no keras network {name!r}", legal=NETWORKS)
    keras = keras_on_torch()
    keras.utils.set_random_seed(0 if seed is None else seed)
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    try:
        model = NETWORKS[name](keras)
        return model if seed is None else _settle(model, seed)
    finally:
        keras.config.set_image_data_format(before)


def _settle(model: Any, seed: int) -> Any:
    """Replace the initial weights by ones whose signal keeps its range through a deep network and tells classes apart.

    Keras starts batch norms as the identity and deep networks then answer the same for every input, which would make
    any comparison of answers pass.
    """
    generator = np.random.default_rng(seed)
    for layer in model.layers:
        kind = type(layer).__name__
        if kind == "BatchNormalization":
            count = layer.gamma.shape[0]
            layer.moving_mean.assign(generator.normal(0.0, 0.1, count).astype("float32"))
            layer.moving_variance.assign(generator.uniform(0.8, 1.2, count).astype("float32"))
        elif kind in ("Conv2D", "DepthwiseConv2D", "Dense"):
            shape = tuple(layer.kernel.shape)
            fan_in = np.prod(shape[:2]) if kind == "DepthwiseConv2D" else np.prod(shape[:-1])
            layer.kernel.assign(generator.normal(0.0, np.sqrt(2.0 / fan_in), shape).astype("float32"))
    return model
