"""What ships, on a device: the library without TVM, run through TVM's RPC server; and how each form of a network is
started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.devices.session import DeviceSession, RemoteModel


@dataclass(frozen=True)
class LibraryForm:
    """A file that computes the network on a device. start(session, remote_name): of the file, uploaded under that
    name.
    """

    file: Path
    start: Callable[[DeviceSession, str], RemoteModel]

    def started(self, session: DeviceSession) -> RemoteModel:
        """Upload the file and start it."""
        return self.start(session, session.upload(self.file))


def in_machine(folder: Path) -> LibraryForm:
    """Return the form in TVM's virtual machine of what `build` left in a folder."""
    return LibraryForm(folder / "library.so", lambda session, name: session.model_on_device(name))


def shipped(folder: Path, manifest: dict[str, Any]) -> LibraryForm:
    """Return the form that apps get, without TVM; the virtual machine's of a build from before there was one."""
    network = manifest.get("network")
    if not network:
        return in_machine(folder)
    outputs, design = manifest["outputs"], network.get("device")
    return LibraryForm(folder / "network.so", lambda session, name: session.network(name, folder, outputs, design))
