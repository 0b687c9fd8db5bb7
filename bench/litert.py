"""Run LiteRT as a baseline: Keras models that TensorFlow converts in its tool environment, and PyTorch modules."""

from __future__ import annotations

import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.frontends.source_model import read_description
from tvmflow.toolchain.environments import python_of

# TensorFlow's environment has no Keras; ours is used, behind all that it has itself.
_CONVERT = """
import os, sys
sys.path.append(sys.argv[3])
os.environ["KERAS_BACKEND"] = "tensorflow"
import tensorflow as tf
model = tf.keras.models.load_model(sys.argv[1], compile=False)
open(sys.argv[2], "wb").write(tf.lite.TFLiteConverter.from_keras_model(model).convert())
"""


def write_tflite(workspace: Workspace, cell: Cell, path: Path) -> None:
    """Convert a Keras model as fetched. Ends the program for other frameworks, and where TensorFlow refuses."""
    if workspace.params.models[cell.model].framework != "keras":
        raise SystemExit("LiteRT takes Keras models only")
    from tvmflow.frontends.keras.frontend import source_model

    file, fetched = path.with_suffix(".keras"), workspace.folder("fetch", cell)
    source_model(fetched, read_description(fetched)).save(file)
    done = subprocess.run(
        [python_of("tensorflow"), "-c", _CONVERT, file, path, sysconfig.get_path("purelib")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"TensorFlow could not convert it: {done.stderr[-300:]}")


def litert_runner(workspace: Workspace, cell: Cell, x: Any, threads: int) -> Callable[[], Any]:
    """Convert the Keras model in TensorFlow's environment; LiteRT hands all of it to XNNPACK."""
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "model.tflite"
        write_tflite(workspace, cell, converted)
        interpreter = _interpreter(converted, threads)
    (given,) = interpreter.get_input_details()
    channels_last = tuple(given["shape"]) != x.shape
    interpreter.set_tensor(given["index"], np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if channels_last else x)
    invoke: Callable[[], Any] = interpreter.invoke
    return invoke


def _interpreter(file: Path, threads: int) -> Any:
    """Return LiteRT's interpreter of a file, which it no longer needs, with its tensors allocated."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(file), num_threads=threads)
    interpreter.allocate_tensors()
    return interpreter


def litert_of_torch(
    module: Any, inputs: Sequence[Any], threads: int, calibration: Sequence[Sequence[Any]] = ()
) -> Callable[[], Any]:
    """Return what runs a PyTorch module by LiteRT, its inputs set once: in float32, or, calibrated by samples, in int8
    where its quantizer knows how.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.tflite"
        write_tflite_of_torch(module, inputs, file, calibration)
        interpreter = _interpreter(file, threads)
    for given, x in zip(sorted(interpreter.get_input_details(), key=_tensor_name), inputs, strict=True):
        interpreter.set_tensor(given["index"], x.astype(given["dtype"]))
    invoke: Callable[[], Any] = interpreter.invoke
    return lambda *_: invoke()


def write_tflite_of_torch(
    module: Any, inputs: Sequence[Any], file: Path, calibration: Sequence[Sequence[Any]] = ()
) -> None:
    """Convert a PyTorch module to a file, as litert_of_torch does."""
    import litert_torch
    import torch

    converted = litert_torch.convert(module.eval(), tuple(torch.from_numpy(x.copy()) for x in inputs))
    converted.export(str(file))
    if calibration:
        _quantize_tflite(file, calibration)


def _tensor_name(details: dict[str, Any]) -> str:
    return str(details["name"])


def _quantize_tflite(file: Path, calibration: Sequence[Sequence[Any]]) -> None:
    """Quantize a model to int8 weights and activations, which go in and out as float32."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    runner = Interpreter(str(file)).get_signature_runner()
    given = sorted(runner.get_input_details().items(), key=lambda one: _tensor_name(one[1]))
    made = quantizer.Quantizer(str(file))
    made.load_quantization_recipe(recipe.static_wi8_ai8())
    samples = [
        {name: x.astype(of["dtype"]) for (name, of), x in zip(given, sample, strict=True)} for sample in calibration
    ]
    found = made.calibrate({"serving_default": samples}, num_threads=1)
    made.quantize(found, enable_progress_report=False).export_model(str(file), overwrite=True)
