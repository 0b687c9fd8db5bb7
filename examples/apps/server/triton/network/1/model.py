"""Run the network of a wheel in NVIDIA Triton's Python backend; config.pbtxt names the package."""

import importlib
import json

import triton_python_backend_utils as pb_utils

TYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "int8": "TYPE_INT8",
    "uint8": "TYPE_UINT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "bool": "TYPE_BOOL",
}


def _network(parameters):
    """Return the network that the parameters of config.pbtxt name."""
    words = {name: one["string_value"] for name, one in parameters.items()}
    return importlib.import_module(words["package"]).load(words.get("network"), int(words.get("threads", "0")))


class TritonPythonModel:
    """One instance of the network; Triton makes as many as instance_group says."""

    @staticmethod
    def auto_complete_config(config):
        """Fill in inputs and outputs. Shapes have the network's own batch, so Triton's is 0."""
        with _network(config.as_dict()["parameters"]) as network:
            config.set_max_batch_size(0)
            for one in network.inputs:
                config.add_input({"name": one.name, "data_type": TYPES[one.dtype], "dims": list(one.shape)})
            for one in network.outputs:
                config.add_output({"name": one.name, "data_type": TYPES[one.dtype], "dims": list(one.shape)})
        return config

    def initialize(self, arguments):
        self.network = _network(json.loads(arguments["model_config"])["parameters"])

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        try:
            named = [pb_utils.get_input_tensor_by_name(request, one.name) for one in self.network.inputs]
            found = self.network(*(one.as_numpy() for one in named))
        except Exception as error:  # of one request; the others are answered
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
        found = found if isinstance(found, tuple) else (found,)
        tensors = [pb_utils.Tensor(one.name, array) for one, array in zip(self.network.outputs, found, strict=True)]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def finalize(self):
        self.network.close()
