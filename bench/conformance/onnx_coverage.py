"""List how every operator of ONNX is imported: one row each, from ONNX's own list of operators."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from tvmflow.frontends.onnx import control_flow
from tvmflow.frontends.onnx.converters import BODIES, CONTRIB_DOMAIN, CONVERTERS, ML_DOMAIN, REFUSALS
from tvmflow.frontends.onnx.tvm_converters import CORRECT

# Operators whose inputs always are constants, so that they are evaluated at import.
FOLDED = {("", "MelWeightMatrix"): "of constants only"}

# Operators of com.microsoft that exporters write, or ONNX Runtime's optimizers, and that are refused.
_CONTRIB_REFUSED = {
    "BeamSearch": "a search by data; export the decoder alone",
    "GreedySearch": "a search by data; export the decoder alone",
    "Sampling": "its output is random",
    "Tokenizer": "strings are no tensors of numbers",
}


@dataclass(frozen=True)
class Row:
    """One operator. way: of import, or 'refused'; reason: why it is refused."""

    domain: str
    op: str
    way: str
    reason: str = ""


def way_of(key: tuple[str, str]) -> tuple[str, str]:
    """Return how an operator is imported, and the reason where it is refused or limited."""
    if key in REFUSALS:
        return "refused", REFUSALS[key]
    if key in control_flow.SPECIAL:
        return "at import", control_flow.LIMITS.get(key, "")
    if key in CONVERTERS:
        return "tvmflow", ""
    if key in BODIES:
        return "ONNX's function body", ""
    if key[0] == "" and key[1] in CORRECT:
        return "TVM", ""
    if key in FOLDED:
        return "at import", FOLDED[key]
    if key[0] == CONTRIB_DOMAIN and key[1] in _CONTRIB_REFUSED:
        return "refused", _CONTRIB_REFUSED[key[1]]
    return "refused", "no converter"


def coverage() -> list[Row]:
    """Return a row for every operator of ai.onnx, deprecated ones too, and of ai.onnx.ml, and for the contrib
    operators.
    """
    plain = sorted({schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""})
    contrib = sorted({op for domain, op in CONVERTERS if domain == CONTRIB_DOMAIN} | set(_CONTRIB_REFUSED))
    plain = sorted({*plain, *(op for domain, op in CONVERTERS if domain == "")})
    tables = sorted({schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ML_DOMAIN})
    keys = [("", op) for op in plain] + [(ML_DOMAIN, op) for op in tables] + [(CONTRIB_DOMAIN, op) for op in contrib]
    return [Row(*key, *way_of(key)) for key in keys]
