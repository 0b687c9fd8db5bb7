"""Archive the object files of a network so that they fit beside those of another one in an app that links both.

A shared object hides its functions. An archive of Mach-O objects cannot: the functions of the runtime, of kernels and
of tables have the same names in each. So every name that the objects define, but for the network's own function, gets
the network's name as a suffix.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tvmflow.support.errors import StageError

_MAGIC, _SYMTAB, _HEADER = 0xFEEDFACF, 2, 32
_ENTRY = 16  # bytes of a symbol
_ARCHIVE, _TABLE, _HEAD = b"!<arch>\n", "__.SYMDEF", 60
_STAB, _EXTERNAL, _TYPE, _UNDEFINED = 0xE0, 0x01, 0x0E, 0x00


def suffix_names(objects: Sequence[Path], suffix: str, kept: Collection[str]) -> None:
    """Rewrite object files: names that one of them defines for the others end in `suffix`, but for those in `kept`.

    Raises StageError for a file that is none of Mach-O.
    """
    tables = [(path, path.read_bytes()) for path in objects]
    defined = {name for _, data in tables for name, is_defined in _names(data) if is_defined} - set(kept)
    for path, data in tables:
        path.write_bytes(_renamed(data, {name: name + suffix for name in defined}))


def _symtab(data: bytes) -> tuple[int, int, int, int, int]:
    """Return where the command of the symbol table is, and offset and number of symbols, offset and size of names."""
    if len(data) < _HEADER or struct.unpack_from("<I", data)[0] != _MAGIC:
        raise StageError("an object file that is not of Mach-O", "one of 64 bits for Apple's systems")
    at = _HEADER
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        kind, size = struct.unpack_from("<II", data, at)
        if kind == _SYMTAB:
            return at, *struct.unpack_from("<IIII", data, at + 8)
        if size < 8:
            break
        at += size
    raise StageError("an object file of Mach-O without symbols", "one with a symbol table")


def _names(data: bytes) -> list[tuple[str, bool]]:
    """Return the names that other files may see, and whether they are defined here."""
    _, start, count, names, _ = _symtab(data)
    found = []
    for at in range(start, start + count * _ENTRY, _ENTRY):
        place, kind = struct.unpack_from("<IB", data, at)
        if kind & _EXTERNAL and not kind & _STAB:
            end = data.index(b"\0", names + place)
            found.append((data[names + place : end].decode("ascii"), kind & _TYPE != _UNDEFINED))
    return found


def _renamed(data: bytes, new_names: dict[str, str]) -> bytes:
    """Return an object file with other names. The new table of names is at the end of the file, where it was."""
    command, start, count, names, size = _symtab(data)
    changed, table = bytearray(data), bytearray(data[names : names + size].rstrip(b"\0") + b"\0")
    if names + size != len(data):
        raise StageError("an object file whose names are not its last part", "one of LLVM's")
    for at in range(start, start + count * _ENTRY, _ENTRY):
        place, kind = struct.unpack_from("<IB", data, at)
        name = data[names + place : data.index(b"\0", names + place)].decode("ascii", "replace")
        if kind & _EXTERNAL and not kind & _STAB and name in new_names:
            struct.pack_into("<I", changed, at, len(table))
            table += new_names[name].encode("ascii") + b"\0"
    table += bytes(-(names + len(table)) % 8)
    struct.pack_into("<I", changed, command + 20, len(table))
    return bytes(changed[:names] + table)


def archive_of(members: Mapping[str, bytes]) -> bytes:
    """Return an archive of object files by name, as Apple's linker reads it: with a table of the names they define."""
    names = [(name, member) for member in sorted(members) for name, is_defined in _names(members[member]) if is_defined]
    text, places = bytearray(), []
    for name, member in names:
        places.append((len(text), member))
        text += name.encode("ascii") + b"\0"
    text += bytes(-len(text) % 8)
    starts, at = {}, len(_ARCHIVE) + len(_member(_TABLE, bytes(8 + 8 * len(places) + len(text))))
    for member in sorted(members):
        starts[member], at = at, at + len(_member(member, members[member]))
    table = struct.pack("<I", 8 * len(places))
    table += b"".join(struct.pack("<II", place, starts[member]) for place, member in places)
    table += struct.pack("<I", len(text)) + text
    return _ARCHIVE + b"".join([_member(_TABLE, table), *(_member(name, members[name]) for name in sorted(members))])


def _member(name: str, data: bytes) -> bytes:
    """Return a file of an archive: its contents begin and end at multiples of 8 bytes."""
    word = name.encode("ascii")
    word += bytes(4 + -(len(word) + 4) % 8)  # the header has 60 bytes
    size = len(word) + len(data) + -len(data) % 8
    head = f"#1/{len(word):<13}{0:<12}{0:<6}{0:<6}{'644':<8}{size:<10}`\n"
    return head.encode("ascii") + word + data + b"\n" * (-len(data) % 8)


def members_of(archive: bytes) -> dict[str, bytes]:
    """Return the object files of an archive that `archive_of` wrote, by name. Raises StageError for another."""
    found: dict[str, bytes] = {}
    at = len(_ARCHIVE)
    while archive.startswith(_ARCHIVE) and at < len(archive):
        head = archive[at : at + _HEAD]
        try:
            length, size = int(head[3:16]), int(head[48:58])
        except ValueError:
            break
        if not 0 <= length <= size:
            break
        start, at = at + _HEAD, at + _HEAD + size
        found[archive[start : start + length].rstrip(b"\0").decode("ascii", "replace")] = archive[start + length : at]
    found.pop(_TABLE, None)
    if not found or archive_of(found) != archive:
        raise StageError("an archive that tvmflow did not write", "one of objects for Apple's systems")
    return found
