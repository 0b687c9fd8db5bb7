"""Run TensorFlow in its tool environment; nothing of tvmflow can be imported here.

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
import time

ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # killed with its parent
replies = os.dup(1)
os.dup2(2, 1)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

if "OMP_NUM_THREADS" in os.environ:
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["OMP_NUM_THREADS"]))
    tf.config.threading.set_inter_op_parallelism_threads(1)


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


class Model:
    def __init__(self, folder):
        self.model = tf.saved_model.load(folder)  # whose functions live as long as it
        self.signature = self.model.signatures["serving_default"]
        self.name = list(self.signature.structured_input_signature[1])[0]
        self.ways = {}

    def run(self, x):
        return list(self.signature(**{self.name: tf.constant(x)}).values())[0].numpy()

    def prepare(self, way, x):
        """Prepare a function that runs this input and returns the first output."""
        data, function = tf.constant(x), self.signature
        if way == "frozen function":
            from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

            frozen = convert_variables_to_constants_v2(self.signature)
            self.ways[way] = lambda: tf.nest.flatten(frozen(data))[0]
            return
        if way == "XLA":
            function = tf.function(self.signature, jit_compile=True)
        self.ways[way] = lambda: list(function(**{self.name: data}).values())[0]

    def time_runs(self, way, count):
        run, times = self.ways[way], []
        for _ in range(count):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return np.array(times)

    def reply(self, head, x):
        request = head["request"]
        if request == "run":
            return [("output", self.run(x))]
        if request == "prepare":
            self.prepare(head["way"], x)
            return []
        if request == "outputs":
            return [("output", self.ways[head["way"]]().numpy())]
        return [("times_s", self.time_runs(head["way"], head["count"]))]


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
        head = json.loads(line)
        body = sys.stdin.buffer.read(head["bytes"])
        try:
            model = model or Model(folder)
            arrays = model.reply(head, np.load(io.BytesIO(body), allow_pickle=False) if body else None)
        except Exception as error:
            send({"error": (str(error).strip().splitlines() or [type(error).__name__])[-1][:400]})
            continue
        bodies = []
        for _, array in arrays:
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            bodies.append(buffer.getvalue())
        send({"arrays": [[name, len(body)] for (name, _), body in zip(arrays, bodies)]}, bodies)


if sys.argv[1] == "convert":
    convert(sys.argv[2], sys.argv[3])
elif sys.argv[1] == "convert_int8":
    convert_int8(sys.argv[2], sys.argv[3])
elif sys.argv[1] == "make":
    make(sys.argv[2], sys.argv[3])
else:
    serve(sys.argv[1])
