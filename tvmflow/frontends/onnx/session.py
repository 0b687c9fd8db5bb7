"""Open ONNX Runtime sessions of files that ONNX Runtime and the `onnx` package validate differently."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError

_LATEST_IR = re.compile(r"max supported IR version: (\d+)")
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed: ?)?")
_SOURCE_PLACE = re.compile(r"/onnxruntime_src/\S+:\d+ (.*\) )?")  # file, line and signature of ONNX Runtime's code
_MISSING = re.compile(r"implementation for (\w+)\(|No Op registered for (\w+)|(\S+) is not a registered function/op")


def open_session(path: Path, threads: int = 0, *, optimized: bool = True, changed: Any = None) -> Any:
    """Return an ONNX Runtime session of a file on `threads` threads; 0: the default. optimized: with its graph
    optimizations. changed: the ModelProto to open in the file's place. Raises ModelFileError, UnsupportedOperatorError.
    """
    model = path if changed is None else changed
    try:
        try:
            return _open(model, _options(threads, optimized, precise=True))
        except Exception:  # some operators, such as QGemm, have no other kernel
            return _open(model, _options(threads, optimized, precise=False))
    except Exception as error:  # its exceptions share no public base
        raise session_error(path, error) from error


def _options(threads: int, optimized: bool, precise: bool) -> Any:
    """Return session options. precise: sums of int8 never saturate at 16 bits, as they do without VNNI."""
    level = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    if precise:
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def _open(model: Any, options: Any) -> Any:
    """Open a session of a file, or of a ModelProto.

    A model of an IR version that only the onnx package knows is opened as the latest that ONNX Runtime knows: each IR
    version adds to the one before, and what ONNX Runtime does not know of the newer one it refuses by itself.
    """
    try:
        content = model if isinstance(model, Path) else model.SerializeToString()
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        latest = _LATEST_IR.search(str(error))
        if latest is None:
            raise
        lowered = onnx.ModelProto()
        lowered.CopyFrom(onnx.load(model) if isinstance(model, Path) else model)
        lowered.ir_version = int(latest[1])
        return _open(lowered, options)


def session_of(graph: Any) -> Any:
    """Return a session of a ModelProto without graph optimizations. Raises any error of ONNX Runtime."""
    return _open(graph, _options(0, optimized=False, precise=True))


def session_error(path: Path, error: Exception) -> ModelFileError | UnsupportedOperatorError:
    """Return ONNX Runtime's reason not to load a file, without the places in its own code."""
    text = " ".join(str(error).split())
    missing = _MISSING.search(text)
    if missing is not None:
        name = next(group for group in missing.groups() if group)
        return UnsupportedOperatorError(
            f"ONNX Runtime, the reference for {path.name}, does not support {name}: {_reason(text)}",
            "operators that ONNX Runtime runs on a CPU",
            "replace that operator in the model, or export the model in another format",
        )
    return ModelFileError(
        f"ONNX Runtime cannot load {path.name}: {_reason(text)}",
        "an ONNX model that ONNX Runtime loads, with its external data (if any) next to it",
    )


def _reason(text: str, limit: int = 300) -> str:
    return (_SOURCE_PLACE.sub("", _PREFIX.sub("", text)).strip() or text)[:limit]
