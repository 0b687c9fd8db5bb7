"""Convert operators of ONNX that TVM's importer lacks or converts incorrectly, by topic.

CONVERTERS has ours, which take precedence; BODIES the operators that are converted by the function body in ONNX's
definition; REFUSALS the reasons why the others are refused. TVM's converters take the rest (`tvm_converters.py`).
"""

from __future__ import annotations

from tvmflow.frontends.onnx.converters.contrib import CONTRIB
from tvmflow.frontends.onnx.converters.elementwise import ELEMENTWISE
from tvmflow.frontends.onnx.converters.grouped_attention import GROUPED_ATTENTION
from tvmflow.frontends.onnx.converters.moves import MOVES
from tvmflow.frontends.onnx.converters.norms import NORMS, NORMS_CONTRIB
from tvmflow.frontends.onnx.converters.quantized import QUANTIZED, QUANTIZED_CONTRIB
from tvmflow.frontends.onnx.converters.recurrent import RECURRENT, RECURRENT_CONTRIB
from tvmflow.frontends.onnx.converters.reductions import REDUCTIONS
from tvmflow.frontends.onnx.converters.refusals import BODIES, RANDOM
from tvmflow.frontends.onnx.converters.refusals import REFUSALS as PLAIN_REFUSALS
from tvmflow.frontends.onnx.converters.resize import RESIZE
from tvmflow.frontends.onnx.converters.signal import SIGNAL
from tvmflow.frontends.onnx.converters.spatial import SPATIAL
from tvmflow.frontends.onnx.converters.support_vectors import SUPPORT_VECTORS
from tvmflow.frontends.onnx.converters.tables import ML_DOMAIN, REFUSED_TABLES, TABLES
from tvmflow.frontends.onnx.converters.trees import TREES
from tvmflow.frontends.onnx.nodes import Converter

CONTRIB_DOMAIN = "com.microsoft"

_PLAIN = ELEMENTWISE | MOVES | NORMS | QUANTIZED | RECURRENT | REDUCTIONS | RESIZE | SIGNAL | SPATIAL
CONVERTERS: dict[tuple[str, str], Converter] = {
    **{("", op): way for op, way in _PLAIN.items()},
    **{
        (CONTRIB_DOMAIN, op): way
        for op, way in (CONTRIB | GROUPED_ATTENTION | NORMS_CONTRIB | QUANTIZED_CONTRIB | RECURRENT_CONTRIB).items()
    },
    **{(ML_DOMAIN, op): way for op, way in (TABLES | TREES | SUPPORT_VECTORS).items()},
}
REFUSALS = PLAIN_REFUSALS | {(ML_DOMAIN, op): reason for op, reason in REFUSED_TABLES.items()}

__all__ = ["BODIES", "CONTRIB_DOMAIN", "CONVERTERS", "ML_DOMAIN", "RANDOM", "REFUSALS"]
