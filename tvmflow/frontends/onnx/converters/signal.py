"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of

MAX_LENGTH = 4096  # the matrix of a transform has its square


def _dft(node: Node) -> Value:
    x, rank = node.inputs[0], len(dims(node.inputs[0]))
    axis = node.attributes.get("axis", 1) if node.version < 20 else -2
    if node.version >= 20 and node.input(2) is not None:
        axis = int(node.constant(2, "axis").reshape(-1)[0])
    axis %= rank
    length = dims(x)[axis] if node.input(1) is None else int(node.constant(1, "dft_length").reshape(-1)[0])
    inverse, onesided = bool(node.attributes.get("inverse", 0)), bool(node.attributes.get("onesided", 0))
    return transform(node, x, axis, length, inverse, onesided)


def transform(node: Node, x: Value, axis: int, length: int, inverse: bool, onesided: bool) -> Value:
    """Return the transform along an axis of values whose last axis is 1 (real) or 2 (complex)."""
    r = node.emitter
    given = dims(x)[axis]
    bins = length // 2 + 1
    if inverse and onesided:
        length = length if node.input(1) is not None else 2 * (given - 1)
    if max(length, given) > MAX_LENGTH:
        raise RefusedNodeError(f"a transform of {length} values (at most {MAX_LENGTH})")
    order = [a for a in range(len(dims(x)) - 1) if a != axis] + [axis]
    moved = r.transpose(x, [*order, len(dims(x)) - 1])
    outer = [dims(x)[a] for a in order[:-1]]
    complex_input = dims(x)[-1] == 2
    flat = r.reshape_to(moved, [int(np.prod(outer, dtype=int)), given * dims(x)[-1]])
    if inverse and onesided:
        matrix, out, parts = _half_inverse(given, length), length, 1
    else:
        out = bins if onesided else length
        matrix, parts = _full(given, length, out, inverse, complex_input), 2
    product = r.matmul(flat, matrix.astype(dtype_of(x)))
    shaped = r.reshape_to(product, [*outer, out, parts])
    back = [int(place) for place in np.argsort(order)]
    return r.transpose(shaped, [*back, len(dims(x)) - 1])


def _full(given: int, length: int, out: int, inverse: bool, complex_input: bool) -> np.ndarray[Any, Any]:
    """Return the matrix (given x parts, out x 2); values beyond the length are left out, missing ones are 0."""
    angle = 2 * np.pi * np.outer(np.arange(given), np.arange(out)) / length * (1 if inverse else -1)
    scale = 1 / length if inverse else 1.0
    cosine, sine = np.cos(angle) * scale, np.sin(angle) * scale
    cosine[length:], sine[length:] = 0.0, 0.0
    real = np.stack([cosine, sine], -1)  # (given, out, 2) of the real part
    if not complex_input:
        return real.reshape(given, out * 2)
    imaginary = np.stack([-sine, cosine], -1)
    return np.stack([real, imaginary], 1).reshape(given * 2, out * 2)


def _half_inverse(given: int, length: int) -> np.ndarray[Any, Any]:
    """Return the matrix (given x 2, length) of half a spectrum whose other half is its conjugate."""
    angle = 2 * np.pi * np.outer(np.arange(given), np.arange(length)) / length
    twice = np.full((given, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0 and given > length // 2:
        twice[length // 2] = 1.0
    twice[length // 2 + 1 :] = 0.0
    return np.stack([np.cos(angle) * twice, -np.sin(angle) * twice], 1).reshape(given * 2, length) / length


def _stft(node: Node) -> Value:
    signal, window, r = node.inputs[0], node.input(2), node.emitter
    step = int(node.constant(1, "frame_step").reshape(-1)[0])
    length = dims(window)[0] if window is not None else int(node.constant(3, "frame_length").reshape(-1)[0])
    if node.input(3) is not None:
        length = int(node.constant(3, "frame_length").reshape(-1)[0])
    shape = dims(signal) if len(dims(signal)) == 3 else (*dims(signal), 1)
    signal = r.reshape_to(signal, shape)
    batch, total, parts = shape
    frames = 1 + (total - length) // step
    places = (np.arange(frames)[:, None] * step + np.arange(length)).reshape(-1)
    framed = r.reshape_to(r.take(signal, places.astype(np.int64), 1), [batch, frames, length, parts])
    if window is not None:
        framed = r.multiply(framed, r.reshape_to(window, [length, 1]))
    onesided = bool(node.attributes.get("onesided", 1)) and parts == 1
    return transform(node, framed, 2, length, False, onesided)


SIGNAL = {"DFT": _dft, "STFT": _stft}
