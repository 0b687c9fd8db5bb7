"""Import PyTorch models."""

from __future__ import annotations

from pathlib import Path

from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.pytorch.loading import load_as
from tvmflow.frontends.source_model import SourceDescription


def load(folder: Path, description: SourceDescription) -> ExportedModel:
    """Load a model that can be converted. Raises ModelFileError."""
    return load_as(ExportedModel, folder, description)
