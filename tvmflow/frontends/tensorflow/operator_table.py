"""List how each TFLite operator is handled: its converter to Relax, or the reason for which it is refused.

The names are those of the format's own enumeration; a test compares the two. docs/tflite_operators.md shows the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvmflow.frontends.tensorflow.elementwise import ELEMENTWISE
from tvmflow.frontends.tensorflow.indexing import INDEXING
from tvmflow.frontends.tensorflow.operation import Convert
from tvmflow.frontends.tensorflow.products import PRODUCTS
from tvmflow.frontends.tensorflow.recurrent import RECURRENT
from tvmflow.frontends.tensorflow.shapes import SHAPES
from tvmflow.frontends.tensorflow.tflite_graph import Operator
from tvmflow.frontends.tensorflow.variables import VARIABLE_OPERATORS
from tvmflow.frontends.tensorflow.windows import WINDOWS
from tvmflow.support.errors import UnsupportedOperatorError

CONVERTERS: dict[str, Convert] = {**ELEMENTWISE, **INDEXING, **PRODUCTS, **RECURRENT, **SHAPES, **WINDOWS}

INLINED = VARIABLE_OPERATORS | {"STABLEHLO_COMPOSITE"}
"""Operators that are replaced before any is converted: composites by those that they stand for
(`tflite_graph.inline_composites`), variables by inputs and outputs (`variables.make_variables_explicit`)."""

_CONTROL = "which operators run depends on data"
_SIZE = "the size of its output depends on data"
_RANDOM = "its output is random"
_TEXT = "it works on strings"
_TABLES = "it looks up keys in a hash table"
_NO_KERNEL = "LiteRT itself cannot run it"
_DELEGATE = "it is made while a model runs, not written to files"

REFUSED: dict[str, str] = {
    "CALL": _NO_KERNEL,
    "CONCAT_EMBEDDINGS": _NO_KERNEL,
    "CUSTOM": "custom operators belong to the runtime of their project; some of MediaPipe's are imported",
    "DELEGATE": _DELEGATE,
    "DILATE": "no exporter writes it",
    "EMBEDDING_LOOKUP_SPARSE": _SIZE,
    "HASHTABLE": _TABLES,
    "HASHTABLE_FIND": _TABLES,
    "HASHTABLE_IMPORT": _TABLES,
    "HASHTABLE_LOOKUP": _TABLES,
    "HASHTABLE_SIZE": _TABLES,
    "IF": _CONTROL,
    "LSH_PROJECTION": _TEXT,
    "MULTINOMIAL": _RANDOM,
    "NON_MAX_SUPPRESSION_V4": _SIZE,
    "NON_MAX_SUPPRESSION_V5": _SIZE,
    "PLACEHOLDER_FOR_GREATER_OP_CODES": _DELEGATE,
    "RANDOM_STANDARD_NORMAL": _RANDOM,
    "RANDOM_UNIFORM": _RANDOM,
    "REDUCE_WINDOW": "no exporter writes it",
    "SKIP_GRAM": _TEXT,
    "STABLEHLO_CASE": _CONTROL,
    "STABLEHLO_GATHER": "its dimension numbers are not converted; the converter writes GATHER and GATHER_ND",
    "STABLEHLO_PAD": "its interior padding is not converted; the converter writes PAD and DILATE",
    "STABLEHLO_REDUCE_WINDOW": "its windows are not converted; the converter writes pools and REDUCE_WINDOW",
    "STABLEHLO_RNG_BIT_GENERATOR": _RANDOM,
    "STABLEHLO_SCATTER": "its dimension numbers are not converted; the converter writes SCATTER_ND",
    "STABLEHLO_WHILE": _CONTROL,
    "UNIQUE": _SIZE,
    "WHERE": _SIZE,
    "WHILE": _CONTROL,
    **dict.fromkeys(
        (
            f"STABLEHLO_{name}"
            for name in (
                "ABS AND BROADCAST_IN_DIM CBRT CLAMP COMPARE CONCATENATE CONVERT CONVOLUTION COSINE CUSTOM_CALL DIVIDE "
                "DOT_GENERAL DYNAMIC_SLICE DYNAMIC_UPDATE_SLICE EXPONENTIAL FLOOR IOTA LOG LOGISTIC NEGATE OR POWER "
                "REDUCE REMAINDER RESHAPE RSQRT SELECT SLICE SORT SUBTRACT TANH TRANSPOSE"
            ).split()
        ),
        _NO_KERNEL,
    ),
}

_REASONS = {**REFUSED, **dict.fromkeys(VARIABLE_OPERATORS, "a variable inside of a composite operator")}


def check_operators(operators: Sequence[Operator]) -> None:
    """Check that all operators can be converted. Raises UnsupportedOperatorError that names all others."""
    refused: dict[str, list[Operator]] = {}
    for operator in operators:
        if operator.name not in CONVERTERS:
            refused.setdefault(operator.name, []).append(operator)
    if not refused:
        return
    shown = "; ".join(_describe(name, found) for name, found in refused.items())
    raise UnsupportedOperatorError(
        f"TFLite operators that are not imported: {shown}",
        "operators that docs/tflite_operators.md lists",
        "replace them in the model, or cut the model before them",
    )


def _describe(name: str, found: Sequence[Operator]) -> str:
    first = ", ".join(repr(tensor.name) for tensor in found[0].outputs) or "no output"
    reason = "a custom operator" if name.startswith("CUSTOM:") else _REASONS.get(name, "unknown to this version")
    count = f"{len(found)} times, first " if len(found) > 1 else ""
    return f"{name.removeprefix('CUSTOM:')} ({count}at {first}: {reason})"
