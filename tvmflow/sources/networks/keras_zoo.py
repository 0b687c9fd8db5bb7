"""Build Keras networks by name, such as `keras/mobilenet_v2_050`, on the torch backend.

Networks are built channels-first, so that their convolutions reach TVM in NCHW; convolution weights have the same
layout either way, so weights that were trained channels-last can be used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmflow.support.errors import UnknownNameError


def keras_on_torch() -> Any:
    """Return the keras package on the torch backend. Raises UnknownNameError if another backend is already loaded."""
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

    return keras.Sequential(
        [
            keras.Input((1, 8, 8)),
            *conv(32),
            *conv(32),
            layers.MaxPooling2D(2),
            *conv(64),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


_APPLICATIONS: dict[
    str, tuple[str, dict[str, Any], int]
] = {  # class in keras.applications, options, size of its images
    "keras/mobilenet_v2_035_96": ("MobileNetV2", {"alpha": 0.35}, 96),
    "keras/mobilenet_v2_050": ("MobileNetV2", {"alpha": 0.5}, 224),
    "keras/mobilenet_v2_100": ("MobileNetV2", {"alpha": 1.0}, 224),
    "keras/mobilenet": ("MobileNet", {}, 224),
    "keras/resnet50": ("ResNet50", {}, 224),
    "keras/resnet50_v2": ("ResNet50V2", {}, 224),
    "keras/vgg16": ("VGG16", {}, 224),
    "keras/densenet121": ("DenseNet121", {}, 224),
    "keras/inception_v3": ("InceptionV3", {}, 299),
    "keras/xception": ("Xception", {}, 299),
    "keras/efficientnet_b0": ("EfficientNetB0", {}, 224),
    "keras/mobilenet_v3_small": ("MobileNetV3Small", {}, 224),
}


def _application(name: str) -> Callable[[Any], Any]:
    kind, options, size = _APPLICATIONS[name]

    def build_it(keras: Any) -> Any:
        shape = (3, size, size) if keras.config.image_data_format() == "channels_first" else (size, size, 3)
        return getattr(keras.applications, kind)(
            input_shape=shape, weights=None, classes=1000, classifier_activation="softmax", **options
        )

    return build_it


NETWORKS: dict[str, Callable[[Any], Any]] = {
    "digits_cnn": _digits_cnn,
    **{name: _application(name) for name in _APPLICATIONS},
}


def build(name: str, seed: int | None = None) -> Any:
    """Return a Keras model (channels first) with seeded weights. Raises UnknownNameError."""
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
    """Replace the initial weights so that signals keep their range through a deep network and the outputs vary.

    Keras initializes batch norms as the identity; deep networks then give the same output for every input, and any
    comparison of outputs would pass. If the outputs still vary too little, the head is changed too.
    """
    import torch

    from tvmflow.sources.data.datasets import varied_inputs
    from tvmflow.sources.networks.seeded_weights import varies

    generator = np.random.default_rng(seed)
    norms = [layer for layer in model.layers if type(layer).__name__ == "BatchNormalization"]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0  # use the statistics of the batch below
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
    """Scale the last layer so that each of its outputs, before a softmax, has mean 0 and variance 1 over x."""
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


def zoo_file(name: str) -> tuple[str, str | None]:
    """Return the URL and hash of a network's ImageNet weights in Keras; None without weights.

    Keras is called and stopped before the download, since URLs and hashes are in the code of each network.
    """
    keras = keras_on_torch()
    if name not in _APPLICATIONS:
        raise UnknownNameError(f"no keras network {name!r} with zoo weights", legal=_APPLICATIONS, name=name)
    kind, options, size = _APPLICATIONS[name]
    files: list[tuple[str, str | None]] = []

    class Stopped(Exception):
        pass

    def asked(_name: str, origin: str, file_hash: str | None = None, **_options: Any) -> None:
        files.append((origin, file_hash))
        raise Stopped

    from keras.src.utils import file_utils

    before = file_utils.get_file
    file_utils.get_file = asked
    try:
        getattr(keras.applications, kind)(weights="imagenet", input_shape=(size, size, 3), **options)
    except Stopped:
        pass
    finally:
        file_utils.get_file = before
    if not files:
        raise UnknownNameError(f"Keras has no weights for {name!r}", hint="provide the weights as a file")
    return files[0]
