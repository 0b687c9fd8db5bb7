"""Define the commands of bundles: bundle, verify, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tvmflow.cli.app import CellNames, Json, api, app, open_workspace
from tvmflow.report.console import show_json, show_table, suggest

KeyFile = Annotated[
    Path | None, typer.Option("--key", help="File of the private key; default: the key in TVMFLOW_SIGNING_KEY.")
]
Unsigned = Annotated[bool, typer.Option("--unsigned", help="Proceed without a signature.")]


@app.command()
def bundle(
    cells: CellNames,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The archive (default: MODEL.zip); for the others, the folder."),
    ] = None,
    abi: Annotated[list[str], typer.Option("--abi", help="Require exactly these ABIs; repeatable.")] = [],  # noqa: B006
    newest: Annotated[bool, typer.Option("--newest", help="Use the newest builds instead of the champions.")] = False,
    unmeasured: Annotated[
        bool, typer.Option("--unmeasured", help="Use builds that no device has measured; the manifest says so.")
    ] = False,
    kind: Annotated[
        Literal["zip", "wheel", "aar", "xcframework"],
        typer.Option(
            "--format",
            help="A zip archive, a Python wheel, an Android library (AAR), or a Swift package (xcframework).",
        ),
    ] = "zip",
    group: Annotated[str | None, typer.Option("--group", help="Maven group of the AAR, e.g. com.example.")] = None,
    kotlin: Annotated[
        bool, typer.Option("--kotlin", help="Also write the AAR's functions for coroutines; needs kotlinc.")
    ] = False,
    key: KeyFile = None,
    unsigned: Unsigned = False,
    as_json: Json = False,
) -> None:
    """Package the champions of cells as one signed archive: libraries, header, manifest, golden data, SBOM,
    provenance.
    """
    path, manifest = api.bundle(
        *cells,
        output=output,
        workspace=open_workspace(),
        abis=abi or None,
        newest=newest,
        unmeasured=unmeasured,
        key=key,
        unsigned=unsigned,
        kind=kind,
        group=group,
        kotlin=kotlin,
    )
    if as_json:
        show_json({"bundle": str(path), "manifest": manifest.model_dump(mode="json", by_alias=True)})
        return
    print(path)
    rows = (
        (one.cell, one.abi, one.file, one.made.version or ("newest" if one.measured else "unmeasured"))
        for one in manifest.libraries
    )
    show_table("", ("cell", "ABI", "library", "version"), rows)
    trust = "--unsigned" if unsigned else "--key FILE.pub"
    suggest(f"tvmflow verify {path} {trust}{' --unmeasured' if unmeasured else ''}")


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle; it may come from an untrusted source.")],
    key: Annotated[Path | None, typer.Option("--key", help="File of the trusted signer's public key.")] = None,
    unsigned: Unsigned = False,
    at_least: Annotated[
        int | None, typer.Option("--at-least", min=1, help="Reject an older version; with --releases, an older serial.")
    ] = None,
    releases: Annotated[
        Path | None, typer.Option("--releases", help="A releases/APP.yaml: the bundle must be the one on --channel.")
    ] = None,
    channel: Annotated[str | None, typer.Option("--channel", help="The channel for --releases.")] = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="With --releases: file of the public root key, in place of --key.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Also run the golden inputs on this target's device.")
    ] = None,
    unmeasured: Annotated[
        bool, typer.Option("--unmeasured", help="Accept builds that no device has measured.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify a bundle: its signature, all digests and all libraries; run its golden inputs on this machine or on a
    device. Requires a workspace only with --device.
    """
    workspace = open_workspace() if device is not None else None
    report = api.verify_bundle(path, key, unsigned, at_least, device, workspace, releases, channel, root, unmeasured)
    if as_json:
        show_json(report.to_json())
        return
    version = f" version {report.version}" if report.version else ""
    signed = f"signed by {report.signer[:16]}" if report.signer else "signature not checked"
    print(f"{report.name}{version}: {report.files} files unaltered, {signed}")
    if not report.libraries:  # Android's runtime
        return
    show_table(
        "",
        ("cell", "ABI", "needs", "golden inputs"),
        ((one.cell, one.abi, " ".join(one.needed), one.ran_on_device or one.ran) for one in report.libraries),
    )


keys = typer.Typer(help="Manage the keys that sign bundles.", no_args_is_help=True)
app.add_typer(keys, name="keys")


@keys.callback()
def _keys() -> None:
    pass


@keys.command("new")
def new_keys(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File for the private key; the public key is written to FILE.pub.")
    ],
    as_json: Json = False,
) -> None:
    """Generate an Ed25519 key pair. Keep FILE secret and out of git; give FILE.pub to those who verify bundles."""
    pair = api.new_keys(file)
    if as_json:
        show_json(pair.to_json())
        return
    print(
        f"{pair.private}: private, for --key of 'tvmflow bundle'\n{pair.public}: public, for --key of "
        f"'tvmflow verify'; id {pair.keyid[:16]}"
    )


@keys.command("allow")
def allow_keys(
    name: Annotated[str, typer.Argument(metavar="APP", help="A name under apps: in params.yaml.")],
    root: Annotated[Path, typer.Option("--root", help="File of the private root key, which is kept offline.")],
    key: Annotated[list[Path], typer.Option("--key", help="File of a public key that may sign; repeatable.")],
    valid_days: Annotated[int, typer.Option("--valid-days", min=1, max=3650, help="How long the list is valid.")] = 365,
) -> None:
    """Say which keys may sign an app's releases; keys that are left out are revoked."""
    print(api.allow_keys(name, root, key, valid_days, open_workspace()))
    suggest(f"tvmflow release {name} --renew --key FILE, if the key of the last release is not among them")
