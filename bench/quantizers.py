"""Compare our int8 quantizer with ONNX Runtime's static one: same network, same calibration images, same evaluation.

    python -m bench.quantizers [--only NAME]

Both start from the same PyTorch weights. ONNX Runtime: QDQ, weights int8 per channel, activations uint8, min-max (its
default) and entropy calibration, after its own pre-processing. Printed: SQNR of the outputs against float32 in dB,
top-1 agreement, and accuracy where the network is trained. Networks without weights that can be had here are seeded,
with batch norms that saw the calibration images.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.quantization.report import sqnr_db
from tvmflow.sources.data.datasets import Samples, SplitSizes, load_dataset, preprocess, split
from tvmflow.sources.networks.torch_zoo import build
from tvmflow.sources.networks.training import train
from tvmflow.support.progress import silent

Array = np.ndarray[Any, Any]
TRAINED = ("digits_cnn", "digits_depthwise")
SEEDED = ("resnet18", "mobilenet_v2", "squeezenet1_1", "densenet121")


def digits(name: str) -> tuple[Any, Samples, Samples]:
    """Train a digits network; return it, calibration and evaluation samples."""
    raw = load_dataset("digits", Path())
    parts = split(Samples((preprocess(raw.x, 0.0625, (0.0,), (1.0,)),), raw.y), SplitSizes(200, 400, 0))
    network = build(name, 7)
    train(network, parts.train, {"epochs": 30, "batch_size": 64, "learning_rate": 0.004, "seed": 7}, silent)
    return network, parts.calibration, parts.evaluation


def seeded(name: str) -> tuple[Any, Samples, Samples]:
    """Build a torchvision network whose batch norms have the statistics of smooth random images."""
    import torch

    generator = np.random.default_rng(3)

    def images(count: int) -> Array:
        coarse = torch.from_numpy(generator.standard_normal((count, 3, 28, 28), dtype=np.float32))
        return np.asarray(torch.nn.functional.interpolate(coarse, size=224, mode="bicubic").numpy())

    network = build(f"torchvision/{name}", 3)
    calibration, evaluation = images(16), images(16)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the average over what it sees
            module.reset_running_stats()
    network.train()
    with torch.no_grad():
        network(torch.from_numpy(calibration))
    return network.eval(), Samples((calibration,)), Samples((evaluation,))


def onnxruntime_outputs(model: ExportedModel, calibration: Array, x: Array, entropy: bool) -> Array:
    """Quantize with ONNX Runtime and run the result."""
    import onnxruntime
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.samples: Iterator[dict[str, Array]] = iter({name: sample[None]} for sample in calibration)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.samples, None)

    with tempfile.TemporaryDirectory() as folder:
        source, prepared, result = (str(Path(folder) / name) for name in ("a.onnx", "b.onnx", "c.onnx"))
        model.to_onnx(Path(source))
        quant_pre_process(source, prepared)
        method = CalibrationMethod.Entropy if entropy else CalibrationMethod.MinMax
        quantize_static(
            prepared,
            result,
            Reader(model.inputs[0].name),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=method,
        )
        session = onnxruntime.InferenceSession(result, providers=["CPUExecutionProvider"])
        outputs = [session.run(None, {model.inputs[0].name: sample[None]})[0] for sample in x]
        return np.concatenate(outputs) if outputs else np.zeros((0, 1), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"{'network':<20}{'quantizer':<24}{'SQNR dB':>9}{'agree':>8}{'accuracy':>10}{'seconds':>9}")
    for name in (*TRAINED, *SEEDED):
        if options.only in name:
            network, calibration, evaluation = digits(name) if name in TRAINED else seeded(name)
            _rows(name, network, calibration, evaluation)


def _rows(name: str, network: Any, calibration: Samples, evaluation: Samples) -> None:
    model = ExportedModel(network, one_input("input", (1, *evaluation.x.shape[1:])))
    module = canonicalize(model.to_relax())
    graph = read_graph(module)
    reference = np.concatenate([run_graph(graph, sample[None]) for sample in evaluation.x])

    def row(quantizer: str, outputs: Array, seconds: float) -> None:
        agree = float((outputs.argmax(1) == reference.argmax(1)).mean())
        accuracy = "-" if evaluation.y is None else f"{float((outputs.argmax(1) == evaluation.y).mean()):.4f}"
        print(
            f"{name:<20}{quantizer:<24}{sqnr_db(reference, outputs):>9.1f}{agree:>8.3f}{accuracy:>10}{seconds:>9.1f}",
            flush=True,
        )

    row("float32", reference, 0.0)
    for quantizer, chosen in (
        ("ours", Int8Params(max_drop=None)),
        ("ours, min-max", Int8Params(observer="minmax", max_drop=None)),
    ):
        started = time.perf_counter()
        quantized, _ = quantize_int8(module, calibration.x, calibration.y, chosen)
        seconds = time.perf_counter() - started
        integer = read_graph(quantized)
        row(quantizer, np.concatenate([run_graph(integer, sample[None]) for sample in evaluation.x]), seconds)
    for quantizer, entropy in (("ONNX Runtime, min-max", False), ("ONNX Runtime, entropy", True)):
        started = time.perf_counter()
        outputs = onnxruntime_outputs(model, calibration.x, evaluation.x, entropy)
        row(quantizer, outputs, time.perf_counter() - started)


if __name__ == "__main__":
    main()
