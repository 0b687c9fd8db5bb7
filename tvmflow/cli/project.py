"""Define the commands new (create a workspace) and add (add a model)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmflow.cli.app import Json, api, app, chosen_root, open_workspace
from tvmflow.cli.completion import complete_precision, complete_target
from tvmflow.report.console import show_json, show_table, suggest
from tvmflow.support.errors import UsageError

if TYPE_CHECKING:
    from tvmflow.api import TargetState


@app.command()
def new(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The workspace's folder; created if it does not exist.")
    ],
    target: Annotated[
        list[str],
        typer.Option("--target", metavar="NAME", help="A target to write there, see 'tvmflow targets'; repeatable."),
    ] = [],  # noqa: B006
) -> None:
    """Create a workspace: params.yaml, dvc.yaml, a git repository and the DVC store. Overwrites nothing."""
    print(api.new_workspace(folder, target).root)
    suggest(f"cd {folder} && tvmflow add MODEL_FILE{f' --target {target[0]}' if target else ''}")


@app.command()
def targets(as_json: Json = False) -> None:
    """List the targets of params.yaml and those that 'new --target' and 'add --target' write, with what each needs."""
    found = api.targets(chosen_root())
    if as_json:
        show_json([one.to_json() for one in found])
        return
    rows = (
        (one.name, "yes" if one.is_written else "", one.note, _needs(one.can_build, one.compiler), _state(one))
        for one in found
    )
    show_table("targets", ("name", "in params.yaml", "for", "compiler", "device"), rows, ("for", "compiler", "device"))
    suggest("tvmflow targets --json    (hints)   or   tvmflow add MODEL_FILE --target NAME")


def _needs(is_there: bool, text: str) -> str:
    return text if is_there else f"missing: {text}"


def _state(one: TargetState) -> str:
    return _needs(one.can_measure or not one.can_build, one.device)


Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help="Precision of the cell: float32, float16, bfloat16, int8, ...",
        autocompletion=complete_precision,
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="[NAME=]SIZES",
        help="Shape, if the file leaves it open: 1,3,224,224; of input NAME, or of all such. Repeatable.",
    ),
]
BucketSizes = Annotated[
    list[str] | None,
    typer.Option(
        "--buckets",
        metavar="[SIZE=]NUMBERS",
        help="Keep open sizes open: a run takes any up to the last of 32,64,128. Of the size of that name in the "
        "file, or of all but the batch. Repeatable.",
    ),
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(
        "--high",
        metavar="[NAME=]BOUND",
        help="Exclusive upper bound of integers, such as the vocabulary size: of input NAME, or of all others. "
        "May be given several times.",
    ),
]
Factory = Annotated[
    str | None,
    typer.Option("--network", help="Of a file of weights: the function that builds its network, FILE.py:FUNCTION."),
]


@app.command()
def add(
    model_file: Annotated[
        Path, typer.Argument(metavar="MODEL_FILE", help="A model file: .onnx, .pt2, .keras, .h5, .tflite, ...")
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name of the model; default: the file's name.")] = None,
    target: Annotated[
        str, typer.Option("--target", help="A name that 'tvmflow targets' lists.", autocompletion=complete_target)
    ] = "local-cpu",
    precision: Precision = "float32",
    shape: Shapes = None,
    buckets: BucketSizes = None,
    high: Bounds = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="Its data: an .npz file, or a folder with one of images for each class."),
    ] = None,
    labels: Annotated[str | None, typer.Option("--labels", help="Its class names: a file, or imagenet.")] = None,
    preprocess: Annotated[
        str | None,
        typer.Option("--preprocess", help="Of images: torchvision, mxnet, keras/tf, keras/torch, keras/caffe."),
    ] = None,
    network: Factory = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Of a model of texts: its tokenizer.json, for 'tvmflow predict'.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a model to params.yaml. Framework, inputs, shapes and dtypes are read from its file."""
    added = api.add_model(
        model_file,
        open_workspace(),
        name,
        target,
        precision,
        _numbers("--shape", shape or [], "sizes, batch first, e.g. 1,3,224,224"),
        _bounds(high or []),
        dataset,
        labels,
        preprocess,
        _numbers("--buckets", buckets or [], "numbers from 1, ascending, e.g. 32,64,128"),
        network,
        tokenizer,
    )
    if as_json:
        show_json({"model": added.name, "entry": added.entry, "cell": str(added.cell), "name": added.cell_name})
    else:
        print(f"models.{added.name}: {added.entry}\ncells.{added.cell_name}: {added.cell}")
    if Path(added.entry["weights"]["file"]).is_absolute():
        suggest(
            f"to share the workspace, copy {model_file.name} into it: params.yaml has the absolute path of the file"
        )
    for doubt in api.doubts(str(added.cell), open_workspace()):
        suggest(f"--preprocess torchvision, or preprocess: in params.yaml: {doubt}")
    suggest(f"tvmflow run {added.cell_name}")


def _bounds(texts: Sequence[str]) -> dict[str, int]:
    """Return the bounds of integers by input; of all others under no name."""
    bounds: dict[str, int] = {}
    for text in texts:
        name, _, bound = text.rpartition("=")
        if not re.fullmatch("[1-9][0-9]{0,18}", bound) or name in bounds:
            raise UsageError(f"--high {text}", "NAME=BOUND or BOUND, a number from 1, once for each input")
        bounds[name] = int(bound)
    return bounds


def _numbers(option: str, texts: Sequence[str], expected: str) -> dict[str, tuple[int, ...]]:
    """Return lists of numbers by name; under no name those for all others."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, numbers = text.rpartition("=")
        if not re.fullmatch(r"[0-9]{1,9}([,x][0-9]{1,9}){0,15}", numbers) or name in found:
            raise UsageError(f"{option} {text}", f"NAME=NUMBERS or NUMBERS, once for each name: {expected}")
        found[name] = tuple(int(number) for number in re.split("[,x]", numbers))
    return found
