"""List the operators that are converted by ONNX's function bodies, and those that are refused, with the reason."""

from __future__ import annotations

_BY_DATA = "the shape of its output depends on the data; cut the model before it, and compute the rest in your program"
_STRINGS = "strings are no tensors of numbers; compute them before the model"
_RANDOM = "its output is random; give the random numbers as an input"
_IMAGES = "it decodes image files; give the decoded image as an input"
_TEXT = "it counts words of text; compute it before the model"

BODIES: frozenset[tuple[str, str]] = frozenset(
    ("", name)
    for name in """
    AffineGrid Attention BlackmanWindow CausalConvWithState CenterCropPad HammingWindow HannWindow LinearAttention
    NegativeLogLikelihoodLoss Range RotaryEmbedding SequenceMap SoftmaxCrossEntropyLoss SwiGLU
    """.split()
)

RANDOM = frozenset("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli".split())

REFUSALS: dict[tuple[str, str], str] = {
    ("", name): reason
    for names, reason in (
        ("NonZero Unique Compress NonMaxSuppression", _BY_DATA),
        ("StringConcat StringNormalizer StringSplit RegexFullMatch", _STRINGS),
        (" ".join(sorted(RANDOM)), _RANDOM),
        ("ImageDecoder", _IMAGES),
        ("TfIdfVectorizer", _TEXT),
    )
    for name in names.split()
}
