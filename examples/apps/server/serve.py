"""Serve the network of a wheel by the Open Inference Protocol (KServe V2) over HTTP: serve.py PACKAGE --port 8000.

Needs numpy and the wheel that `tvmflow bundle --format wheel` wrote. Requests share `--instances` instances with
`--threads` threads each.
"""

import argparse
import importlib
import json
import math
import queue
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

DATATYPES = {
    "float32": "FP32",
    "float16": "FP16",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
MAX_BYTES = 64 << 20


class BadRequest(ValueError):
    """A request that is not as the protocol and the network want it."""


def describe(tensor):
    return {"name": tensor.name, "datatype": DATATYPES[tensor.dtype], "shape": list(tensor.shape)}


def array_of(given, tensor):
    """Return an input of a request as an array. Raises BadRequest."""
    wanted, shape = describe(tensor), tuple(tensor.shape)
    if given.get("datatype") != wanted["datatype"] or given.get("shape") != wanted["shape"]:
        raise BadRequest(f"input {tensor.name} is {given.get('datatype')}{given.get('shape')}, not {wanted}")
    try:
        array = np.asarray(given.get("data"), tensor.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"data of input {tensor.name}: {error}") from None
    if array.size != math.prod(shape):
        raise BadRequest(f"data of input {tensor.name} has {array.size} numbers, not {math.prod(shape)}")
    return array.reshape(shape)


class Service:
    """Instances of one network, of which each serves one request at a time."""

    def __init__(self, package, instances, threads):
        module = importlib.import_module(package)
        self.name, self.version = package, module.__version__
        self.free = queue.SimpleQueue()
        for _ in range(instances):
            network = module.load(threads=threads)
            self.free.put(network)
        self.inputs, self.outputs = network.inputs, network.outputs

    def metadata(self):
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "tvmflow",
            "inputs": [describe(one) for one in self.inputs],
            "outputs": [describe(one) for one in self.outputs],
        }

    def infer(self, request):
        """Return the response to an inference request. Raises BadRequest."""
        if not isinstance(request, dict) or not isinstance(request.get("inputs"), list):
            raise BadRequest("no inputs in the request")
        given = {one.get("name"): one for one in request["inputs"] if isinstance(one, dict)}
        if set(given) != {one.name for one in self.inputs}:
            raise BadRequest(f"inputs {sorted(map(str, given))}, not {[one.name for one in self.inputs]}")
        arrays = [array_of(given[one.name], one) for one in self.inputs]
        network = self.free.get()
        try:
            found = network(*arrays)
        finally:
            self.free.put(network)
        found = found if isinstance(found, tuple) else (found,)
        outputs = [
            {**describe(one), "data": array.ravel().tolist()} for one, array in zip(self.outputs, found, strict=True)
        ]
        answer = {"model_name": self.name, "model_version": self.version, "outputs": outputs}
        return {**answer, "id": request["id"]} if "id" in request else answer


class Handler(BaseHTTPRequestHandler):
    """The paths of the protocol, for one model."""

    protocol_version = "HTTP/1.1"
    service = None

    def _answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _is_model(self, ending):
        path = f"/v2/models/{re.escape(self.service.name)}(/versions/{re.escape(self.service.version)})?{ending}"
        return re.fullmatch(path, self.path)

    def do_GET(self):
        if self.path in ("/v2/health/live", "/v2/health/ready") or self._is_model("/ready"):
            self._answer(200, {})
        elif self.path == "/v2":
            self._answer(200, {"name": "tvmflow", "version": self.service.version, "extensions": []})
        elif self._is_model(""):
            self._answer(200, self.service.metadata())
        else:
            self._answer(404, {"error": f"no {self.path}"})

    def do_POST(self):
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > MAX_BYTES:
            self.close_connection = True
            return self._answer(413, {"error": f"a body of 0 to {MAX_BYTES} bytes with its Content-Length"})
        body = self.rfile.read(int(size))
        if not self._is_model("/infer"):
            return self._answer(404, {"error": f"no {self.path}"})
        try:
            return self._answer(200, self.service.infer(json.loads(body)))
        except (ValueError, RecursionError) as error:
            return self._answer(400, {"error": str(error)})

    def log_message(self, *_words):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", help="the wheel's package, as digits_torch")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--instances", type=int, default=1, help="requests that are computed at once")
    parser.add_argument("--threads", type=int, default=0, help="of an instance; 0: as many as it was tuned for")
    words = parser.parse_args()
    handler = type("Handler", (Handler,), {"service": Service(words.package, words.instances, words.threads)})
    server = ThreadingHTTPServer((words.host, words.port), handler)
    sys.stdout.write(f"http://{words.host}:{server.server_address[1]}/v2/models/{words.package}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
