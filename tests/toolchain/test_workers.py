"""Test what workers in tool environments say of a failure, with a stand-in for their framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

WORKERS = REPOSITORY / "tvmflow" / "toolchain" / "workers"
CONVERTER = """Could not translate MLIR to FlatBuffer.<unknown>:0: error: loc(callsite(fused["Betainc:"])): 'tf.Betainc'
<unknown>:0: note: loc(fused["PartitionedCall:", "PartitionedCall"]): Error code: ERROR_NEEDS_CUSTOM_OPS
<unknown>:0: error: failed while converting: 'main':
Some ops in the model are custom ops, See instructions to implement custom ops: https://www.tensorflow.org/lite
Custom ops: Betainc, Expm
Details:
\ttf.Betainc(tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) -> (tensor<1x4xf32>) : {device = ""}

<unknown>:0: note: see current operation:
"func.func"() <{function_type = (tensor<1x4xf32>) -> tensor<1x4xf32>, sym_name = "main"}> ({
  "func.return"(%0) : (tensor<1x4xf32>) -> ()
}) {tf.entry_function = {control_outputs = "", inputs = "x:0"}} : () -> ()
"""  # of TensorFlow 2.21
GRAPH = """Graph execution error:

Detected at node Conv2D defined at (most recent call last):
<stack traces unavailable>
input depth must be evenly divisible by filter depth: 3 vs 2
"""
# What of TensorFlow the worker uses, all of which fails.
STAND_IN = """
class _Fails:
    def __getattr__(self, name):
        return self

    def __call__(self, *given, **named):
        with open(__file__.replace("__init__.py", "text")) as file:
            raise ValueError(file.read())

lite = saved_model = _Fails()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(STAND_IN)
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**kept, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONVERTER, "TFLite has no operators Betainc, Expm"),
        (GRAPH, "Graph execution error: ... input depth must be evenly divisible by filter depth: 3 vs 2"),
        ("SavedModel file does not exist\n", "SavedModel file does not exist"),
        ("", "ValueError"),
    ],
    ids=["operators", "a graph", "one line", "no text"],
)
def test_a_failure_is_one_line_with_the_cause(
    text: str, said: str, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tensorflow" / "text").write_text(text)
    command = [sys.executable, str(WORKERS / "tensorflow_worker.py")]
    (tmp_path / "saved").mkdir()
    asked = {"model": str(tmp_path / "saved"), "signature": "", "inputs": [["x", [1], "float32"]], "outputs": []}
    (tmp_path / "request.json").write_text(json.dumps(asked))
    convert = [*command, "convert", str(tmp_path / "request.json"), "model.tflite"]
    done = subprocess.run(convert, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.splitlines() == [said]
    request = json.dumps({"request": "run", "bytes": 0}) + "\n"
    served = subprocess.run(
        [*command, str(tmp_path / "request.json")],
        env=environment,
        input=request,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first = text.split("\n", maxsplit=1)[0]
    assert json.loads(served.stdout)["error"].startswith(first[:200] or "ValueError")
    assert "\n" not in json.loads(served.stdout)["error"]
