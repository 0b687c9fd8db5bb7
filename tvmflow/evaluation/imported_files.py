"""List and check the files that the import leaves: they come from a sandbox that read an untrusted model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmflow.evaluation.agreement import Agreement, Noise
from tvmflow.evaluation.conditioning import CONDITIONING_NAME, read_noise, read_warnings
from tvmflow.evaluation.quality_warnings import QualityWarning
from tvmflow.evaluation.source_layers import LAYERS_NAME, read_layers
from tvmflow.frontends.source_model import OUTPUTS_NAME, OutputSpec, read_outputs
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME
from tvmflow.support.errors import ModelFileError, TvmflowError, first_line
from tvmflow.support.files import check_arrays
from tvmflow.support.json_values import OPTIONAL, from_json, to_json

_SMALL, _IR, _LARGE = 16 << 20, 1 << 30, 64 << 30
REFERENCE_NAME, FACTS_NAME, PEER_NAME = "reference.npz", "import.json", "peer.onnx"
IMPORTED_FILES = {
    IR_NAME: _IR,
    WEIGHTS_NAME: _LARGE,
    REFERENCE_NAME: _LARGE,
    PEER_NAME: _LARGE,
    f"{PEER_NAME}.data": _LARGE,
    FACTS_NAME: _SMALL,
    OUTPUTS_NAME: _SMALL,
    CONDITIONING_NAME: _SMALL,
    LAYERS_NAME: _SMALL,
}
_MAX_OUTPUTS, _MAX_TEXT = 10_000, 2000


@dataclass(frozen=True)
class ImportFacts:
    """What import.json holds, and the stage reports."""

    golden: Agreement
    outputs: list[OutputSpec]
    noise: list[Noise]
    warnings: list[QualityWarning]
    sizes: dict[str, Agreement] = field(default_factory=dict, metadata=OPTIONAL)
    no_onnx: str = field(default="", metadata=OPTIONAL)


def check_imported(folder: Path, reply: Any) -> dict[str, Any]:
    """Return the facts of an import. Raises ModelFileError unless they and the small files have the types and sizes
    that tvmflow writes; IR and weights are checked when they are read.
    """
    try:
        facts: dict[str, Any] = to_json(from_json(ImportFacts, reply))
        if reply != facts:
            raise ValueError(f"the reply has {sorted(reply)}")
        if json.loads((folder / FACTS_NAME).read_text(encoding="utf-8")) != facts:
            raise ValueError(f"{FACTS_NAME} is not what was replied")
        outputs = read_outputs(folder)
        if to_json(outputs) != facts["outputs"] or not 0 < len(outputs) <= _MAX_OUTPUTS:
            raise ValueError(f"{OUTPUTS_NAME} is not what was replied")
        if to_json(read_noise(folder)) != facts["noise"] or to_json(read_warnings(folder)) != facts["warnings"]:
            raise ValueError(f"{CONDITIONING_NAME} is not what was replied")
        _check_texts(facts)
        _check_texts(to_json(read_layers(folder)))
        check_arrays(folder / REFERENCE_NAME)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, TvmflowError) as error:
        raise ModelFileError(
            f"the import left damaged files: {first_line(error)}", "what tvmflow writes", "import the model again"
        ) from error
    return facts


def _check_texts(value: Any) -> None:
    """Raise ValueError for a text that a terminal or a page could not show as it is."""
    if isinstance(value, str) and (len(value) > _MAX_TEXT or not value.isprintable()):
        raise ValueError(f"the text {value[:50]!r}")
    for part in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_texts(part)
