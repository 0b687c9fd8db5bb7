"""ONNX in. Its source framework, for answers and latency, is ONNX Runtime."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tvmflow.errors import ModelFileError, first_line, last_line
from tvmflow.frontends.exported import unsupported
from tvmflow.frontends.onnx_files import damaged, external_files, read_proto
from tvmflow.frontends.source_model import Array, SourceDescription


OLDEST_OPSET = 9


class OnnxModel:
    """An ONNX graph with one float32 input of fixed shape and one output."""

    def __init__(self, path: Path, graph: Any, description: SourceDescription) -> None:
        import onnxruntime

        self.path, self.graph, self.shape = path, graph, description.input_shape
        names = {tensor.name for tensor in graph.graph.initializer}
        inputs = [value.name for value in graph.graph.input if value.name not in names]
        if len(inputs) != 1 or len(graph.graph.output) != 1:
            raise ModelFileError(
                f"{path.name} has inputs {inputs} and {len(graph.graph.output)} outputs", "one of each"
            )
        self.input_name = inputs[0]
        try:
            self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no public base
            raise damaged(path, error) from error

    def run(self, x: Array) -> Array:
        try:
            answer: Array = self.session.run(None, {self.input_name: x})[0]
        except Exception as error:
            raise ModelFileError(
                f"the model refuses an input of shape {list(x.shape)}: {first_line(error)}",
                "input.shape as the model was built for",
                "correct input.shape in params.yaml",
            ) from error
        return answer

    def to_relax(self) -> Any:
        from tvm.relax.frontend.onnx import from_onnx

        try:
            return from_onnx(self.graph, shape_dict={self.input_name: list(self.shape)}, dtype_dict="float32")
        except Exception as error:
            if type(error).__name__ in ("OpNotImplemented", "NotImplementedError", "KeyError"):
                raise unsupported("ONNX", str(error)) from error
            raise ModelFileError(
                f"TVM cannot import {self.path.name}: {last_line(error)}",
                "a float32 ONNX model of static shape",
            ) from error

    def to_onnx(self, path: Path) -> None:
        shutil.copyfile(self.path, path)


def load(folder: Path, description: SourceDescription) -> OnnxModel:
    """Read and check an ONNX file. Raises ModelFileError when it is damaged."""
    import onnx

    path = folder / description.weights_file
    graph, outside = read_proto(path), external_files(path)
    try:
        onnx.checker.check_model(str(path) if outside else graph)
        if outside:
            graph = onnx.load(path)
    except Exception as error:  # onnx and its checker each have their own
        raise damaged(path, error) from error
    opset = max((entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < OLDEST_OPSET:
        raise ModelFileError(f"{path.name} is of opset {opset}", f"opset {OLDEST_OPSET} or later", "export it with a later one")
    return OnnxModel(path, graph, description)
