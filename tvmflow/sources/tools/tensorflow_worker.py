"""Runs inside TensorFlow's tool environment: nothing of tvmflow can be imported here.

tensorflow_worker.py convert SAVED_MODEL FILE.tflite     convert the serving signature
tensorflow_worker.py convert_int8 SAVED_MODEL FILE.tflite  the same with 8-bit ends, for tests
tensorflow_worker.py make SEED FOLDER                    write a small SavedModel, for tests
tensorflow_worker.py SAVED_MODEL                         serve requests on standard input
"""

import ctypes
import io
import json
import os
import sys

ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # killed with whoever started it
replies = os.dup(1)
os.dup2(2, 1)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def convert(folder, path):
    data = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
    with open(path, "wb") as file:
        file.write(data)


def convert_int8(folder, path):
    def samples():
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


def make(seed, folder):
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


def run(model, x):
    signature = model.signatures["serving_default"]
    name = list(signature.structured_input_signature[1])[0]
    return list(signature(**{name: tf.constant(x)}).values())[0].numpy()


def send(head, bodies=()):
    os.write(replies, json.dumps(head).encode() + b"\n")
    for body in bodies:
        view = memoryview(body)
        while view:
            view = view[os.write(replies, view) :]


def serve(folder):
    model = None
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        body = sys.stdin.buffer.read(json.loads(line)["bytes"])
        try:
            model = model or tf.saved_model.load(folder)
            output = run(model, np.load(io.BytesIO(body), allow_pickle=False))
        except Exception as error:
            send({"error": (str(error).strip().splitlines() or [type(error).__name__])[-1][:400]})
            continue
        buffer = io.BytesIO()
        np.save(buffer, output, allow_pickle=False)
        send({"arrays": [["output", len(buffer.getvalue())]]}, [buffer.getvalue()])


if sys.argv[1] == "convert":
    convert(sys.argv[2], sys.argv[3])
elif sys.argv[1] == "convert_int8":
    convert_int8(sys.argv[2], sys.argv[3])
elif sys.argv[1] == "make":
    make(sys.argv[2], sys.argv[3])
else:
    serve(sys.argv[1])
