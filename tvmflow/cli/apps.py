"""Define the commands of app releases: release, releases."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tvmflow.cli.app import Json, api, app, open_workspace
from tvmflow.cli.bundle import KeyFile, Unsigned
from tvmflow.report.console import show_json, show_table, suggest
from tvmflow.support.errors import GateRefusedError

AppName = Annotated[str, typer.Argument(metavar="APP", help="A name under apps: in params.yaml.")]


@app.command()
def release(
    name: AppName,
    channel: Annotated[
        str | None,
        typer.Option("--channel", help="Promote the current version of the app's own channel to this channel."),
    ] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Restore the channel's previous version.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the gates without releasing.")] = False,
    renew: Annotated[
        bool, typer.Option("--renew", help="Only sign releases/APP.yaml again: with a new key, or before it expires.")
    ] = False,
    key: KeyFile = None,
    unsigned: Unsigned = False,
    as_json: Json = False,
) -> None:
    """Release the champions of an app's cells as one bundle if its gates pass; promote or roll back a release."""

    def tell(step: str) -> None:
        print(f"{name}: {step}", file=sys.stderr)

    outcome = api.release_app(name, open_workspace(), channel, rollback, key, unsigned, dry_run, renew, tell)
    if as_json:
        show_json(outcome.to_json())
    elif outcome.passed:
        print(outcome.text)
        if outcome.bundle is not None:
            print(outcome.bundle)
    if not outcome.passed:
        raise GateRefusedError(
            f"{name} is not released:\n  " + "\n  ".join(outcome.reasons),
            "all gates of the app to pass",
            f"the gates are under apps.{name}.gates in params.yaml",
        )
    if dry_run:
        suggest(f"tvmflow release {name}")
        return
    suggest(f"tvmflow releases {name}; commit releases/{name}.yaml and the files next to it to git")


@app.command()
def publish(
    name: AppName,
    to: Annotated[
        str,
        typer.Argument(metavar="TO", help="A folder, oci://HOST/NAME, s3://BUCKET/PATH or remote://DVC_REMOTE/PATH."),
    ],
    channel: Annotated[
        str | None, typer.Option("--channel", help="The channel whose version is published (default: the app's own).")
    ] = None,
    key: KeyFile = None,
    unsigned: Unsigned = False,
) -> None:
    """Publish a release: its bundle, the app's packages (wheels, AARs in a Maven repository), releases/APP.yaml."""
    print(api.publish_app(name, to, open_workspace(), channel, key, unsigned))
    suggest(f"tvmflow verify {name}-N.zip --releases {name}.yaml --channel {channel or 'CHANNEL'} --key FILE.pub")


@app.command()
def releases(name: AppName, as_json: Json = False) -> None:
    """List the releases of an app, oldest first, and the current version of each channel."""
    history = api.app_releases(name, open_workspace())
    if as_json:
        show_json({**history.model_dump(mode="json"), "channels": history.channels})
        return
    columns = ("when", "what", "channel", "version", "replaces", "libraries", "sha256")
    rows = []
    for one in history.changes:
        version = history.numbered(one.version)
        libraries = " ".join(f"{cell.cell}#{cell.version}" for cell in version.cells)
        rows.append(
            (
                one.when,
                one.what,
                one.channel,
                str(one.version),
                str(one.replaces or "-"),
                libraries,
                version.bundle.sha256[:12],
            )
        )
    show_table(f"releases of {name}", columns, rows, ("what", "libraries"))
    for channel, number in history.channels.items():
        print(f"{channel}: version {number}")
    suggest(f"tvmflow release {name}")
