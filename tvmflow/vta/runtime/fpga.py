"""Program the FPGA of the board that this runs on, and remember what was loaded until the board restarts.

Through the kernel's FPGA manager, or, on images of pynq before 2.4, through xdevcfg. Both need root. No board was
available: tested with files that behave like the kernel's (tests/devices/fake_fpga.py).
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tvmflow.support.errors import DeviceError
from tvmflow.support.files import write_atomic
from tvmflow.vta.runtime.bitstream import Bitstream

MANAGER, XDEVCFG = Path("sys/class/fpga_manager/fpga0"), Path("sys/class/xdevcfg/xdevcfg/device")
XDEVCFG_DEVICE = Path("dev/xdevcfg")
FIRMWARE, REMEMBERED = Path("lib/firmware"), Path("run/tvmflow-fpga.json")
NAME = "tvmflow-vta.bin"
OPERATING = "operating"
_BUSY = ("power up", "reset", "firmware request", "write init", "write", "write complete")
_SETTLE_S, _POLL_S = 10.0, 0.01


@dataclass(frozen=True)
class LoadedDesign:
    """What was loaded last: a design's name, and the sha256 of the bitstream's file."""

    design: str
    sha256: str


@dataclass(frozen=True)
class Fpga:
    """The FPGA. root: where the board's /sys, /lib, /dev and /run are."""

    root: Path = Path("/")

    def loaded(self) -> LoadedDesign | None:
        """Return what this program loaded and is still there; None if that is unknown, as after a restart."""
        try:
            found = json.loads((self.root / REMEMBERED).read_text(encoding="utf-8"))
            loaded = LoadedDesign(str(found["design"]), str(found["sha256"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return loaded if self._is_operating() else None

    def program(self, bitstream: Bitstream, design: str) -> float:
        """Load a bitstream; return the seconds that it took. Raises DeviceError."""
        started = time.monotonic()
        try:
            (self.root / REMEMBERED).unlink(missing_ok=True)  # from here on nothing is known until it is over
            if (self.root / MANAGER).is_dir():
                self._through_manager(bitstream)
            elif (self.root / XDEVCFG).is_dir():
                self._through_xdevcfg(bitstream)
            else:
                raise DeviceError(
                    f"no FPGA manager: neither /{MANAGER} nor /{XDEVCFG}",
                    "a Zynq board whose kernel can program its FPGA",
                    "load the bitstream with the tools of the board's image, and remove vta.bitstream",
                )
            remembered = LoadedDesign(design, bitstream.sha256)
            (self.root / REMEMBERED).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.root / REMEMBERED, json.dumps(asdict(remembered)))
        except OSError as error:
            raise DeviceError(
                f"the FPGA cannot be programmed: {error.strerror or error} ({error.filename or 'the driver'})",
                "a driver that takes the bitstream, and root",
                "run the server as root; 'dmesg' on the board says more",
            ) from None
        return time.monotonic() - started

    def _is_operating(self) -> bool:
        try:
            if (self.root / MANAGER).is_dir():
                return self._state() == OPERATING
            return (self.root / XDEVCFG / "prog_done").read_text(encoding="ascii").strip() == "1"
        except (OSError, ValueError):
            return False

    def _state(self) -> str:
        return (self.root / MANAGER / "state").read_text(encoding="ascii").strip()

    def _through_manager(self, bitstream: Bitstream) -> None:
        """Have the kernel read a file of /lib/firmware: its words in the processor's order."""
        folder, manager = self.root / FIRMWARE, self.root / MANAGER
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / NAME
        file.write_bytes(bitstream.swapped)
        try:
            (manager / "flags").write_text("0", encoding="ascii")  # all of the FPGA, not a part
            (manager / "firmware").write_text(NAME, encoding="ascii")
            deadline = time.monotonic() + _SETTLE_S
            while (state := self._state()) in _BUSY and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:
            file.unlink(missing_ok=True)
        self._check(state)

    def _through_xdevcfg(self, bitstream: Bitstream) -> None:
        (self.root / XDEVCFG / "is_partial_bitstream").write_text("0", encoding="ascii")
        (self.root / XDEVCFG_DEVICE).write_bytes(bitstream.swapped)
        deadline = time.monotonic() + _SETTLE_S
        while not (done := self._is_operating()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._check(OPERATING if done else "prog_done: 0")

    def _check(self, state: str) -> None:
        if state != OPERATING:
            raise DeviceError(
                f"the FPGA is not programmed: its driver says {state!a}",
                f"{OPERATING!r}",
                "a bitstream of this board's part; 'dmesg' on the board says more",
            )
