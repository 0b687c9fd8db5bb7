"""Start a built library on a device: network.so without TVM, or library.so in TVM's virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmflow.devices.session import DeviceSession, RemoteModel
from tvmflow.frontends.source_model import OutputSpec


@dataclass(frozen=True)
class LibraryForm:
    """A library file and how it starts on a device. start(session, remote_name): starts the uploaded file."""

    file: Path
    start: Callable[[DeviceSession, str], RemoteModel]

    def upload_and_start(self, session: DeviceSession) -> RemoteModel:
        """Upload the file and start it."""
        return self.start(session, session.upload(self.file))


def vm_library(folder: Path) -> LibraryForm:
    """Return library.so of a build folder, which runs in TVM's virtual machine."""
    return LibraryForm(folder / "library.so", lambda session, name: session.model_on_device(name))


def network_library(folder: Path, outputs: Sequence[OutputSpec], design: str | None) -> LibraryForm:
    """Return network.so of a build folder, the library for apps, which needs no TVM. design: of its accelerator."""
    return LibraryForm(folder / "network.so", lambda session, name: session.network(name, folder, outputs, design))
