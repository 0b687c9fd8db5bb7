"""Check a shared object of a bundle: its imports, exports and layout.

Everything is compared with an allowlist of its ABI. The file is untrusted: it is read in a sandbox (`verify.py`), and
as a dynamic linker reads it (`dynamic.py`).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_D_TAG_COMMON
from elftools.elf.gnuversions import GNUVerNeedSection

from tvmflow.shipping.bundle.abis import Abi
from tvmflow.shipping.bundle.dynamic import EXECUTE, NEEDED, SONAME, WRITE, Dynamic
from tvmflow.shipping.bundle.macho import check_archive
from tvmflow.shipping.bundle.wasm_module import check_module
from tvmflow.support.errors import BundleError, first_line

_ENTRY = "tvmflow_network"
# Tags of the dynamic section that a library may have; those with a meaning of their own are looked at below.
_TAGS = frozenset(
    f"DT_{name}"
    for name in (
        "NEEDED SONAME SYMBOLIC INIT FINI INIT_ARRAY INIT_ARRAYSZ FINI_ARRAY FINI_ARRAYSZ GNU_HASH HASH "
        "STRTAB SYMTAB STRSZ SYMENT PLTGOT "
        "PLTRELSZ PLTREL JMPREL RELA RELASZ RELAENT REL RELSZ RELENT RELR RELRSZ RELRENT ANDROID_RELA "
        "ANDROID_RELASZ ANDROID_REL ANDROID_RELSZ FLAGS FLAGS_1 "
        "VERNEED VERNEEDNUM VERDEF VERDEFNUM VERSYM RELACOUNT RELCOUNT DEBUG NULL AARCH64_VARIANT_PCS "
        "AARCH64_BTI_PLT AARCH64_PAC_PLT"
    ).split()
)
_NAMES = {number: name for name, number in ENUM_D_TAG_COMMON.items() if name.startswith("DT_")}
_NAMES |= {ENUM_D_TAG_COMMON[name]: name for name in _TAGS if name in ENUM_D_TAG_COMMON}  # where a number has two names
_NAMES_OF_AARCH64 = {
    0x70000001: "DT_AARCH64_BTI_PLT",
    0x70000003: "DT_AARCH64_PAC_PLT",
    0x70000005: "DT_AARCH64_VARIANT_PCS",
}
_SEGMENTS = frozenset(
    f"PT_{name}"
    for name in "LOAD DYNAMIC NOTE TLS GNU_STACK GNU_RELRO GNU_EH_FRAME GNU_PROPERTY PHDR ARM_EXIDX".split()
)
_TEXTREL = 4
# DF_SYMBOLIC, DF_BIND_NOW, DF_STATIC_TLS; DF_1_NOW: the flags that a library may have.
_FLAGS = {"DT_FLAGS": 2 | 8 | 16, "DT_FLAGS_1": 1}


def check_shared_object(path: Path, abi: Abi, soname: str, symbol: str) -> dict[str, Any]:
    """Return the system libraries that a library needs, by name. Raises BundleError for anything that its ABI does not
    allow.
    """
    if abi.is_wasm:
        return check_module(path, abi, soname, symbol)
    if abi.is_apple:
        return check_archive(path, abi, soname, symbol)
    try:
        data = path.read_bytes()
        return _check(ELFFile(io.BytesIO(data)), data, abi, soname, symbol)
    except BundleError as error:
        raise BundleError(f"{soname}: {error.found}", error.expected, error.hint) from None
    except Exception as error:  # pyelftools raises arbitrary errors for damaged files
        raise BundleError(
            f"{soname} is not a readable shared object: {first_line(error)}", f"one for {abi.name}"
        ) from None


def versions_of(path: Path) -> tuple[str, ...]:
    """Return the newest required version of each symbol version set, such as GLIBC_2.34."""
    with path.open("rb") as file:
        newest: dict[str, tuple[tuple[int, ...], str]] = {}
        for section in ELFFile(file).iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, parts in section.iter_versions():
                    for part in parts:
                        family, _, number = part.name.rpartition("_")
                        key = tuple(int(x) for x in number.split(".") if x.isdigit())
                        newest[family] = max(newest.get(family, ((), "")), (key, part.name))
    return tuple(sorted(name for _, name in newest.values()))


def _check(elf: Any, data: bytes, abi: Abi, soname: str, symbol: str) -> dict[str, Any]:
    header = elf.header
    if (header.e_machine, elf.elfclass, elf.little_endian) != (
        abi.machine,
        abi.bits,
        True,
    ) or header.e_type != "ET_DYN":
        raise BundleError(
            f"a file of {elf.elfclass} bits for {header.e_machine}, type {header.e_type}",
            f"a shared object of {abi.bits} bits for {abi.machine}, as {abi.name} has it",
        )
    mask, wanted = abi.flags
    if int(header.e_flags) & mask != wanted:
        raise BundleError(
            f"the flags {header.e_flags:#x} in its header: another EABI version or float ABI",
            f"{wanted:#x} of {mask:#x}, as {abi.name} has them",
        )
    _check_segments(elf, abi)
    dynamic = Dynamic(data, abi.bits, abi.machine, abi.page)
    needed = _check_tags(dynamic, abi, soname)
    undefined, defined = _symbols(dynamic)
    _raise_not_allowed(
        undefined - abi.symbols, "imports the functions", f"those of the C library that a network needs on {abi.name}"
    )
    if not {_ENTRY, symbol} <= defined:
        raise BundleError(f"it exports {', '.join(sorted(defined)) or 'nothing'}", f"{_ENTRY} and {symbol}")
    _raise_not_allowed(defined - {_ENTRY, symbol, "_init", "_fini"}, "exports", f"only {_ENTRY} and {symbol}")
    return {"needed": sorted(needed), "undefined": sorted(undefined)}


def _check_segments(elf: Any, abi: Abi) -> None:
    kinds: list[str] = []
    for segment in elf.iter_segments():
        kind, flags = str(segment["p_type"]), int(segment["p_flags"])
        kinds.append(kind)
        if kind == "PT_GNU_STACK" and flags & EXECUTE:
            raise BundleError("it requests an executable stack", "a non-executable stack")
        if kind != "PT_LOAD":
            continue
        align = int(segment["p_align"])
        if align % abi.page or (int(segment["p_vaddr"]) - int(segment["p_offset"])) % abi.page:
            raise BundleError(
                f"a segment aligned to {align} bytes", f"multiples of {abi.page}, the pages of {abi.name}"
            )
        if flags & EXECUTE and flags & WRITE:
            raise BundleError("a segment that is both writable and executable", "at most one of the two")
    _raise_not_allowed(set(kinds) - _SEGMENTS, "has segments of the kind", "those of a shared object")
    if "PT_GNU_STACK" not in kinds:
        raise BundleError("it does not mark its stack as non-executable", "a PT_GNU_STACK segment")


def _check_tags(dynamic: Dynamic, abi: Abi, soname: str) -> set[str]:
    needed = {dynamic.text(offset) for offset in dynamic.tags.get(NEEDED, ())}
    names = [dynamic.text(offset) for offset in dynamic.tags.get(SONAME, ())]
    kinds = _NAMES | (_NAMES_OF_AARCH64 if abi.machine == "EM_AARCH64" else {})
    by_name = {kinds.get(number, f"{number:#x}"): values for number, values in dynamic.tags.items()}
    tags = set(by_name)
    flags = {
        (kind, 1 << bit) for kind in _FLAGS for value in by_name.get(kind, ()) for bit in range(64) if value >> bit & 1
    }
    if "DT_TEXTREL" in tags or ("DT_FLAGS", _TEXTREL) in flags:
        raise BundleError("it has text relocations (DT_TEXTREL)", "position-independent code")
    if path := tags & {"DT_RPATH", "DT_RUNPATH"}:
        raise BundleError(f"it has library search paths ({', '.join(sorted(path))})", "no such path")
    _raise_not_allowed(tags - _TAGS, "has entries of the kind", "those of a library that tvmflow links")
    odd = {f"{kind} {value:#x}" for kind, value in flags if not value & _FLAGS[kind]}
    _raise_not_allowed(odd, "has the flags", "bind now, symbolic, static thread-local storage")
    _raise_not_allowed(needed - abi.needed, "needs the libraries", f"no other than {', '.join(sorted(abi.needed))}")
    if names != [soname]:
        raise BundleError(f"its SONAME is {names[0] if names else 'missing'}", f"{soname}, the name of its file")
    return needed


def _symbols(dynamic: Dynamic) -> tuple[set[str], set[str]]:
    """Return the names that a library imports and those that it exports."""
    symbols = dynamic.symbols()
    dynamic.check_symbols(symbols)
    undefined = {one.name for one in symbols if not one.is_defined}
    return undefined, {one.name for one in symbols if one.is_defined and not one.is_local}


def _raise_not_allowed(names: set[str], what: str, expected: str) -> None:
    if names:
        shown = ", ".join(ascii(name)[1:-1][:80] for name in sorted(names)[:8])
        raise BundleError(f"it {what} {shown}", expected)
