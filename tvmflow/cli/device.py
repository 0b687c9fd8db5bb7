"""Define the commands of one device: prepare a phone, check, register with a tracker."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from tvmflow.cli.app import Json, api, app, open_workspace
from tvmflow.report.console import show_json, show_table, show_text
from tvmflow.support.errors import AgreementError, DeviceLostError, TrackerError, UsageError

_AGAIN_S = 2.0

device = typer.Typer(help="Prepare, inspect and register devices.", no_args_is_help=True)
app.add_typer(device, name="device")


@device.command()
def prepare(
    serial: Annotated[str, typer.Argument(help="Serial number of the phone, as listed by 'tvmflow devices'.")],
    target: Annotated[
        str, typer.Option("--target", help="A name under targets: in params.yaml; the agent is compiled for it.")
    ],
    secret_file: Annotated[
        Path, typer.Option("--secret-file", help="File for the agent's secret; deleted at the end.")
    ] = Path("agent.secret"),
) -> None:
    """Install and start the agent on a phone, forward its port and keep the phone awake until Ctrl-C; then undo all
    changes.

    If the target's device is reached through a tracker, the phone is registered with it.
    """
    workspace = open_workspace()
    with api.prepared_phone(serial, target, secret_file, workspace) as ready:
        show_text(f"{ready.model} ({ready.serial}) is ready:")
        if ready.is_for_tracker:
            show_text("registered with the target's tracker; Ctrl-C stops the agent and undoes all changes")
            api.offer_device(target, "127.0.0.1", ready.port, workspace, unit=ready.serial, build=ready.build)
        show_text(f"device: {{transport: agent, key: {target}, port: {ready.port}, secret_file: {ready.secret_file}}}")
        show_text("Ctrl-C stops the agent and undoes all changes")
        signal.pause()


@device.command()
def check(
    target: Annotated[str, typer.Argument(help="A name under targets: in params.yaml.")], as_json: Json = False
) -> None:
    """Run one small kernel on each processor of a target's device: what it is, right or wrong, and why.

    Stores the processor for `mcpu: device`.
    """
    found = api.check_device(target, open_workspace())
    if as_json:
        show_json(found.to_json())
    else:
        show_text(f"device: {found.unit}" + (f", {found.build}" if found.build else ""))
        if found.core:
            show_text(f"mcpu: {found.core}" + (f", mattr: [{', '.join(found.attributes)}]" if found.attributes else ""))
        rows = (
            [
                one.kind,
                one.name,
                "yes" if one.works else "no",
                one.reason,
                "" if one.seconds is None else f"{one.seconds:.1f}",
            ]
            for one in found.processors
        )
        show_table(f"processors of {target}", ("processor", "name", "usable", "reason", "seconds"), rows)
    if found.failure is not None:
        raise found.failure


@device.command()
def agree(
    cell: Annotated[str, typer.Argument(help="A built cell: MODEL@TARGET:PRECISION, or a name under cells:.")],
    as_json: Json = False,
) -> None:
    """Compare each kernel of a network on its device with the same kernel on this CPU; report the first difference."""
    found = api.device_agreement(cell, open_workspace())
    if as_json:
        show_json([kernel.to_json() for kernel in found])
    else:
        rows = (
            [k.kernel, f"{k.error:.2g}", "yes" if k.agrees else "no", "" if k.varies else "constant"] for k in found
        )
        show_table(f"kernels of {cell}", ("kernel", "largest error", "agrees", "outputs"), rows)
    if first := next((kernel for kernel in found if not kernel.agrees), None):
        raise AgreementError(
            f"{first.kernel} is the first kernel whose result differs on the device: error {first.error:.2g}",
            "the result of this machine's CPU, within build.max_relative_error",
            "try another driver, or float32; 'tvmflow device check TARGET' shows the driver and its self-tests",
        )


@device.command()
def register(
    target: Annotated[
        str, typer.Argument(help="A name under targets: whose device has a tracker, a key and a secret_file.")
    ],
    agent: Annotated[str, typer.Option("--agent", help="HOST:PORT on which the agent listens.")],
    unit: Annotated[
        str, typer.Option("--unit", help="Name of the device in measurements; default: the name that it reports.")
    ] = "",
) -> None:
    """Register a device that runs tvmflow's agent with a tracker until Ctrl-C. A device that disconnects is removed
    until it reconnects.
    """
    workspace, (host, port) = open_workspace(), _host_and_port(agent)
    while True:
        show_text(f"{agent} is registered with the tracker of {target}; press Ctrl-C to stop")
        try:
            api.offer_device(target, host, port, workspace, unit=unit)
        except (DeviceLostError, TrackerError) as error:
            show_text(f"{error.found}; retrying")
            time.sleep(_AGAIN_S)


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--agent {text!r}", "HOST:PORT, e.g. 127.0.0.1:9300")
    return host, int(port)
