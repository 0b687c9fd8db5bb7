"""Write int8 networks of ncnn, whose wheels have no ncnn2int8: weights stay float32, which ncnn quantizes when it
loads them, and scales of the weights (by output channel) and of the inputs stand behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_LIMIT = 127.0
# Layer -> the parameters of outputs and weights; int8_scale_term, of which 100 more says that its output is int8, too.
_QUANTIZED = {"Convolution": (0, 6, 2), "ConvolutionDepthWise": (0, 6, 1), "InnerProduct": (0, 2, 2)}
_BIAS = {"Convolution": 5, "ConvolutionDepthWise": 5, "InnerProduct": 1}
_SCALE_TERM = 8
_FLAG = 4  # bytes before weights; zeros: they are float32


class _Layer:
    def __init__(self, line: str) -> None:
        self.words = line.split()
        self.kind = self.words[0]
        inputs, outputs = int(self.words[2]), int(self.words[3])
        self.inputs = self.words[4 : 4 + inputs]
        self.outputs = self.words[4 + inputs : 4 + inputs + outputs]
        self.values = dict(word.split("=", 1) for word in self.words[4 + inputs + outputs :])

    def value(self, name: int, default: int = 0) -> int:
        return int(self.values.get(str(name), default))

    def with_term(self, term: int) -> str:
        return " ".join([*self.words, f"{_SCALE_TERM}={term}"])


def write_int8(file: Path, samples: Sequence[Any]) -> Path:
    """Quantize FILE.param with the .bin beside it, calibrated by the largest inputs of each layer on samples; return
    the new .param.

    Raises ValueError for a network with weights in layers that this does not know.
    """
    head, counts, *lines = file.read_text(encoding="utf-8").splitlines()
    layers = [_Layer(line) for line in lines]
    largest = _largest_inputs(file, layers, samples)
    content, at = file.with_suffix(".bin").read_bytes(), 0
    written, texts = bytearray(), []
    for layer in layers:
        size = _bytes_of(layer, content, at)
        mine = content[at : at + size]
        at, term = at + size, 0
        written += mine
        if layer.kind in _QUANTIZED and mine[:_FLAG] == bytes(_FLAG):
            term = _QUANTIZED[layer.kind][2]
            written += _scales(layer, mine, largest[layer.inputs[0]])
            follower = _int8_reader(layer.outputs[0], layers)
            if follower is not None:
                term += 100
                written += np.float32(_LIMIT / largest[follower.inputs[0]]).tobytes()
        texts.append(layer.with_term(term) if term else " ".join(layer.words))
    if at != len(content):
        raise ValueError(
            f"{len(content) - at} bytes of the weights belong to layers that bench.ncnn_int8 does not know"
        )
    result = file.with_name("int8.param")
    result.write_text("\n".join([head, counts, *texts, ""]), encoding="utf-8")
    result.with_suffix(".bin").write_bytes(written)
    return result


def _bytes_of(layer: _Layer, content: bytes, at: int) -> int:
    """Return how many bytes of the weights a layer reads."""
    if layer.kind in _QUANTIZED:
        outputs, weights, _ = _QUANTIZED[layer.kind]
        return _FLAG + 4 * layer.value(weights) + 4 * layer.value(outputs) * layer.value(_BIAS[layer.kind])
    if layer.kind == "MemoryData":
        return 4 * int(np.prod([layer.value(name) or 1 for name in (0, 1, 11, 2)]))
    if layer.kind == "PReLU":
        return 4 * layer.value(0)
    if layer.kind == "LayerNorm":
        return 8 * layer.value(0) * layer.value(2, 1)
    if layer.kind == "GroupNorm":
        return 8 * layer.value(1) * layer.value(3, 1)
    if layer.kind == "BatchNorm":
        return 16 * layer.value(0)
    if layer.kind == "Scale":
        return 4 * layer.value(0) * (1 + layer.value(1))
    if layer.kind in ("MultiHeadAttention", "Gemm", "Deconvolution", "Embed", "Convolution1D"):
        raise ValueError(f"bench.ncnn_int8 does not know {layer.kind}'s weights")
    return 0


def _scales(layer: _Layer, mine: bytes, largest: float) -> bytes:
    outputs, weights, _ = _QUANTIZED[layer.kind]
    count = layer.value(weights)
    values = np.frombuffer(mine, np.float32, count, _FLAG)
    rows = layer.value(7, 1) if layer.kind == "ConvolutionDepthWise" else layer.value(outputs)
    per_row = np.maximum(np.abs(values.reshape(rows, -1)).max(1), 1e-20)
    return np.array([*(_LIMIT / per_row), _LIMIT / largest], np.float32).tobytes()


def _int8_reader(blob: str, layers: list[_Layer]) -> _Layer | None:
    """Return a layer that reads a value as int8, if nothing else reads it, or copies of it only."""
    readers = [layer for layer in layers if blob in layer.inputs]
    if readers and readers[0].kind == "Split":
        found = [_int8_reader(one, layers) for one in readers[0].outputs]
        return found[0] if all(one is not None for one in found) else None
    return readers[0] if len(readers) == 1 and readers[0].kind in _QUANTIZED else None


def _largest_inputs(file: Path, layers: list[_Layer], samples: Sequence[Any]) -> dict[str, float]:
    import ncnn

    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    net.load_param(str(file))
    net.load_model(str(file.with_suffix(".bin")))
    found: dict[str, float] = {}
    read = sorted({layer.inputs[0] for layer in layers if layer.kind in _QUANTIZED})
    for sample in samples:
        extractor = net.create_extractor()
        extractor.set_light_mode(False)
        extractor.input(net.input_names()[0], ncnn.Mat(np.ascontiguousarray(sample)))
        for blob in read:
            _, made = extractor.extract(blob)
            found[blob] = max(found.get(blob, 1e-6), float(np.abs(np.array(made)).max()))
    return found
