"""Run TensorFlow in its tool environment; nothing of tvmflow can be imported here.

tensorflow_worker.py convert SAVED_MODEL FILE.tflite     convert the serving signature
tensorflow_worker.py SAVED_MODEL                         serve requests on standard input
"""

import os
import re
import sys

import serving  # first: it redirects what TensorFlow prints

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

if "OMP_NUM_THREADS" in os.environ:
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["OMP_NUM_THREADS"]))
    tf.config.threading.set_inter_op_parallelism_threads(1)


def convert(folder, path):
    try:
        data = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
    except Exception as error:  # of ConverterError the text ends with the module in MLIR
        lacking = re.findall(r"^(?:Custom|Flex) ops: (.+)$", str(error), re.MULTILINE)
        sys.exit(f"TFLite has no operators {', '.join(lacking)}" if lacking else serving.describe(error))
    with open(path, "wb") as file:
        file.write(data)


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

    def reply(self, head, x):
        request = head["request"]
        if request == "run":
            return [("output", self.run(x))]
        if request == "prepare":
            self.prepare(head["way"], x)
            return []
        if request == "outputs":
            return [("output", self.ways[head["way"]]().numpy())]
        return [("times_s", serving.time_runs(self.ways[head["way"]], head["count"]))]


if sys.argv[1] == "convert":
    convert(sys.argv[2], sys.argv[3])
else:
    serving.serve(lambda: Model(sys.argv[1]))
