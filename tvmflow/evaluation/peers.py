"""What people would use instead, measured beside the library: same input, same threads, same protocol, same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.evaluation.latency import Latency, LatencyRules, measure, timed
from tvmflow.frontends.source_model import SourceModel

Array = np.ndarray[Any, Any]
Peer = Callable[[], Callable[[], object]]


def measure_peers(
    names: tuple[str, ...], source: SourceModel, onnx_file: Path, x: Array, threads: int, rules: LatencyRules
) -> dict[str, Latency]:
    """Return name -> latency for one batch x, each peer on `threads` threads of this machine."""
    makers: dict[str, Peer] = {
        "source": lambda: _source(source, x, threads),
        "onnxruntime": lambda: _onnxruntime(onnx_file, x, threads),
    }
    can = {"source": source.in_process, "onnxruntime": onnx_file.exists()}
    return {name: measure(timed(makers[name]()), rules) for name in names if can[name]}


def _source(source: SourceModel, x: Array, threads: int) -> Callable[[], object]:
    import torch

    torch.set_num_threads(threads)
    return lambda: source.run(x)


def _onnxruntime(onnx_file: Path, x: Array, threads: int) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(onnx_file, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, feed)
