"""Make small TensorFlow models in the tool environment of TensorFlow, where this file runs as a script.

tensorflow_models.py convert_int8 SAVED_MODEL FILE.tflite  convert with 8-bit ends
tensorflow_models.py make SEED FOLDER                      write a SavedModel
"""

# ruff: noqa: PTH123
import sys
from typing import Any


def run_in_environment(*arguments: str) -> None:
    """Run this file in the tool environment of TensorFlow."""
    from tvmflow.toolchain.environments import run_tool

    run_tool("tensorflow", list(arguments), script=__file__)


def convert_int8(folder: str, path: str) -> None:
    import numpy as np
    import tensorflow as tf  # type: ignore[import-untyped]

    def samples() -> Any:
        for seed in range(32):
            yield [np.random.default_rng(seed).standard_normal((1, 32, 32, 3)).astype(np.float32)]

    converter = tf.lite.TFLiteConverter.from_saved_model(folder)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = samples
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    data = converter.convert()
    with open(path, "wb") as file:
        file.write(data)


def make(seed: str, folder: str) -> None:
    import tensorflow as tf  # type: ignore[import-untyped]

    tf.keras.utils.set_random_seed(int(seed))
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((32, 32, 3), batch_size=1),
            layers.Conv2D(16, 3, strides=2, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(6.0),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.ReLU(),
            layers.Conv2D(24, 1),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.export(folder)


if __name__ == "__main__":
    {"convert_int8": convert_int8, "make": make}[sys.argv[1]](*sys.argv[2:])
