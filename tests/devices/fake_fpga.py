"""Files that behave like the kernel's FPGA manager and like xdevcfg, and bitstreams for them.

Writing `flags` and then `firmware` has the driver read /lib/firmware, as in the kernel; `state` says how it went. Pipes
stand for what reacts: while a bitstream is looked at, the state is `write`.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path

SYNC, IDCODE_WRITE = 0xAA995566, 0x30018001
IDCODES = {"7z020": 0x03727093, "zu3eg": 0x04710093}


def words(part: str = "7z020", payload: int = 7) -> bytes:
    """Return the words of a bitstream: padding, synchronization, the part's id, and a payload."""
    numbers = [0xFFFFFFFF] * 8 + [SYNC, 0x20000000, IDCODE_WRITE, IDCODES[part], *[payload] * 64]
    return struct.pack(f">{len(numbers)}I", *numbers)


def bit_file(part: str = "7z020", payload: int = 7, named: str | None = None) -> bytes:
    """Return a .bit file. named: the part in its header, where that is another."""
    fields = {"a": "vta;UserID=0XFFFFFFFF", "b": f"{named or part}clg400", "c": "2026/11/28", "d": "12:00:00"}
    head = b"\x00\x09\x0f\xf0\x0f\xf0\x0f\xf0\x0f\xf0\x00\x00\x01"
    for letter, text in fields.items():
        head += letter.encode() + struct.pack(">H", len(text) + 1) + text.encode() + b"\0"
    data = words(part, payload)
    return head + b"e" + struct.pack(">I", len(data)) + data


class FakeManager:
    """The FPGA manager of a board with a part. behaves: `well`, `refuses` everything, or `hangs` at it."""

    def __init__(self, root: Path, part: str = "7z020", behaves: str = "well") -> None:
        self.root, self.part, self.behaves = root, part, behaves
        self.folder = root / "sys" / "class" / "fpga_manager" / "fpga0"
        self.folder.mkdir(parents=True)
        self.programmed: list[bytes] = []
        self._say("unknown")
        for name in ("flags", "firmware"):
            os.mkfifo(self.folder / name)
        self._ends = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _say(self, state: str) -> None:
        (self.folder / "state.new").write_text(f"{state}\n")
        (self.folder / "state.new").replace(self.folder / "state")

    def _serve(self) -> None:
        while True:
            flags = (self.folder / "flags").read_text()
            if self._ends:
                return
            assert flags == "0", "all of the FPGA"
            self._say("write")
            name = (self.folder / "firmware").read_text()
            if self._ends:
                return
            self._load(self.root / "lib" / "firmware" / name)

    def _load(self, file: Path) -> None:
        data = file.read_bytes()
        numbers = struct.unpack(f"<{len(data) // 4}I", data)  # the kernel wants the processor's order
        known = SYNC in numbers[:16] and numbers[numbers.index(IDCODE_WRITE) + 1] == IDCODES[self.part]
        if self.behaves == "hangs":
            return
        if self.behaves == "refuses" or not known:
            self._say("write error")
            return
        self.programmed.append(data)
        self._say("operating")

    def restart(self) -> None:
        """Be a board that was switched off and on."""
        (self.root / "run" / "tvmflow-fpga.json").unlink(missing_ok=True)
        self._say("unknown")

    def stop(self) -> None:
        self._ends = True
        while self._thread.is_alive():
            for name in ("flags", "firmware"):
                try:
                    os.close(os.open(self.folder / name, os.O_WRONLY | os.O_NONBLOCK))
                except OSError:  # it waits at the other one
                    time.sleep(0.001)


def fake_xdevcfg(root: Path, done: bool) -> Path:
    """Make the files of xdevcfg; return the device, which keeps what is written. done: what it says afterwards."""
    folder = root / "sys" / "class" / "xdevcfg" / "xdevcfg" / "device"
    folder.mkdir(parents=True)
    (folder / "is_partial_bitstream").write_text("1\n")
    (folder / "prog_done").write_text(f"{int(done)}\n")
    (root / "dev").mkdir()
    return root / "dev" / "xdevcfg"
