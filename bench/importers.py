"""Measure the error and the import time of networks of every framework against the framework itself.

    python -m bench.importers [--only mxnet/] [--compile]

Weights are seeded, inputs random. The imported module is run by the numpy definition, or with --compile as a library
with default schedules. Tool environments for MXNet and TensorFlow are made on first use. An operator that an importer
does not know is named in the row.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench.tensorflow_models import run_in_environment
from tvmflow.evaluation.agreement import compare
from tvmflow.frontends.registry import FRONTENDS, load_source
from tvmflow.frontends.source_model import SourceDescription, SourceModel, one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights
from tvmflow.support.errors import TvmflowError
from tvmflow.support.progress import silent
from tvmflow.toolchain.environments import run_tool

MXNET = (
    "resnet18_v1",
    "resnet34_v1",
    "resnet50_v1",
    "resnet18_v2",
    "resnet50_v2",
    "vgg11_bn",
    "vgg16",
    "mobilenet1.0",
    "mobilenetv2_1.0",
    "squeezenet1.0",
    "squeezenet1.1",
    "densenet121",
    "alexnet",
    "inceptionv3",
)
TORCH = (
    "resnet18",
    "resnet34",
    "resnet50",
    "vgg16",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "squeezenet1_1",
    "densenet121",
    "inception_v3",
    "googlenet",
    "shufflenet_v2_x1_0",
    "efficientnet_b0",
    "mnasnet1_0",
    "convnext_tiny",
    "regnet_y_400mf",
)
KERAS = (
    "mobilenet_v2_050",
    "mobilenet_v2_100",
    "mobilenet",
    "resnet50",
    "densenet121",
    "inception_v3",
    "efficientnet_b0",
    "mobilenet_v3_small",
)
ROWS = (
    *(("mxnet", f"mxnet/{name}") for name in MXNET),
    *(("torch", f"torchvision/{name}") for name in TORCH),
    *(("keras", f"keras/{name}") for name in KERAS),
    ("onnx", "torchvision/resnet18"),
    ("onnx", "torchvision/mobilenet_v2"),
    ("tensorflow", "SavedModel"),
    ("tensorflow", "float .tflite"),
)


def _shape(framework: str, network: str) -> tuple[int, ...]:
    size = 32 if framework == "tensorflow" else 8 if "digits" in network else 299 if "inception" in network else 224
    return (1, 3, size, size)


def fetched(framework: str, network: str, folder: Path) -> SourceModel:
    """Bring a network with seeded weights and load it in its framework."""
    shape = _shape(framework, network)
    if framework == "tensorflow":
        run_in_environment("make", "1", str(folder / "saved"))
        if network == "SavedModel":
            shutil.make_archive(str(folder / "model"), "zip", folder / "saved")
            return load_source(folder, SourceDescription(framework, None, "model.zip", one_input("input", shape)))
        run_tool("tensorflow", ["convert", str(folder / "saved"), str(folder / "model.tflite")])
        return load_source(folder, SourceDescription(framework, None, "model.tflite", one_input("input", shape)))
    origin = "torch" if framework == "onnx" else framework
    request = WeightsRequest(
        origin, network, {"seeded": 1}, folder, DownloadLimits(1, 1, 1.0), folder, FRONTENDS[origin].files
    )
    path = fetch_weights(request, folder, None, silent)
    model = load_source(folder, SourceDescription(origin, network, path.name, one_input("input", shape)))
    if framework == "onnx":
        model.to_onnx(folder / "model.onnx")
        model = load_source(folder, SourceDescription("onnx", None, "model.onnx", one_input("input", shape)))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose 'framework network' holds this text")
    parser.add_argument("--compile", action="store_true", help="run the imported module as a library")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'framework':<12}{'network':<34}{'max rel. error':>16}{'import s':>10}  note")
    for framework, network in ROWS:
        if options.only not in f"{framework} {network}":
            continue
        with tempfile.TemporaryDirectory() as folder:
            print(f"{framework:<12}{network:<34}", end="", flush=True)
            try:
                print(_row(framework, network, Path(folder), options.compile), flush=True)
            except TvmflowError as error:
                print(f"{'-':>16}{'-':>10}  {error.found[:160]}", flush=True)
            gc.collect()


def _row(framework: str, network: str, folder: Path, compiled: bool) -> str:
    source = fetched(framework, network, folder)
    x: Any = np.random.default_rng(0).standard_normal(_shape(framework, network), dtype=np.float32)
    reference = source.run(x)[0]
    started = time.perf_counter()
    module = canonicalize(source.to_relax())
    seconds = time.perf_counter() - started
    if compiled:
        from tvmflow.backends.cpu import host_backend
        from tvmflow.codegen.compile import LocalRunner

        output = LocalRunner(module, host_backend()).run(x)[0]
    else:
        output = run_graph(read_graph(module), x)
    agreement = compare(output, reference)
    return f"{agreement.max_relative_error:>16.2e}{seconds:>10.1f}"


if __name__ == "__main__":
    main()
