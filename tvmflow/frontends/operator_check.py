"""Convert a model file without computing anything, to name what its importer does not support."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import FixedSpec, SourceDescription, TensorSpec
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError
from tvmflow.support.json_values import from_json


def check_operators(
    folder: str, framework: str, file: str, inputs: list[dict[str, Any]], fixed: list[dict[str, Any]]
) -> None:
    """Raise UnsupportedOperatorError with all operators that cannot be imported.

    What else is wrong with a file is left to the import, which compares it with its framework.
    """
    specs = tuple(TensorSpec(one["name"], tuple(one["shape"]), one["dtype"]) for one in inputs)
    constants = tuple(from_json(FixedSpec, one) for one in fixed)
    try:
        load_source(Path(folder), SourceDescription(framework, None, file, specs, fixed=constants)).to_relax()
    except UnsupportedOperatorError:
        raise
    except ModelFileError:
        return
