"""Define small networks whose kernels reach every template in every precision, for digests of generated code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.lower import lower
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.tir.workloads import Workload, extract_workloads
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.quantization.mixed_precision import MixedPrecision, to_mixed_precision
from tvmflow.targets.cpu_features import cpu_features_of
from tvmflow.targets.resolve import ResolvedTarget

_SIZE = 8
TARGETS = {
    name: ResolvedTarget("llvm", name, triple, (), 2, "g++")
    for name, triple in (
        ("znver4", "x86_64-linux-gnu"),
        ("sapphirerapids", "x86_64-linux-gnu"),
        ("x86-64-v3", "x86_64-linux-gnu"),
        ("cortex-a72", "aarch64-linux-gnu"),
        ("neoverse-v1", "aarch64-linux-gnu"),
    )
}


@dataclass(frozen=True)
class Case:
    """A workload of a network that was lowered for a target."""

    name: str
    target: ResolvedTarget
    workload: Workload


def _module(shape: tuple[int, ...], dtype: str, body: Callable[[Any, Callable[..., Any]], Any]) -> Any:
    """Return a Relax module of one function; `body(x, emit)` returns its output."""
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(body(x, builder.emit))
        builder.emit_func_output(out)
    return builder.get()


def _weight(*shape: int, dtype: str = "float32") -> Any:
    return constant((np.arange(np.prod(shape)) % 7 - 3).reshape(shape).astype(dtype), dtype)


def _float32() -> Any:
    """A first layer, a convolution, a depthwise one, a pool, a head: windows, rows, reductions and single elements."""

    def body(x: Any, emit: Callable[..., Any]) -> Any:
        op = relax.op
        x = emit(op.nn.relu(emit(op.nn.conv2d(x, _weight(32, 3, 3, 3), padding=1))))
        y = emit(op.sigmoid(emit(op.nn.conv2d(x, _weight(32, 32, 3, 3), padding=1))))
        z = emit(op.nn.conv2d(emit(op.add(x, y)), _weight(32, 1, 3, 3), padding=1, groups=32))
        z = emit(op.nn.max_pool2d(emit(op.concat([z, y], axis=1)), (3, 3), strides=(2, 2), padding=(1, 1)))
        flat = emit(op.reshape(emit(op.mean(z, [2, 3], keepdims=True)), (1, 64)))
        return op.nn.softmax(emit(op.matmul(flat, _weight(64, 32))))

    return _module((1, 3, _SIZE, _SIZE), "float32", body)


def _one_convolution(size: int = _SIZE) -> Any:
    def body(x: Any, emit: Callable[..., Any]) -> Any:
        return relax.op.nn.relu(emit(relax.op.nn.conv2d(x, _weight(32, 32, 3, 3), padding=1)))

    return _module((1, 32, size, size), "float32", body)


def _inverted() -> Any:
    """24 channels, half of whose last block is filling, widened and summed by windows."""

    def body(x: Any, emit: Callable[..., Any]) -> Any:
        op = relax.op
        x = emit(op.nn.relu(emit(op.nn.conv2d(x, _weight(24, 16, 1, 1)))))
        y = emit(op.clip(emit(op.nn.conv2d(x, _weight(64, 24, 1, 1))), 0.0, 6.0))
        return op.nn.relu(emit(op.nn.conv2d(y, _weight(64, 1, 3, 3), padding=1, groups=64)))

    return _module((1, 16, 2 * _SIZE, 2 * _SIZE), "float32", body)


def _beside_convolutions() -> Any:
    """What no convolution is part of: a layer norm, a sum over the first axis, a hyperbolic tangent."""

    def body(x: Any, emit: Callable[..., Any]) -> Any:
        scale, shift = (constant(np.full(24, value, np.float32), "float32") for value in (1.5, 0.5))
        y = emit(relax.op.nn.layer_norm(x, scale, shift, axes=[-1]))
        return relax.op.tanh(emit(relax.op.sum(y, [0])))

    return _module((6, 24), "float32", body)


def _attention() -> Any:
    """Two heads of 24 channels over 19 rows, which no vector divides, with numbers added to the scores; a norm and a
    product of what comes out.
    """

    def body(x: Any, emit: Callable[..., Any]) -> Any:
        op = relax.op
        heads = emit(op.permute_dims(emit(op.reshape(x, (19, 2, 24))), [1, 0, 2]))
        scores = emit(op.add(emit(op.matmul(heads, emit(op.permute_dims(heads, [0, 2, 1])))), _weight(19, 19)))
        mixed = emit(op.matmul(emit(op.nn.softmax(scores, axis=-1)), heads))
        rows = emit(op.reshape(emit(op.permute_dims(mixed, [1, 0, 2])), (19, 48)))
        normed = emit(op.nn.layer_norm(emit(op.matmul(rows, _weight(48, 48))), _weight(48), _weight(48), axes=[-1]))
        return op.tanh(emit(op.matmul(normed, emit(op.permute_dims(normed, [1, 0])))))

    return _module((19, 48), "float32", body)


def _mixed(dtype: str, accumulator: str, module: Any) -> Any:
    return to_mixed_precision(module, MixedPrecision(dtype, accumulator, ("conv2d", "matmul"), ("mean", "softmax")))


def _bytes(data: str) -> Any:
    """Integers as quantized networks have them: sums in int32, brought back to bytes in float32."""
    low, high = (0, 255) if data == "uint8" else (-128, 127)

    def body(x: Any, emit: Callable[..., Any]) -> Any:
        op = relax.op

        def again(total: Any) -> Any:
            real = emit(op.multiply(emit(op.astype(emit(total), "float32")), relax.const(0.0625, "float32")))
            return emit(op.astype(emit(op.clip(emit(op.round(real)), low, high)), data))

        x = again(op.nn.conv2d(x, _weight(32, 3, 3, 3, dtype="int8"), padding=1, out_dtype="int32"))
        y = again(op.nn.conv2d(x, _weight(32, 32, 3, 3, dtype="int8"), padding=1, out_dtype="int32"))
        z = again(op.nn.conv2d(y, _weight(32, 1, 3, 3, dtype="int8"), padding=1, groups=32, out_dtype="int32"))
        return op.nn.max_pool2d(z, (2, 2), strides=(2, 2))

    return _module((1, 3, _SIZE, _SIZE), data, body)


def cases(target: ResolvedTarget) -> Iterator[Case]:
    """Yield every workload of the networks that tell a target from the others, once, as it is lowered for it."""
    seen: set[str] = set()
    for name in _OF_TARGET[target.mcpu]:
        make, winograd = NETWORKS[name]
        packed = PackChannels(cpu_features_of(target).channel_block)(make())
        tiles = dict.fromkeys(list_convolution_keys(packed), winograd) if winograd else {}
        for workload in extract_workloads(lower(packed, CpuBackend(target), winograd=tiles)):
            if workload.key not in seen:
                seen.add(workload.key)
                yield Case(f"{target.mcpu} {name} {workload.name} {workload.key[:8]}", target, workload)


NETWORKS: dict[str, tuple[Callable[[], Any], int]] = {
    "float32": (_float32, 0),
    "inverted": (_inverted, 0),
    "beside": (_beside_convolutions, 0),
    "attention": (_attention, 0),
    "winograd2": (_one_convolution, 2),
    "winograd4": (_one_convolution, 4),
    "winograd6": (_one_convolution, 6),
    "bfloat16": (lambda: _mixed("bfloat16", "float32", _float32()), 0),
    "bfloat16_winograd": (lambda: _mixed("bfloat16", "float32", _one_convolution()), 2),
    "bfloat16_narrow": (lambda: _mixed("bfloat16", "float32", _one_convolution(_SIZE - 3)), 0),
    "float16": (lambda: _mixed("float16", "float16", _float32()), 0),
    "float16_acc32": (lambda: _mixed("float16", "float32", _one_convolution()), 0),
    "float16_winograd4": (lambda: _mixed("float16", "float16", _one_convolution()), 4),
    "float16_acc32_winograd4": (lambda: _mixed("float16", "float32", _one_convolution()), 4),
    "uint8": (lambda: _bytes("uint8"), 0),
    "int8": (lambda: _bytes("int8"), 0),
}
_HALF_WINOGRAD = ("float16_winograd4", "float16_acc32_winograd4")
_OF_TARGET: dict[str, tuple[str, ...]] = {
    "znver4": tuple(name for name in NETWORKS if name not in ("winograd6", *_HALF_WINOGRAD)),
    "sapphirerapids": ("bfloat16", "bfloat16_narrow", "uint8", "int8"),
    "x86-64-v3": ("float32", "attention", "winograd4", "bfloat16"),
    "cortex-a72": ("float32", "beside", "attention", "winograd4", "winograd6", "uint8"),
    "neoverse-v1": ("bfloat16", "bfloat16_winograd", "float16_acc32", *_HALF_WINOGRAD, "uint8", "int8"),
}
