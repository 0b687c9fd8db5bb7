"""Define the command predict: the top classes of images and texts, or the outputs of arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmflow.cli.app import CellName, Json, api, app, open_workspace
from tvmflow.support.errors import UsageError

if TYPE_CHECKING:
    from tvmflow.api import Guess, TextPrediction

_SHOWN = 8  # values, and samples


@app.command()
def predict(
    cell: CellName,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="JPEG, PNG, BMP or WebP files or folders of them; one .npy, .npz or .csv file; or, where the model "
            "has a tokenizer, texts, .txt files or folders of them.",
        ),
    ],
    top: Annotated[int, typer.Option("--top", min=1, help="Number of classes to print per image or text.")] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Of arrays: the .npz file for all outputs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a cell's library on its device: print the top classes of images or texts, or the outputs for arrays."""
    from tvmflow.report.console import show_json

    arrays = [one for one in inputs if one.lower().endswith((".npy", ".npz", ".csv"))]
    if arrays and len(inputs) > 1:
        found = f"{len(inputs)} files with {Path(arrays[0]).name}"
        raise UsageError(found, "images or texts, or one file of arrays", "run it for each")
    if arrays:
        _show_outputs(api.predict_file(cell, arrays[0], open_workspace()), output, as_json)
        return
    if output is not None:
        raise UsageError("--output without a file of arrays", "a file of arrays", "use --json")
    if api.takes_text(cell, open_workspace()):
        texts = api.texts_of(inputs)
        _show_texts(api.predict_text(cell, list(texts.values()), list(texts), top, open_workspace()), as_json)
        return
    predictions = api.classify(cell, inputs, top, open_workspace())
    for doubt in api.doubts(cell, open_workspace()):
        print(f"warning: {doubt}", file=sys.stderr)
    if as_json:
        show_json([prediction.to_json() for prediction in predictions])
        return
    for prediction in predictions:
        _show_guesses(prediction.image, prediction.top)


def _show_texts(predictions: Sequence[TextPrediction], as_json: bool) -> None:
    from tvmflow.report.console import show_json

    for one in predictions:
        if one.used < one.tokens:
            said = f"{one.name[:40]!r} has {one.tokens} tokens: the model takes {one.used}, and the rest was cut off"
            print(f"warning: {said}", file=sys.stderr)
    if as_json:
        show_json([one.to_json() for one in predictions])
        return
    for one in predictions:
        if one.top:
            _show_guesses(one.name, one.top)
        else:
            print(one.name)
            _show_tables(one.outputs)


def _show_guesses(title: str, guesses: Sequence[Guess]) -> None:
    from tvmflow.report.console import show_table

    rows = ([f"{guess.probability:.1%}", guess.name, str(guess.number)] for guess in guesses)
    show_table(title, ("probability", "class", "number"), rows)


def _show_outputs(outputs: dict[str, Any], output: Path | None, as_json: bool) -> None:
    from tvmflow.report.console import show_json, suggest

    if output is not None:
        import numpy as np

        with output.open("wb") as file:
            np.savez(file, **outputs)
        print(output)
        return
    if as_json:
        show_json({name: value.tolist() for name, value in outputs.items()})
        return
    _show_tables(outputs)
    suggest("--output FILE.npz    (all values)")


def _show_tables(outputs: Mapping[str, Any]) -> None:
    from tvmflow.report.console import show_table

    for name, value in outputs.items():
        rows = ((str(at), _beginning(sample)) for at, sample in enumerate(value[:_SHOWN]))
        show_table(f"{name} {list(value.shape)} {value.dtype}", ("sample", "values"), rows)


def _beginning(sample: Any) -> str:
    flat = sample.reshape(-1)
    return " ".join(f"{one:.6g}" for one in flat[:_SHOWN].tolist()) + (" ..." if flat.size > _SHOWN else "")
