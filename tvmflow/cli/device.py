"""Commands about one device: make a phone ready."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from tvmflow.cli.app import app, open_workspace
from tvmflow.report.console import show_text

device = typer.Typer(help="Make a device ready.", no_args_is_help=True)
app.add_typer(device, name="device")


@device.command()
def prepare(
    serial: Annotated[str, typer.Argument(help="The phone, as tvmflow devices lists it.")],
    target: Annotated[str, typer.Option("--target", help="Of params.yaml: what the agent is compiled for.")],
    secret_file: Annotated[Path, typer.Option("--secret-file", help="Written for as long as this runs.")] = Path(
        "agent.secret"
    ),
) -> None:
    """Push the agent to a phone, start it, forward its port and keep the phone awake, until Ctrl-C; then take everything back."""
    from tvmflow import api

    with api.prepared_phone(serial, target, secret_file, open_workspace()) as ready:
        show_text(f"{ready.model} ({ready.serial}) is ready:")
        show_text(f"device: {{transport: agent, key: {target}, port: {ready.port}, secret_file: {ready.secret_file}}}")
        show_text("Ctrl-C takes everything back")
        signal.pause()
