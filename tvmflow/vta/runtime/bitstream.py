"""Read bitstreams of Xilinx FPGAs: .bit files, which say for which part they are, and .bin files, which do not.

A .bit file is a list of fields, each with a letter and a length: a design's name, b part, c date, d time, e the words.
The words begin, after padding, with a synchronization word: big-endian in .bit files, in either order in .bin files.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvmflow.support.errors import ParamsError, UsageError

MAX_BYTES = 64 << 20
_MAGIC = b"\x00\x09\x0f\xf0\x0f\xf0\x0f\xf0\x0f\xf0\x00\x00\x01"
_SYNC, _SWAPPED_SYNC = b"\xaa\x99\x55\x66", b"\x66\x55\x99\xaa"
_SYNC_WITHIN = 4096  # bytes of padding, at most
PARTS = {"pynq": "7z020", "ultra96": "zu3eg", "zcu104": "zu7ev"}
"""What the name of the part contains, for each board."""


@dataclass(frozen=True)
class Bitstream:
    """words: big-endian; part: as the file names it, "" if it does not; sha256: of the file."""

    words: bytes
    part: str
    sha256: str

    @property
    def swapped(self) -> bytes:
        """Return the words in the processor's order, as the kernel's FPGA manager takes them."""
        return np.frombuffer(self.words, ">u4").astype("<u4").tobytes()


def read_bitstream(path: Path, board: str) -> Bitstream:
    """Read a file for a board. Raises UsageError, and ParamsError for one of another part."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} holds {path.stat().st_size} bytes", f"a bitstream of at most {MAX_BYTES}")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the bitstream {path} cannot be read: {error.strerror}", "a .bit or .bin file", "correct vta.bitstream"
        ) from None
    found = parse_bitstream(data, path.name)
    wanted = PARTS.get(board, "")
    if found.part and wanted not in found.part:
        raise ParamsError(
            f"{path.name} is for the part {found.part}",
            f"one for {wanted}, of {board}",
            "build the bitstream for this board, or correct config.target of the VTA",
        )
    return found


def parse_bitstream(data: bytes, name: str) -> Bitstream:
    """Return the content of a file. Raises UsageError for anything else than a whole bitstream."""
    words, part = _fields(data, name) if data.startswith(_MAGIC) else (data, "")
    start = words[:_SYNC_WITHIN]
    if _SYNC not in start and _SWAPPED_SYNC in start and len(words) % 4 == 0:
        words = np.frombuffer(words, "<u4").astype(">u4").tobytes()
    elif _SYNC not in start or len(words) % 4:
        raise _no_bitstream(name, f"{len(words)} bytes without a synchronization word, or of no whole words")
    return Bitstream(words, part, hashlib.sha256(data).hexdigest())


def _fields(data: bytes, name: str) -> tuple[bytes, str]:
    """Return the words of a .bit file, and its part."""
    at, part = len(_MAGIC), ""
    try:
        while True:
            letter = data[at : at + 1]
            if letter == b"e":
                (size,) = struct.unpack_from(">I", data, at + 1)
                words = data[at + 5 : at + 5 + size]
                if len(words) != size:
                    raise _no_bitstream(name, f"{size} bytes announced, {len(words)} there")
                return words, part
            (size,) = struct.unpack_from(">H", data, at + 1)
            if letter == b"b":
                part = data[at + 3 : at + 3 + size].rstrip(b"\0").decode("ascii", errors="replace")
            elif letter not in (b"a", b"c", b"d"):
                raise _no_bitstream(name, f"a field {letter!r}")
            at += 3 + size
    except struct.error:
        raise _no_bitstream(name, "it ends within its fields") from None


def _no_bitstream(name: str, why: str) -> UsageError:
    return UsageError(
        f"{name} is no whole bitstream: {why}", "a .bit or .bin file as Vivado writes it", "copy it again"
    )
