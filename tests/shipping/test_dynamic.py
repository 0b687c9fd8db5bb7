"""Test that a library is read as a dynamic linker reads it: forged tables that other readers do not see."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shipping.test_libraries import SONAME, SYMBOL, _compiled
from tvmflow.shipping.bundle.abis import Abi, abi_of
from tvmflow.shipping.bundle.dynamic import SYMTAB, Dynamic, _numbers
from tvmflow.shipping.bundle.elf import check_shared_object
from tvmflow.shipping.bundle.part import Part
from tvmflow.support.errors import BundleError

NEEDED, STRTAB, GNU_HASH, PT_LOAD, PT_DYNAMIC = 1, 5, 0x6FFFFEF5, 1, 2


@pytest.fixture(scope="module")
def abi(part: Part) -> Abi:
    abi = abi_of(part.manifest.target.mtriple)
    if abi.name != "x86_64-linux-gnu":
        pytest.skip("forges libraries of x86-64")
    return abi


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library that imports `system`, which no bundle may."""
    return _compiled(tmp_path, more="int system(const char *); int (*held)(const char *) = system; " + HIDDEN)


HIDDEN = '__attribute__((visibility("hidden"))) extern int (*held)(const char *);\n'


def _headers(data: bytearray, kind: int) -> list[int]:
    start, count = struct.unpack_from("<32xQ16xH", data)
    return [at for at in range(start, start + 56 * count, 56) if struct.unpack_from("<I", data, at)[0] == kind]


def _entries(data: bytearray) -> dict[int, int]:
    """Return tag -> place of its entry in the file."""
    offset, size = struct.unpack_from("<8xQ16xQ", data, _headers(data, PT_DYNAMIC)[0])
    return {struct.unpack_from("<Q", data, at)[0]: at for at in range(offset, offset + size, 16)}


def _refused(path: Path, abi: Abi, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        check_shared_object(path, abi, SONAME, SYMBOL)


def test_the_dynamic_segment_has_one_place(library: Path, abi: Abi) -> None:
    """In the file a harmless copy, in memory the one that the linker reads; sections agree with the copy."""
    _refused(library, abi, "imports the functions system")
    data = bytearray(library.read_bytes())
    header = _headers(data, PT_DYNAMIC)[0]
    offset, size = struct.unpack_from("<8xQ16xQ", data, header)
    copy = len(data)
    data += data[offset : offset + size]
    data[header + 8 : header + 16] = struct.pack("<Q", copy)
    library.write_bytes(data)
    _refused(library, abi, "its dynamic segment is not where it is loaded")


def test_section_headers_say_nothing(library: Path, abi: Abi) -> None:
    """Without them, and with names of another table that only they point to."""
    data = bytearray(library.read_bytes())
    sections, count = struct.unpack_from("<40xQ12xH", data)
    for at in range(sections, sections + 64 * count, 64):
        data[at + 4 : at + 8] = struct.pack("<I", 3)  # all of them are tables of names
        data[at + 24 : at + 32] = struct.pack("<Q", len(data))
    library.write_bytes(data)
    _refused(library, abi, "imports the functions system")
    data[40:48], data[58:64] = bytes(8), struct.pack("<HHH", 64, 0, 0)
    library.write_bytes(data)
    _refused(library, abi, "imports the functions system")


def test_a_symbol_that_only_a_relocation_names(library: Path, abi: Abi) -> None:
    """The hash tables end before it; the linker binds what the relocation asks for."""
    data = bytearray(library.read_bytes())
    found = Dynamic(bytes(data), 64, abi.machine, abi.page)
    names = [one.name for one in found.symbols()]
    assert "system" in names
    at = _entries(data)[GNU_HASH]
    where = struct.unpack_from("<8xQ", data, at)[0]  # of the first segment: the same in file and memory
    buckets, _, words, _ = struct.unpack_from("<IIII", data, where)
    data[where + 4 : where + 8] = struct.pack("<I", 1)
    data[where + 16 + 8 * words : where + 16 + 8 * words + 4 * buckets] = bytes(4 * buckets)
    library.write_bytes(data)
    _refused(library, abi, "imports the functions system")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "static int f(void) { return 1; } static void *choose(void) { return (void *)f; }\n"
            '__attribute__((visibility("hidden"))) int g(void) __attribute__((ifunc("choose")));\n'
            '__attribute__((visibility("hidden"))) int (*volatile kept)(void) = g;\n',
            "relocations of type 37",
        ),
        ("int data = 3;\n", "it exports data, which is no function"),
        ("extern char **environ; char ***volatile kept = &environ;\n", "environ|kept"),
        ('static void *choose(void) { return 0; }\nint g(void) __attribute__((ifunc("choose")));\n', "exports g"),
    ],
)
def test_what_is_no_function(tmp_path: Path, abi: Abi, more: str, said: str) -> None:
    _refused(_compiled(tmp_path, more=more), abi, said)


def _twice(data: bytearray) -> None:
    entries = _entries(data)
    at = entries[13]  # DT_FINI
    data[at : at + 16] = data[entries[STRTAB] : entries[STRTAB] + 16]


def _in_writable_memory(data: bytearray) -> None:
    entries = _entries(data)
    load = _headers(data, PT_LOAD)[-1]
    data[entries[SYMTAB] + 8 : entries[SYMTAB] + 16] = data[load + 16 : load + 24]


def _overlapping(data: bytearray) -> None:
    first, second = _headers(data, PT_LOAD)[:2]
    data[second + 16 : second + 24] = data[first + 16 : first + 24]


def _two_segments(data: bytearray) -> None:
    at = _headers(data, 4)[0]  # PT_NOTE
    data[at : at + 56] = data[_headers(data, PT_DYNAMIC)[0] :][:56]


def _writes_to_code(data: bytearray) -> None:
    entries = _entries(data)
    table = struct.unpack_from("<8xQ", data, entries[7])[0]  # DT_RELA, in the first segment
    data[table : table + 8] = struct.pack("<Q", 0x40)


def _writes_to_dynamic(data: bytearray) -> None:
    table = struct.unpack_from("<8xQ", data, _entries(data)[7])[0]
    data[table : table + 8] = data[_headers(data, PT_DYNAMIC)[0] + 16 :][:8]


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (_twice, "two entries of kind 0x5"),
        (_in_writable_memory, "symbols that can be written to"),
        (_overlapping, "share a page"),
        (_two_segments, "2 dynamic segments"),
        (_writes_to_code, "which is no data"),
        (_writes_to_dynamic, "in its dynamic segment"),
    ],
)
def test_two_views_are_refused(tmp_path: Path, abi: Abi, forge: Callable[[bytearray], None], said: str) -> None:
    path = _compiled(tmp_path)
    check_shared_object(path, abi, SONAME, SYMBOL)
    data = bytearray(path.read_bytes())
    forge(data)
    path.write_bytes(data)
    _refused(path, abi, said)


def test_packed_relocations_are_read_as_bionic_reads_them(tmp_path: Path, abi: Abi) -> None:
    """RELR by the linker itself; LEB128 numbers of Android's form."""
    more = 'static int a; int *volatile b[200] __attribute__((visibility("hidden"))) = {[0 ... 199] = &a};'
    path = tmp_path / "x.so"
    _compiled(tmp_path, more=more)
    plain = {
        where for where, kind, _ in Dynamic(path.read_bytes(), 64, abi.machine, abi.page).relocations() if kind == 8
    }
    try:
        _compiled(tmp_path, "-Wl,-z,pack-relative-relocs", more=more)
    except subprocess.CalledProcessError:
        pytest.skip("needs a linker with -z pack-relative-relocs")
    packed = Dynamic(path.read_bytes(), 64, abi.machine, abi.page)
    assert 0x24 in packed.tags and len(plain) >= 200
    assert len({where for where, kind, _ in packed.relocations() if kind == 8}) == len(plain)
    numbers = _numbers(bytes([2, 0x7E, 0xFF, 0x00, 0x80, 0x7F]))
    assert [next(numbers) for _ in range(4)] == [2, -2, 127, -128]
    with pytest.raises(BundleError, match="end too early"):
        next(numbers)
