"""Configure a VTA server for the design of a session, and its FPGA: the device's side, and the host's.

The host first says the design and the sha256 of its bitstream. Only where that bitstream is not loaded already does it
upload the file and ask again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.support.errors import DeviceError, UsageError
from tvmflow.vta.isa.config import CONFIGURE_FUNCTION, VtaConfig
from tvmflow.vta.runtime.bitstream import read_bitstream
from tvmflow.vta.runtime.fpga import Fpga

SIMULATED = "sim"


@dataclass(frozen=True)
class Board:
    """What a server serves. target: of the designs that it takes, SIMULATED for all; fpga: None without one; only: the
    one design that it takes, None for any.
    """

    target: str = SIMULATED
    fpga: Fpga | None = None
    only: VtaConfig | None = None


def configure(board: Board, design: VtaConfig, sha256: str, path: str) -> dict[str, Any]:
    """Load the bitstream of a design unless it is there. Return what was done. Raises UsageError, DeviceError."""
    if board.only not in (None, design):
        raise UsageError(f"a session for {design.name}", f"{board.only.name}, all that this server takes")
    if board.target not in (SIMULATED, design.target):
        raise UsageError(
            f"a design for {design.target}", f"one for {board.target}, this board", "correct config.target"
        )
    done: dict[str, Any] = {"design": design.name, "needs_bitstream": False, "programmed_s": None, "loaded": ""}
    if board.fpga is None:
        if sha256:
            raise UsageError("a bitstream, and a server without an FPGA", "a board", "remove vta.bitstream")
        return done
    loaded = board.fpga.loaded()
    if loaded is not None and loaded.design != design.name and sha256 in ("", loaded.sha256):
        raise DeviceError(
            f"the FPGA holds the design {loaded.design}, loaded from the bitstream {loaded.sha256[:12]}",
            f"{design.name}, of this target",
            "name the bitstream of this design with vta.bitstream, or correct vta.config",
        )
    if sha256 and (loaded is None or loaded.sha256 != sha256):
        if not path:
            return {**done, "needs_bitstream": True}
        bitstream = read_bitstream(Path(path), design.target)
        if bitstream.sha256 != sha256:
            raise DeviceError(f"a bitstream of sha256 {bitstream.sha256[:12]} came", f"{sha256[:12]}", "try again")
        done["programmed_s"] = board.fpga.program(bitstream, design.name)
        loaded = board.fpga.loaded()
        if loaded is None:
            raise DeviceError("the FPGA is not operating after it was programmed", "a running design")
    return {**done, "loaded": loaded.sha256 if loaded else ""}


def configure_device(
    design: VtaConfig, bitstream: str | None, call: Callable[..., Any], upload: Callable[[Path], str]
) -> dict[str, Any]:
    """Have a device configure itself for a design. bitstream: file here, None for what is loaded there; upload: returns
    the path there. Returns what was done. Raises UsageError, and DeviceError with what the device says.
    """
    text, sha256 = json.dumps(design.to_json()), ""
    if bitstream is not None:
        sha256 = read_bitstream(Path(bitstream), design.target).sha256
    done = _asked(call(CONFIGURE_FUNCTION, text, sha256, ""))
    if done["needs_bitstream"]:
        assert bitstream is not None
        done = _asked(call(CONFIGURE_FUNCTION, text, sha256, upload(Path(bitstream))))
    if sha256 and done["loaded"] != sha256:
        raise DeviceError(f"the FPGA holds the bitstream {done['loaded'][:12] or '(none)'}", sha256[:12])
    return done


def _asked(reply: Any) -> dict[str, Any]:
    done: dict[str, Any] = json.loads(str(reply))
    if "error" in done:
        raise DeviceError(*(str(one) for one in done["error"]))
    return done
