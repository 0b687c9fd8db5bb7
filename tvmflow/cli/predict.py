"""Define the command predict: the top classes of images, or the outputs of arrays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tvmflow.cli.app import CellName, Json, api, app, open_workspace
from tvmflow.support.errors import UsageError

_SHOWN = 8  # values, and samples


@app.command()
def predict(
    cell: CellName,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="JPEG, PNG, BMP or WebP files or folders of them; or one .npy, .npz or .csv file."
        ),
    ],
    top: Annotated[int, typer.Option("--top", min=1, help="Number of classes to print per image.")] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Of arrays: the .npz file for all outputs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a cell's library on its device: print the top classes of images, or the outputs for a file of arrays."""
    from tvmflow.report.console import show_json, show_table

    arrays = [file for file in files if file.suffix.lower() in (".npy", ".npz", ".csv")]
    if arrays and len(files) > 1:
        found = f"{len(files)} files with {arrays[0].name}"
        raise UsageError(found, "images, or one file of arrays", "run it for each")
    if arrays:
        _show_outputs(api.predict_file(cell, arrays[0], open_workspace()), output, as_json)
        return
    if output is not None:
        raise UsageError("--output with images", "a file of arrays", "use --json for the classes of images")
    predictions = api.classify(cell, [str(file) for file in files], top, open_workspace())
    for doubt in api.doubts(cell, open_workspace()):
        print(f"warning: {doubt}", file=sys.stderr)
    if as_json:
        show_json([prediction.to_json() for prediction in predictions])
        return
    for prediction in predictions:
        rows = ([f"{guess.probability:.1%}", guess.name, str(guess.number)] for guess in prediction.top)
        show_table(prediction.image, ("probability", "class", "number"), rows)


def _show_outputs(outputs: dict[str, Any], output: Path | None, as_json: bool) -> None:
    from tvmflow.report.console import show_json, show_table, suggest

    if output is not None:
        import numpy as np

        with output.open("wb") as file:
            np.savez(file, **outputs)
        print(output)
        return
    if as_json:
        show_json({name: value.tolist() for name, value in outputs.items()})
        return
    for name, value in outputs.items():
        rows = ((str(at), _beginning(sample)) for at, sample in enumerate(value[:_SHOWN]))
        show_table(f"{name} {list(value.shape)} {value.dtype}", ("sample", "values"), rows)
    suggest("--output FILE.npz    (all values)")


def _beginning(sample: Any) -> str:
    flat = sample.reshape(-1)
    return " ".join(f"{one:.6g}" for one in flat[:_SHOWN].tolist()) + (" ..." if flat.size > _SHOWN else "")
