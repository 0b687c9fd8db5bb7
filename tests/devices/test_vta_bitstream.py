"""Test how the FPGA of a VTA board is programmed, against files that behave like the kernel's."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY, free_port
from tests.devices.fake_fpga import FakeManager, bit_file, fake_xdevcfg, words
from tests.devices.vta import SHAPE, expected, library_calling, network, vta_backend
from tests.differential.vta_cases import image
from tvmflow.backends.vta import VtaBackend
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.registry import open_session, transport_of
from tvmflow.devices.session import SessionLimits
from tvmflow.devices.waiting import WAITS_HERE
from tvmflow.support.errors import DeviceError, DeviceLostError, ParamsError, TrackerError, TvmflowError, UsageError
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.region import pack
from tvmflow.vta.runtime import fpga as fpga_module
from tvmflow.vta.runtime.bitstream import parse_bitstream, read_bitstream
from tvmflow.vta.runtime.configure import Board, configure_device
from tvmflow.vta.runtime.device import SimulatorDriver
from tvmflow.vta.runtime.fpga import Fpga
from tvmflow.vta.runtime.runtime import Runtime

PYNQ, WIDE = VtaConfig(target="pynq"), VtaConfig(target="pynq", log_block=5)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeManager]:
    made = FakeManager(tmp_path)
    yield made
    made.stop()


class Server:
    """A server's runtime, called as a session calls it: by name, with text. uploads: files that were sent."""

    def __init__(self, root: Path | None, target: str = "pynq", only: VtaConfig | None = None) -> None:
        self.runtime = Runtime(None, SimulatorDriver(), Board(target, Fpga(root) if root else None, only))
        self.uploads: list[Path] = []

    def ask(self, design: VtaConfig, bitstream: Path | None = None) -> dict[str, Any]:
        return configure_device(design, str(bitstream) if bitstream else None, self._call, self._upload)

    def _call(self, name: str, *arguments: Any) -> Any:
        assert name == "tvmflow.vta.configure"
        return self.runtime.configure(*arguments)

    def _upload(self, file: Path) -> str:
        self.uploads.append(file)
        return str(file)


def file_of(folder: Path, data: bytes, name: str = "vta.bit") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_a_bitstream_is_loaded_once_and_remembered(manager: FakeManager, tmp_path: Path) -> None:
    server, file = Server(tmp_path), file_of(tmp_path, bit_file())
    done = server.ask(PYNQ, file)
    assert done["programmed_s"] > 0 and server.runtime.config == PYNQ
    assert manager.programmed == [struct.pack("<76I", *struct.unpack(">76I", words()))]
    assert not list((tmp_path / "lib" / "firmware").iterdir()), "the copy for the kernel is removed"
    again = Server(tmp_path)  # another session
    assert again.ask(PYNQ, file)["programmed_s"] is None and again.uploads == [] and len(manager.programmed) == 1
    assert again.ask(PYNQ)["loaded"] == done["loaded"]
    other = file_of(tmp_path, bit_file(payload=8), "other.bit")
    assert again.ask(WIDE, other)["programmed_s"] > 0 and len(manager.programmed) == 2
    assert again.runtime.config == WIDE
    manager.restart()
    assert again.ask(WIDE)["loaded"] == "" and again.ask(WIDE, other)["programmed_s"] > 0


def test_what_is_loaded_is_checked_against_the_design(manager: FakeManager, tmp_path: Path) -> None:
    server, file = Server(tmp_path), file_of(tmp_path, bit_file())
    assert server.ask(PYNQ)["loaded"] == "", "what was loaded by others is unknown"
    server.ask(PYNQ, file)
    for bitstream in (None, file):
        with pytest.raises(DeviceError, match=f"holds the design {PYNQ.name}") as error:
            server.ask(WIDE, bitstream)
        assert WIDE.name in error.value.expected and server.runtime.config == PYNQ
    manager._say("power off")
    assert server.ask(WIDE)["loaded"] == "", "nothing is there any more"


@pytest.mark.parametrize(
    ("behaves", "text"), [("refuses", "its driver says 'write error'"), ("hangs", "its driver says 'write'")]
)
def test_a_driver_that_says_no_is_believed(
    behaves: str, text: str, manager: FakeManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fpga_module, "_SETTLE_S", 0.2)
    server, file = Server(tmp_path), file_of(tmp_path, bit_file())
    server.ask(PYNQ, file)
    manager.behaves = behaves
    with pytest.raises(DeviceError, match=text):
        server.ask(WIDE, file_of(tmp_path, bit_file(payload=9), "wide.bit"))
    assert Fpga(tmp_path).loaded() is None and server.runtime.config == PYNQ


def test_a_bitstream_of_another_part_goes_nowhere(manager: FakeManager, tmp_path: Path) -> None:
    server = Server(tmp_path)
    with pytest.raises(ParamsError, match="for the part zu3egclg400"):
        server.ask(PYNQ, file_of(tmp_path, bit_file("zu3eg")))
    with pytest.raises(DeviceError, match="'write error'"):  # the header lies, and the kernel sees it
        server.ask(PYNQ, file_of(tmp_path, bit_file("zu3eg", named="7z020")))
    with pytest.raises(DeviceError, match="'write error'"):  # no header
        server.ask(PYNQ, file_of(tmp_path, words("zu3eg"), "vta.bin"))
    assert manager.programmed == []
    assert read_bitstream(file_of(tmp_path, bit_file("zu3eg")), "ultra96").part == "zu3egclg400"


def test_without_a_manager_and_without_rights_it_is_told(tmp_path: Path) -> None:
    file = file_of(tmp_path, bit_file())
    with pytest.raises(DeviceError, match="no FPGA manager"):
        Server(tmp_path).ask(PYNQ, file)
    folder = tmp_path / "sys" / "class" / "fpga_manager" / "fpga0"
    folder.mkdir(parents=True)
    (folder / "state").write_text("operating\n")
    (folder / "flags").symlink_to("/dev/full")
    with pytest.raises(DeviceError, match="cannot be programmed: No space left"):
        Server(tmp_path).ask(PYNQ, file)
    assert Fpga(tmp_path).loaded() is None, "operating, but with what?"
    with pytest.raises(DeviceError, match="a server without an FPGA"):
        Server(None, "sim").ask(PYNQ, file)


def test_older_images_program_through_xdevcfg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, file = fake_xdevcfg(tmp_path, done=True), file_of(tmp_path, bit_file())
    server = Server(tmp_path)
    assert server.ask(PYNQ, file)["programmed_s"] > 0 and server.ask(PYNQ, file)["programmed_s"] is None
    assert device.read_bytes() == parse_bitstream(file.read_bytes(), "vta.bit").swapped
    folder = tmp_path / "sys" / "class" / "xdevcfg" / "xdevcfg" / "device"
    assert (folder / "is_partial_bitstream").read_text() == "0"
    (folder / "prog_done").write_text("0\n")
    monkeypatch.setattr(fpga_module, "_SETTLE_S", 0.05)
    with pytest.raises(DeviceError, match="prog_done: 0"):
        server.ask(PYNQ, file)


def test_a_server_takes_its_own_designs_only(tmp_path: Path) -> None:
    for server, text in ((Server(None, "zcu104"), "one for zcu104"), (Server(None, "pynq", WIDE), "all that this")):
        with pytest.raises(DeviceError) as error:
            server.ask(PYNQ)
        assert text in error.value.expected
    assert Server(None, "sim").ask(WIDE) == Server(None, "sim", WIDE).ask(WIDE)
    assert "error" in json.loads(Server(None).runtime.configure("[]", "", ""))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "without a synchronization word"),
        (b"\x7fELF" + bytes(400), "without a synchronization word"),
        (words()[:-1], "or of no whole words"),
        (bit_file()[:-4], "304 bytes announced, 300 there"),
        (bit_file()[:30], "ends within its fields|a field"),
        (bit_file().replace(b"b\0\x0c", b"x\0\x0c"), "a field b'x'"),
    ],
    ids=["nothing", "a program", "torn", "a torn .bit", "a header", "another field"],
)
def test_what_is_no_bitstream_is_refused_here(data: bytes, text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=text):
        Server(tmp_path).ask(PYNQ, file_of(tmp_path, data))
    with pytest.raises(TvmflowError, match="cannot be read"):
        Server(tmp_path).ask(PYNQ, tmp_path / "nowhere.bit")


def test_both_orders_of_a_plain_file_are_one_bitstream() -> None:
    plain = parse_bitstream(words(), "a.bin")
    assert parse_bitstream(plain.swapped, "b.bin").words == plain.words == parse_bitstream(bit_file(), "c.bit").words


@contextmanager
def served(root: Path, key: str) -> Iterator[DeviceEntry]:
    """A server without a tracker, whose board is simulated and has an FPGA below `root`."""
    port = free_port()
    options = ["--key", key, "--port", str(port), "--threads", "2", "--system-root", str(root)]
    command = [sys.executable, "-m", "tvmflow.devices.rpc.vta_server", *options]
    server = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        yield DeviceEntry(transport="direct", key=key, options={"host": "127.0.0.1", "port": port})
    finally:
        server.terminate()
        assert server.wait(10) == 0


def test_a_session_with_a_board_programs_it_and_runs(
    manager: FakeManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(WAITS_HERE, "say", said.append)
    file, program, x = file_of(tmp_path, bit_file()), network(WIDE), image(SHAPE, 4)
    library = library_calling(program, tmp_path / "library.so")
    plain, limits = vta_backend(WIDE), SessionLimits(60.0, 20.0)
    options = plain.target.options | {"bitstream": str(file)}
    backend = VtaBackend(replace(plain.target, options=options))
    with served(tmp_path, "board") as device:
        assert transport_of(device).state(device).is_there
        for programmed in (True, False):
            with open_session(device, backend, limits) as session:
                assert session.configured is not None
                assert (session.configured["programmed_s"] is not None) == programmed
                output = session.model(library).run(pack(WIDE, x))[0]
                assert np.array_equal(output, expected(program, x))
        assert len(said) == 1 and said[0].startswith(f"programmed the FPGA of board ({session.unit}) in ")
        with (
            pytest.raises(DeviceError, match=f"holds the design {WIDE.name}"),
            open_session(device, vta_backend(PYNQ), limits),
        ):
            pass
        other = device.model_copy(update={"key": "another"})
        with pytest.raises(TrackerError, match="refuses a session"), open_session(other, backend, limits):
            pass
    state = transport_of(device).state(device)
    assert not state.is_there and "nothing listens" in state.text and "--key board" in state.hint
    with pytest.raises(DeviceError, match="nothing listens"), open_session(device, backend, limits):
        pass


def test_a_server_without_vta_is_no_board(tmp_path: Path) -> None:
    from tests.devices.local_tracker import local_tracker

    with local_tracker("plain", 2) as address:
        device = DeviceEntry(transport="tracker", key="plain", options={"host": "127.0.0.1", "port": address.port})
        with (
            pytest.raises(DeviceLostError, match=r"calling tvmflow\.vta\.configure"),
            open_session(device, vta_backend(PYNQ), SessionLimits(60.0, 20.0)),
        ):
            pass
