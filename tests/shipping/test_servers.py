"""Test the examples for servers: the V2 protocol over HTTP, and Triton's Python backend with a stand-in module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.conftest import REPOSITORY, install_wheel
from tests.shipping.conftest import REQUEST
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.wheel import write_wheel

SERVER = REPOSITORY / "examples" / "apps" / "server"
X = np.random.default_rng(1).standard_normal((1, 3, 12, 12), dtype=np.float32)
TRITON = """
import json


class Tensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


class TritonError(Exception):
    pass


class InferenceResponse:
    def __init__(self, output_tensors, error=None):
        self.tensors, self.error = output_tensors, error


def get_input_tensor_by_name(request, name):
    return next((one for one in request if one.name == name), None)
"""
RUN_TRITON = """
import json, sys
import numpy as np, triton_python_backend_utils as pb
from model import TritonPythonModel
parameters = {"package": {"string_value": "small"}, "threads": {"string_value": "1"}}
class Config:
    def __init__(self): self.inputs, self.outputs, self.batch = [], [], None
    def as_dict(self): return {"parameters": parameters}
    def set_max_batch_size(self, size): self.batch = size
    def add_input(self, one): self.inputs.append(one)
    def add_output(self, one): self.outputs.append(one)
config = TritonPythonModel.auto_complete_config(Config())
assert config.batch == 0 and config.inputs == [{"name": "image", "data_type": "TYPE_FP32", "dims": [1, 3, 12, 12]}]
assert [(one["data_type"], one["dims"]) for one in config.outputs] == [("TYPE_FP32", [1, 5])]
model = TritonPythonModel()
model.initialize({"model_config": json.dumps({"parameters": parameters})})
x = np.load(sys.argv[1])
good, bad = model.execute([[pb.Tensor("image", x)], [pb.Tensor("image", x[:, :2])]])
model.finalize()
assert good.error is None and not bad.tensors and "image" in str(bad.error)
np.save(sys.argv[2], good.tensors[0].as_numpy())
"""


@pytest.fixture(scope="module")
def site(part: Part, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that pip installed the wheel into."""
    folder = tmp_path_factory.mktemp("site")
    wheel, _ = write_wheel(folder, [part], REQUEST, None)
    install_wheel(wheel, folder / "made")
    return folder / "made"


@pytest.fixture(scope="module")
def expected(part: Part) -> np.ndarray[Any, Any]:
    return np.asarray(OpenedNetwork(part.path("build", "network.so"), 1).run(X)[0])


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    command = [sys.executable, str(SERVER / "serve.py"), "small", "--port", "0", "--instances", "2", "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield server.stdout.readline().strip()
    server.terminate()
    server.wait()


def _request(**change: Any) -> dict[str, Any]:
    given = {"name": "image", "datatype": "FP32", "shape": list(X.shape), "data": X.ravel().tolist()}
    return {"id": "7", "inputs": [given | change]}


def test_it_says_what_it_serves(address: str) -> None:
    root = address.rpartition("/models/")[0]
    for path in (f"{root}/health/live", f"{root}/health/ready", f"{address}/ready", f"{address}/versions/3/ready"):
        assert requests.get(path, timeout=60).status_code == 200
    told = requests.get(address, timeout=60).json()
    assert told["versions"] == ["3"] and told["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [1, 3, 12, 12]}
    ]
    assert [(one["datatype"], one["shape"]) for one in told["outputs"]] == [("FP32", [1, 5])]
    assert requests.get(f"{root}/models/other", timeout=60).status_code == 404


def test_it_answers_many_at_once(address: str, expected: np.ndarray[Any, Any]) -> None:
    def ask(_: int) -> dict[str, Any]:
        answer: dict[str, Any] = requests.post(f"{address}/infer", json=_request(), timeout=60).json()
        return answer

    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(ask, range(8)):
            assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "small", "3")
            [output] = answer["outputs"]
            assert output["shape"] == [1, 5]
            assert np.array_equal(np.asarray(output["data"], np.float32).reshape(1, 5), expected)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "no inputs in the request"),
        (json.dumps(_request(name="other")), "inputs ['other'], not ['image']"),
        (json.dumps(_request(datatype="INT8")), "input image is INT8"),
        (json.dumps(_request(shape=[1])), "input image is FP32[1]"),
        (json.dumps(_request(data=[1.0])), "has 1 numbers, not 432"),
        (json.dumps(_request(data=["x"] * 432)), "data of input image"),
    ],
)
def test_a_wrong_request_is_told_and_the_next_is_served(address: str, body: str, why: str) -> None:
    answer = requests.post(f"{address}/infer", data=body, timeout=60)
    assert answer.status_code == 400 and why in answer.json()["error"]
    assert requests.post(f"{address}/infer", json=_request(), timeout=60).status_code == 200


def test_triton_runs_the_wheel(site: Path, expected: np.ndarray[Any, Any], tmp_path: Path) -> None:
    (tmp_path / "triton_python_backend_utils.py").write_text(TRITON)
    np.save(tmp_path / "x.npy", X)
    places = [tmp_path, site, SERVER / "triton" / "network" / "1"]
    command = [sys.executable, "-c", RUN_TRITON, str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "y.npy"), expected)
    config = (SERVER / "triton" / "network" / "config.pbtxt").read_text()
    assert 'backend: "python"' in config and 'key: "package"' in config
