"""Convert operators of ONNX that TVM's importer lacks or converts incorrectly, by topic."""

from __future__ import annotations

from tvmflow.frontends.onnx.nodes import Converter

CONVERTERS: dict[tuple[str, str], Converter] = {}

# Converted by the function body in ONNX's definition.
BODIES: frozenset[tuple[str, str]] = frozenset(
    ("", name)
    for name in """
    AffineGrid BlackmanWindow CausalConvWithState Celu CenterCropPad HammingWindow HannWindow LinearAttention
    NegativeLogLikelihoodLoss RotaryEmbedding SoftmaxCrossEntropyLoss SwiGLU Swish Attention Range
    """.split()
)

REFUSALS: dict[tuple[str, str], str] = {}
