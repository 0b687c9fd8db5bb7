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
        raise UnknownNameError(
            f"keras runs on {keras.backend.backend()!r}", legal=["torch"], hint="unset KERAS_BACKEND"
        )
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


def _application(name: str, size: int = 224) -> Callable[[Any], Any]:
    def build_it(keras: Any) -> Any:
        shape = (3, size, size) if keras.config.image_data_format() == "channels_first" else (size, size, 3)
        return getattr(keras.applications, name)(
            input_shape=shape, weights=None, classes=1000, classifier_activation="softmax"
        )

    return build_it


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
    "keras/mobilenet": _application("MobileNet"),
    "keras/resnet50": _application("ResNet50"),
    "keras/resnet50_v2": _application("ResNet50V2"),
    "keras/vgg16": _application("VGG16"),
    "keras/densenet121": _application("DenseNet121"),
    "keras/inception_v3": _application("InceptionV3", 299),
    "keras/xception": _application("Xception", 299),
    "keras/efficientnet_b0": _application("EfficientNetB0"),
    "keras/mobilenet_v3_small": _application("MobileNetV3Small"),
}


def build(name: str, seed: int | None = None) -> Any:
    """Return a Keras model (channels first) with weights made from `seed`. Raises UnknownNameError."""
    if name not in NETWORKS:
        raise UnknownNameError(f"no keras network {name!r}", legal=NETWORKS)
    keras = keras_on_torch()
    keras.utils.set_random_seed(0 if seed is None else seed)
    before = keras.config.image_data_format()
    try:
        for data_format in ("channels_first", "channels_last"):
            keras.config.set_image_data_format(data_format)
            try:
                model = NETWORKS[name](keras)
                return model if seed is None else settle(model, seed)
            except ValueError:
                if data_format == "channels_last":
                    raise  # else: a network that Keras builds channels-last only
        raise AssertionError("a network is built in one of two formats")
    finally:
        keras.config.set_image_data_format(before)


def settle(model: Any, seed: int) -> Any:
    """Replace the initial weights by ones whose signal keeps its range through a deep network and tells classes apart.

    Keras starts batch norms as the identity and deep networks then give the same output for every input, which would make
    any comparison of outputs pass. Where the outputs vary too little even so, the head is changed too.
    """
    import torch

    from tvmflow.sources.datasets import varied_inputs
    from tvmflow.sources.seeded import varies

    generator = np.random.default_rng(seed)
    norms = [layer for layer in model.layers if type(layer).__name__ == "BatchNormalization"]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0  # the statistics become those of the one batch below
    for layer in model.layers:
        if type(layer).__name__ in ("Conv2D", "DepthwiseConv2D", "SeparableConv2D", "Dense"):
            for variable in layer.weights:
                if "kernel" in variable.name:
                    shape = tuple(variable.shape)
                    fan_in = np.prod(shape[:2]) if "depthwise" in variable.path.lower() else np.prod(shape[:-1])
                    variable.assign(generator.normal(0.0, np.sqrt(2.0 / fan_in), shape).astype("float32"))
    with torch.no_grad():
        model(varied_inputs(4, model.input_shape[1:], generator), training=True)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    x = varied_inputs(8, model.input_shape[1:], generator)
    with torch.no_grad():
        if not varies(model(x)):
            _standardize_head(model, x)
    return model


def _standardize_head(model: Any, x: np.ndarray[Any, Any]) -> None:
    """Change the last layer's weights so that each of its outputs, before a softmax, has mean 0 and variance 1 over x."""
    keras = keras_on_torch()
    head = next(layer for layer in reversed(model.layers) if getattr(layer, "bias", None) is not None)
    activation, head.activation = head.activation, keras.activations.linear
    y = keras.Model(model.inputs, head.output)(x).numpy()
    head.activation = activation
    channel = 1 if getattr(head, "data_format", None) == "channels_first" else y.ndim - 1
    rest = tuple(axis for axis in range(y.ndim) if axis != channel)
    mean, deviation = y.mean(rest), np.maximum(y.std(rest), 1e-6)
    head.kernel.assign(head.kernel.numpy() / deviation)
    head.bias.assign((head.bias.numpy() - mean) / deviation)
