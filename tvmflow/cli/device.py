"""Define the commands of one device: prepare a phone, probe, register with a tracker."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from tvmflow.cli.app import Json, app, open_workspace
from tvmflow.cli.inspect import show_gpus
from tvmflow.report.console import show_json, show_table, show_text
from tvmflow.support.errors import AgreementError, DeviceLostError, TrackerError, UsageError

_AGAIN_S = 2.0

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
    """Push the agent to a phone, start it, forward its port and keep the phone awake, until Ctrl-C; then take
    everything back.

    Where the target's device is reached through a tracker, that is told of the phone.
    """
    from tvmflow import api

    workspace = open_workspace()
    with api.prepared_phone(serial, target, secret_file, workspace) as ready:
        show_text(f"{ready.model} ({ready.serial}) is ready:")
        if ready.is_for_tracker:
            show_text("the tracker of the target hands it out; Ctrl-C takes everything back")
            api.offer_device(target, "127.0.0.1", ready.port, workspace, unit=ready.serial, build=ready.build)
        show_text(f"device: {{transport: agent, key: {target}, port: {ready.port}, secret_file: {ready.secret_file}}}")
        show_text("Ctrl-C takes everything back")
        signal.pause()


@device.command()
def probe(target: Annotated[str, typer.Argument(help="Of params.yaml.")]) -> None:
    """Ask a target's device what its processor is, and keep it for `mcpu: device`."""
    from tvmflow import api

    mcpu, attributes = api.ask_processor(target, open_workspace())
    show_text(f"mcpu: {mcpu}" + (f"\nmattr: [{', '.join(attributes)}]" if attributes else ""))


@device.command()
def gpus(
    target: Annotated[str, typer.Argument(help="Of params.yaml: its device has our agent.")], as_json: Json = False
) -> None:
    """Try the GPUs of a target's device, there."""
    from tvmflow import api

    found = api.device_gpus(target, open_workspace())
    if as_json:
        show_json([gpu.to_json() for gpu in found])
    elif found:
        show_gpus(f"GPUs of {target}", found)
    else:
        show_text(f"{target} has no GPU that OpenCL or Vulkan finds")


@device.command()
def agree(
    cell: Annotated[str, typer.Argument(help="MODEL@TARGET:PRECISION or a name under cells:, built.")],
    as_json: Json = False,
) -> None:
    """Compare each kernel of a network on its device with the same kernel on this CPU; names the first that differs."""
    from tvmflow import api

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
            f"{first.kernel} is the first kernel that the device computes otherwise: error {first.error:.2g}",
            "what this machine's CPU computes, within build.max_relative_error",
            "try another driver, or float32; 'tvmflow device gpus' says what is known of it",
        )


@device.command()
def register(
    target: Annotated[str, typer.Argument(help="Of params.yaml: its device names tracker, key and secret_file.")],
    agent: Annotated[str, typer.Option("--agent", help="HOST:PORT where the agent listens.")],
    unit: Annotated[
        str, typer.Option("--unit", help="What measurements call it, instead of what it says itself.")
    ] = "",
) -> None:
    """Tell a tracker of a device with our agent, until Ctrl-C. A device that goes away is forgotten until it is
    back.
    """
    from tvmflow import api

    workspace, (host, port) = open_workspace(), _host_and_port(agent)
    while True:
        show_text(f"{agent} is offered by the tracker of {target}; Ctrl-C ends that")
        try:
            api.offer_device(target, host, port, workspace, unit=unit)
        except (DeviceLostError, TrackerError) as error:
            show_text(f"{error.found}; tried again")
            time.sleep(_AGAIN_S)


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--agent {text!r}", "HOST:PORT, as 127.0.0.1:9300")
    return host, int(port)
