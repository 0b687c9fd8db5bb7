"""Run TensorFlow in its tool environment; nothing of tvmflow can be imported here.

tensorflow_worker.py convert REQUEST.json FILE.tflite    convert the model; write FILE.json: names of its outputs
tensorflow_worker.py convert SAVED_MODEL FILE.tflite     convert its usual signature as it is
tensorflow_worker.py REQUEST.json                        serve requests on standard input

REQUEST.json: model (a SavedModel folder, or a frozen graph of TensorFlow 1), signature ("" for the usual one), inputs
([name, shape, dtype] each) and outputs (names; empty for all).
"""

import json
import os
import re
import sys

import serving  # first: it redirects what TensorFlow prints

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

if "OMP_NUM_THREADS" in os.environ:
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["OMP_NUM_THREADS"]))
    tf.config.threading.set_inter_op_parallelism_threads(1)

USUAL = "serving_default"
NOT_OUTPUTS = ("Placeholder", "PlaceholderWithDefault", "Const", "NoOp", "Assert")


class Unusable(Exception):
    """A model or a request that does not fit; its text is for the user."""


def load_saved_model(folder):
    try:
        return tf.saved_model.load(folder)
    except ValueError as error:
        if "tags" not in str(error):
            raise
    for tags in (["serve"], []):  # of several graphs in one file
        try:
            return tf.saved_model.load(folder, tags=tags)
        except (ValueError, RuntimeError):
            continue
    raise Unusable("a SavedModel of several graphs, none with the tag serve or without tags")


def signature_of(model, name):
    """Return the signature of that name; of no name the usual one, or the only one."""
    known = dict(model.signatures)
    if not name and USUAL in known:
        name = USUAL
    if not name and len(known) == 1:
        name = next(iter(known))
    if name in known:
        return known[name]
    if not known:
        raise Unusable("a SavedModel without signatures: save it with signatures=")
    raise Unusable(f"no signature {name!r}; it has {', '.join(sorted(known))}: set signature: of the model")


def by_name(wanted, known, what):
    """Return wanted name -> known; a single wanted one may have any name."""
    if len(wanted) == len(known) == 1:
        return {wanted[0]: known[0]}
    if sorted(wanted) != sorted(known):
        raise Unusable(f"the model has the {what} {', '.join(sorted(known))}, and asked for are {', '.join(wanted)}")
    return {name: name for name in wanted}


def tensor_name(name):
    return name if ":" in name else f"{name}:0"


def frozen_graph(path, inputs, outputs):
    """Return a function of a frozen graph, the names of its inputs as asked for -> TensorSpec, and of its outputs."""
    definition = tf.compat.v1.GraphDef()
    with open(path, "rb") as file:
        definition.ParseFromString(file.read())
    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
    operations = wrapped.graph.get_operations()
    given = [one.name for one in operations if one.type.startswith("Placeholder")]
    names = by_name([name.split(":")[0] for name in inputs], given, "inputs")
    if not outputs:
        used = {source.op.name for one in operations for source in one.inputs}
        ends = [one for one in operations if one.name not in used and one.outputs and one.type not in NOT_OUTPUTS]
        outputs = [one.name for one in ends]
    try:
        fetched = [wrapped.graph.get_tensor_by_name(tensor_name(name)) for name in outputs]
    except (KeyError, ValueError) as error:
        raise Unusable(f"{error}; set outputs: of the model") from None
    fed = [wrapped.graph.get_tensor_by_name(f"{names[name.split(':')[0]]}:0") for name in inputs]
    function = wrapped.prune(fed, fetched)
    specs = {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in zip(inputs, fed)}
    return (lambda *values: list(tf.nest.flatten(function(*values)))), specs, list(outputs)


def of_signature(signature, inputs, outputs):
    specs = signature.structured_input_signature[1]
    names = by_name(inputs, list(specs), "inputs")
    known = sorted(signature.structured_outputs)
    for name in outputs:
        if name not in known:
            raise Unusable(f"no output {name!r}; the signature has {', '.join(known)}")
    chosen = list(outputs) or known

    def run(*values):
        found = signature(**{names[name]: value for name, value in zip(inputs, values)})
        return [found[name] for name in chosen]

    return run, {name: specs[names[name]] for name in inputs}, chosen


def shape_in_file(name, shape, spec):
    """Return the shape of an input as the file has it: as asked for, or the same with channels last."""
    last = [shape[0], shape[2], shape[3], shape[1]] if len(shape) == 4 else shape
    for one in (shape, last):
        if spec.shape.is_compatible_with(one):
            return one
    raise Unusable(f"input {name} has shape {spec.shape}, and asked for is {shape}: correct input.shape")


class Model:
    """A function of the inputs in the order of the request, with fixed shapes."""

    def __init__(self, request):
        with open(request, encoding="utf-8") as file:
            asked = json.load(file)
        shapes = {name: shape for name, shape, _ in asked["inputs"]}
        if os.path.isdir(asked["model"]):
            self.model = load_saved_model(asked["model"])  # whose functions live as long as it
            signature = signature_of(self.model, asked["signature"])
            run, specs, self.outputs = of_signature(signature, list(shapes), asked["outputs"])
        else:
            if asked["signature"]:
                raise Unusable("a frozen graph has no signatures: remove signature: of the model")
            run, specs, self.outputs = frozen_graph(asked["model"], list(shapes), asked["outputs"])
            self.model = tf.Module()  # with an owner the converter writes a signature
        strings = [name for name, spec in specs.items() if spec.dtype == tf.string]
        if strings:
            raise Unusable(f"inputs of text: {', '.join(strings)}")
        self.specs = [
            tf.TensorSpec(shape_in_file(name, shape, specs[name]), specs[name].dtype, name=f"x{at}")
            for at, (name, shape) in enumerate(shapes.items())
        ]
        self.function = tf.function(run, input_signature=self.specs)
        self.concrete = self.function.get_concrete_function()
        self.ways = {}

    def values(self, x):
        return [tf.cast(x[f"x{at}"], spec.dtype) for at, spec in enumerate(self.specs)]

    def prepare(self, way, x):
        """Prepare a function that runs these inputs and returns the outputs."""
        data, function = self.values(x), self.concrete
        if way == "frozen function":
            from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

            function = convert_variables_to_constants_v2(self.concrete)
        if way == "XLA":
            function = tf.function(self.function, jit_compile=True)
        self.ways[way] = lambda: tf.nest.flatten(function(*data))

    def named(self, values):
        plain = (tf.cast(one, tf.float32) if one.dtype == tf.bfloat16 else one for one in tf.nest.flatten(values))
        return [(name, one.numpy()) for name, one in zip(self.outputs, plain)]

    def reply(self, head, x):
        request = head["request"]
        if request == "run":
            return self.named(self.concrete(*self.values(x)))
        if request == "prepare":
            self.prepare(head["way"], x)
            return []
        if request == "outputs":
            return self.named(self.ways[head["way"]]())
        return [("times_s", serving.time_runs(self.ways[head["way"]], head["count"]))]


def in_order(data):
    """Return a .tflite file with its outputs in the function's order: the converter has its own."""
    from tensorflow.lite.tools import flatbuffer_utils

    file = flatbuffer_utils.convert_bytearray_to_object(bytearray(data))
    [signature], graph = file.signatureDefs, file.subgraphs[0]
    places = {one.name.decode(): one.tensorIndex for one in signature.outputs}
    ordered = [places[f"output_{at}"] for at in range(len(places))]
    if sorted(ordered) != sorted(graph.outputs):
        raise Unusable(f"{len(graph.outputs)} outputs in TFLite for {len(places)} of the model")
    graph.outputs = ordered
    return bytes(flatbuffer_utils.convert_object_to_bytearray(file))


def convert(request, path):
    outputs = []
    try:
        if os.path.isdir(request):
            converter = tf.lite.TFLiteConverter.from_saved_model(request)
        else:
            model = Model(request)
            outputs = model.outputs
            converter = tf.lite.TFLiteConverter.from_concrete_functions([model.concrete], model.model)
        data = converter.convert()
        data = data if os.path.isdir(request) else in_order(data)
    except Unusable as error:
        sys.exit(str(error))
    except Exception as error:  # of ConverterError the text ends with the module in MLIR
        lacking = re.findall(r"^(?:Custom|Flex) ops: (.+)$", str(error), re.MULTILINE)
        sys.exit(f"TFLite has no operators {', '.join(lacking)}" if lacking else serving.describe(error))
    with open(path, "wb") as file:
        file.write(data)
    with open(os.path.splitext(path)[0] + ".json", "w", encoding="utf-8") as file:
        json.dump({"outputs": outputs}, file)


if sys.argv[1] == "convert":
    convert(sys.argv[2], sys.argv[3])
else:
    serving.serve(lambda: Model(sys.argv[1]))
