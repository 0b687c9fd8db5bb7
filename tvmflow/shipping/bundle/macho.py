"""Check an archive for Apple's systems of a bundle: its objects, their load commands, sections and names.

Everything is compared with an allowlist. The file is untrusted: it is read in a sandbox (`verify.py`), and nothing of
it runs here. What an app links runs in it, so sections that the system calls as the app starts are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvmflow.codegen.network.macho_objects import members_of
from tvmflow.shipping.bundle.abis import Abi
from tvmflow.support.errors import BundleError, StageError

_PLATFORMS = {"macos": 1, "ios": 2, "ios-simulator": 7}
_ARM64, _OBJECT, _MAGIC = 0x0100000C, 1, 0xFEEDFACF
_SEGMENT, _SYMTAB, _DYSYMTAB, _BUILD = 0x19, 0x2, 0xB, 0x32
_COMMANDS = {_SEGMENT, _SYMTAB, _DYSYMTAB, _BUILD, 0x2E, 0x29}  # and hints of the linker's; no linker options
_SECTIONS = {
    "__TEXT": {"__text", "__const", "__cstring", "__literal4", "__literal8", "__literal16", "__eh_frame"},
    "__DATA": {"__data", "__const", "__bss", "__common", "__thread_bss", "__thread_vars", "__thread_data"},
    "__LD": {"__compact_unwind"},
}
_DEBUG = "__DWARF"
# Regular, zero-filled, literals, coalesced, big zero-filled, and those of thread-local variables; no initializers.
_KINDS = {0x0, 0x1, 0x2, 0x3, 0x4, 0xB, 0xC, 0xE, 0x11, 0x12, 0x13}
_STAB, _EXTERNAL, _TYPE, _UNDEFINED, _DEFINED = 0xE0, 0x01, 0x0E, 0x00, 0x0E
_MOST = 1 << 20  # symbols


def check_archive(path: Path, abi: Abi, soname: str, symbol: str) -> dict[str, Any]:
    """Return what an archive is linked with, as `needed`. Raises BundleError for anything that its ABI does not
    allow.
    """
    try:
        return _check(path.read_bytes(), abi, symbol)
    except BundleError as error:
        raise BundleError(f"{soname}: {error.found}", error.expected, error.hint) from None
    except (StageError, struct.error, ValueError, IndexError):
        raise BundleError(f"{soname}: not an archive of whole objects", "one that tvmflow wrote") from None


def _check(data: bytes, abi: Abi, symbol: str) -> dict[str, Any]:
    defined: set[str] = set()
    undefined: set[str] = set()
    for name, content in members_of(data).items():
        try:
            for text, is_defined in _check_object(content, abi):
                (defined if is_defined else undefined).add(text)
        except BundleError as error:
            raise BundleError(f"{name[:60]!a} in it: {error.found}", error.expected) from None
    suffix = symbol.removeprefix("tvmflow_network")
    if f"_{symbol}" not in defined:
        raise BundleError("it does not define its function", symbol)
    if odd := sorted(one for one in defined if not one.endswith(suffix)):
        raise BundleError(
            f"it defines {', '.join(odd)[:300]!a}", f"names that end in {suffix}, as no other network has"
        )
    if odd := sorted(one for one in undefined - defined if one[:1] != "_" or one[1:] not in abi.symbols):
        raise BundleError(f"it asks for {', '.join(odd)[:300]!a}", f"functions that a network needs on {abi.name}")
    return {"needed": sorted(abi.needed), "undefined": sorted(undefined - defined)}


def _check_object(data: bytes, abi: Abi) -> Iterator[tuple[str, bool]]:
    """Yield the names that other objects see, and whether they are defined here."""
    magic, processor, _, kind, count, size = struct.unpack_from("<IIIIII", data)
    if (magic, processor, kind) != (_MAGIC, _ARM64, _OBJECT):
        raise BundleError("no object for arm64", "objects of Mach-O for arm64")
    at = 32
    platforms: list[int] = []
    tables: list[tuple[int, int, int, int]] = []
    for _ in range(min(count, _MOST)):
        command, length = struct.unpack_from("<II", data, at)
        if command not in _COMMANDS or length < 8 or at + length > 32 + size:
            raise BundleError(f"the load command {command:#x}", "those of an object that tvmflow compiled")
        if command == _SEGMENT:
            _check_sections(data, at)
        if command == _BUILD:
            platforms += struct.unpack_from("<I", data, at + 8)
        if command == _SYMTAB:
            tables.append(struct.unpack_from("<IIII", data, at + 8))
        at += length
    if platforms != [_PLATFORMS[abi.system]]:
        raise BundleError(f"it is for the platforms {platforms}", f"{_PLATFORMS[abi.system]}, {abi.name}")
    if len(tables) != 1:
        raise BundleError(f"{len(tables)} tables of symbols", "one")
    return _symbols(data, *tables[0])


def _check_sections(data: bytes, command: int) -> None:
    length, count = struct.unpack_from("<4xI", data, command)[0], struct.unpack_from("<I", data, command + 64)[0]
    if length != 72 + 80 * count:
        raise BundleError("a segment of another size than its sections", "whole sections")
    for at in range(command + 72, command + length, 80):
        name, segment = (data[start : start + 16].rstrip(b"\0").decode("latin-1") for start in (at, at + 16))
        kind = struct.unpack_from("<I", data, at + 64)[0] & 0xFF
        if kind not in _KINDS or (segment != _DEBUG and name not in _SECTIONS.get(segment, ())):
            raise BundleError(
                f"the section {segment!a},{name!a} of type {kind:#x}", "code, data and their descriptions"
            )


def _symbols(data: bytes, start: int, count: int, names: int, size: int) -> Iterator[tuple[str, bool]]:
    if count > _MOST or start + 16 * count > len(data) or names + size > len(data):
        raise BundleError("a table of symbols that is not in the file", "whole tables")
    text = data[names : names + size]
    for at in range(start, start + 16 * count, 16):
        place, kind, _, _, value = struct.unpack_from("<IBBHQ", data, at)
        if kind & _STAB or not kind & _EXTERNAL:
            continue
        is_defined = kind & _TYPE == _DEFINED
        if not is_defined and (kind & _TYPE != _UNDEFINED or value):
            raise BundleError(f"a symbol of type {kind:#x}", "functions and data of sections, or of another file")
        yield text[place : text.index(b"\0", place)].decode("ascii"), is_defined
