"""Train a small network on scikit-learn's digits with Keras and write reader.keras."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # the backend that tvmflow installs

import keras
from sklearn.datasets import load_digits


def main() -> None:
    """Write the model into the current folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    epochs = parser.parse_args().epochs
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.SeparableConv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    data = load_digits()
    if epochs:
        model.compile(optimizer=keras.optimizers.Adam(4e-3), loss="sparse_categorical_crossentropy")
        model.fit(data.images[:-600, :, :, None] * 0.0625, data.target[:-600], epochs=epochs, batch_size=64, verbose=0)
    model.save("reader.keras")


if __name__ == "__main__":
    main()
