"""Define the commands of bundles: bundle, verify, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tvmflow.cli.app import CellNames, Json, app, open_workspace
from tvmflow.report.console import show_json, show_table, suggest

KeyFile = Annotated[Path | None, typer.Option("--key", help="The private key; default: TVMFLOW_SIGNING_KEY.")]
Unsigned = Annotated[bool, typer.Option("--unsigned", help="Do without a signature.")]


@app.command()
def bundle(
    cells: CellNames,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The archive, of a wheel or AAR its folder; default: MODEL.zip."),
    ] = None,
    abi: Annotated[list[str], typer.Option("--abi", help="An ABI that the bundle must have, and no other.")] = [],  # noqa: B006
    newest: Annotated[bool, typer.Option("--newest", help="What was built last instead of the champions.")] = False,
    kind: Annotated[
        Literal["zip", "wheel", "aar"], typer.Option("--format", help="zip, a Python wheel, or an Android library.")
    ] = "zip",
    group: Annotated[str | None, typer.Option("--group", help="The Maven group of an AAR, as com.example.")] = None,
    key: KeyFile = None,
    unsigned: Unsigned = False,
    as_json: Json = False,
) -> None:
    """Write the champions of cells as one signed archive: libraries, header, manifest, golden data, SBOM,
    provenance.
    """
    from tvmflow import api

    path, manifest = api.bundle(
        *cells,
        output=output,
        workspace=open_workspace(),
        abis=abi or None,
        newest=newest,
        key=key,
        unsigned=unsigned,
        kind=kind,
        group=group,
    )
    if as_json:
        show_json({"bundle": str(path), "manifest": manifest.model_dump(mode="json", by_alias=True)})
        return
    print(path)
    rows = ((one.cell, one.abi, one.file, one.made.version or "newest") for one in manifest.libraries)
    show_table("", ("cell", "ABI", "library", "version"), rows)
    suggest(f"tvmflow verify {path} --{'unsigned' if unsigned else 'key FILE.pub'}")


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle, from anybody.")],
    key: Annotated[Path | None, typer.Option("--key", help="The public key of those who sign your bundles.")] = None,
    unsigned: Unsigned = False,
    at_least: Annotated[int | None, typer.Option("--at-least", min=1, help="Refuse an older version.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="A target of this workspace to run the golden inputs on too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a bundle: signature, every digest, every library; run its golden inputs here, or on a device. Needs no
    workspace without --device.
    """
    from tvmflow import api

    workspace = open_workspace() if device is not None else None
    report = api.verify_bundle(path, key, unsigned, at_least, device, workspace)
    if as_json:
        show_json(report.to_json())
        return
    version = f" version {report.version}" if report.version else ""
    signed = f"signed by {report.signer[:16]}" if report.signer else "signature not looked at"
    print(f"{report.name}{version}: {report.files} files as they were written, {signed}")
    show_table(
        "",
        ("cell", "ABI", "needs", "golden inputs"),
        ((one.cell, one.abi, " ".join(one.needed), one.ran_on_device or one.ran) for one in report.libraries),
    )


keys = typer.Typer(help="Make keys that sign bundles.", no_args_is_help=True)
app.add_typer(keys, name="keys")


@keys.callback()
def _keys() -> None:
    pass


@keys.command("new")
def new_keys(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; FILE.pub gets the public one.")],
    as_json: Json = False,
) -> None:
    """Make a pair of Ed25519 keys. Keep FILE secret and out of git; give FILE.pub to who verifies."""
    from tvmflow import api

    pair = api.new_keys(file)
    if as_json:
        show_json(pair.to_json())
        return
    print(
        f"{pair.private}: private, for --key of 'tvmflow bundle'\n{pair.public}: public, for --key of "
        f"'tvmflow verify'; id {pair.keyid[:16]}"
    )
