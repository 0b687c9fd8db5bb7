"""Define the command predict, which prints the top classes of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvmflow.cli.app import CellName, Json, api, app, open_workspace


@app.command()
def predict(
    cell: CellName,
    images: Annotated[list[Path], typer.Argument(help="JPEG, PNG, BMP or WebP files.")],
    top: Annotated[int, typer.Option("--top", min=1, help="Number of classes to print per image.")] = 5,
    as_json: Json = False,
) -> None:
    """Classify images with a cell's library on its device; print the top classes of each."""
    from tvmflow.report.console import show_json, show_table

    predictions = api.classify(cell, [str(image) for image in images], top, open_workspace())
    if as_json:
        show_json([prediction.to_json() for prediction in predictions])
        return
    for prediction in predictions:
        rows = ([f"{guess.probability:.1%}", guess.name, str(guess.number)] for guess in prediction.top)
        show_table(prediction.image, ("probability", "class", "number"), rows)
