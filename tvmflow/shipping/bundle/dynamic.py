"""Read what a dynamic linker reads of a shared object: by program headers, never by section headers.

Section headers can say something else than what is loaded, so they are not looked at. Whatever would let two readers
see two libraries is refused: segments that share a page, tables that are not in the file or can be written to while
they are read, entries twice, relocations of other tables than data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tvmflow.support.errors import BundleError

EXECUTE, WRITE = 1, 2
_PT_LOAD, _PT_DYNAMIC = 1, 2
_MOST = 1 << 20  # symbols or relocations, of a library of a thousand
_FUNCTION, _TLS, _NO_TYPE = 2, 6, 0
_LOCAL_BIND = 0
# Tags by number, for those that are read here.
NULL, NEEDED, PLTRELSZ, HASH, STRTAB, SYMTAB, RELA, RELASZ = 0, 1, 2, 4, 5, 6, 7, 8
RELAENT, STRSZ, SYMENT, SONAME, REL, RELSZ, RELENT, PLTREL, JMPREL = 9, 10, 11, 14, 17, 18, 19, 20, 23
RELRSZ, RELR, RELRENT, GNU_HASH = 35, 36, 37, 0x6FFFFEF5
ANDROID_REL, ANDROID_RELSZ, ANDROID_RELA, ANDROID_RELASZ = 0x6000000F, 0x60000010, 0x60000011, 0x60000012
# Relocations that only place addresses: absolute, GOT, PLT, relative, thread-local. Not IRELATIVE, which calls code
# while the library is loaded, nor COPY.
_RELOCATIONS = {
    "EM_X86_64": {1, 6, 7, 8, 16, 17, 18, 36},
    "EM_AARCH64": {257, 1025, 1026, 1027, 1028, 1029, 1030, 1031},
    "EM_ARM": {2, 13, 17, 18, 19, 21, 22, 23},
}


@dataclass(frozen=True)
class Segment:
    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    size: int


@dataclass(frozen=True)
class Symbol:
    """A symbol with a name. is_defined: here; is_function: of this type; address: of a defined one."""

    name: str
    kind: int
    is_local: bool
    is_defined: bool
    address: int


class Dynamic:
    """The dynamic part of a library. tags: number -> values, in order. Raises BundleError for an ambiguous one."""

    def __init__(self, data: bytes, bits: int, machine: str, page: int) -> None:
        self._data, self._is_64, self._machine = data, bits == 64, machine
        segments = list(_segments(data, self._is_64))
        self._loads = [one for one in segments if one.kind == _PT_LOAD]
        self._check_loads(page)
        own = [one for one in segments if one.kind == _PT_DYNAMIC]
        if len(own) != 1:
            raise BundleError(f"{len(own)} dynamic segments", "one")
        self._range = (own[0].address, own[0].address + own[0].size)
        where = self._load_at(own[0].address, own[0].size)
        if own[0].offset != own[0].address - where.address + where.offset or own[0].file_size != own[0].size:
            raise BundleError("its dynamic segment is not where it is loaded", "one place in the file and in memory")
        self.tags = self._tags(own[0])

    def symbols(self) -> list[Symbol]:
        """Return all symbols that the linker can find, or that a relocation names."""
        table, entry = self.value(SYMTAB), 24 if self._is_64 else 16
        if self.value(SYMENT) != entry:
            raise BundleError(f"symbols of {self.value(SYMENT)} bytes", f"{entry}")
        count = max(self._hashed(), 1 + max((symbol for _, _, symbol in self.relocations()), default=0))
        raw = self._fixed(table, count * entry, "symbols")
        found = []
        for at in range(1, count):
            part = raw[at * entry : (at + 1) * entry]
            if self._is_64:
                name, info, _, section, address, _ = struct.unpack("<IBBHQQ", part)
            else:
                name, address, _, info, _, section = struct.unpack("<IIIBBH", part)
            if name:
                found.append(Symbol(self.text(name), info & 15, info >> 4 == _LOCAL_BIND, section != 0, address))
        return found

    def check_symbols(self, symbols: list[Symbol]) -> None:
        """Raise BundleError for symbols other than functions: an IFUNC calls code while the library is loaded."""
        for one in symbols:
            if one.is_defined and not one.is_local and (one.kind != _FUNCTION or not self._is_code(one.address)):
                raise BundleError(f"it exports {one.name}, which is no function", "functions of its code")
            if one.kind not in ((_FUNCTION, _NO_TYPE) if not one.is_local else range(_TLS + 1)):
                raise BundleError(f"the symbol {one.name} is of type {one.kind}", "functions")

    def relocations(self) -> Iterator[tuple[int, int, int]]:
        """Yield address, type and number of the symbol of each relocation. Raises BundleError for one that is not of
        data, or of the tables themselves.
        """
        for address, kind, symbol in self._all_relocations():
            size = 8 if self._is_64 else 4
            load = next((one for one in self._loads if one.address <= address <= one.address + one.size - size), None)
            if load is None or not load.flags & WRITE:
                raise BundleError(f"a relocation at {address:#x}, which is no data", "relocations of writable data")
            if address + size > self._range[0] and address < self._range[1]:
                raise BundleError(f"a relocation at {address:#x}, in its dynamic segment", "relocations of data")
            if kind not in _RELOCATIONS[self._machine]:
                raise BundleError(f"relocations of type {kind}", "those that only place addresses")
            yield address, kind, symbol

    def value(self, tag: int) -> int:
        """Return the value of a tag that has to be there once."""
        values = self.tags.get(tag, [])
        if len(values) != 1:
            raise BundleError(f"{len(values)} entries of kind {tag:#x} in its dynamic segment", "one")
        return values[0]

    def text(self, offset: int) -> str:
        """Return a text of the string table."""
        size = self.value(STRSZ)
        if size > len(self._data) or not offset < size:
            raise BundleError(f"a name at {offset} of a string table of {size} bytes", "a name in the table")
        table = self._fixed(self.value(STRTAB), size, "names")
        end = table.find(b"\0", offset)
        if end < 0:
            raise BundleError("a name that does not end", "a name in the table")
        return table[offset:end].decode("utf-8", "backslashreplace")

    def _check_loads(self, page: int) -> None:
        end = 0
        for one in self._loads:
            if one.address // page * page < end or one.file_size > one.size:
                raise BundleError("segments that share a page, or are out of order", "one after the other")
            if one.offset + one.file_size > len(self._data):
                raise BundleError("a segment that ends after the file", "segments in the file")
            end = (one.address + one.size + page - 1) // page * page
        if not self._loads or end >> (48 if self._is_64 else 32):
            raise BundleError("no segments, or some beyond what a process can have", "segments in the address space")

    def _tags(self, segment: Segment) -> dict[int, list[int]]:
        size, form = (16, "<QQ") if self._is_64 else (8, "<II")
        raw = self._read(segment.address, segment.size)
        tags: dict[int, list[int]] = {}
        for at in range(0, len(raw) - size + 1, size):
            tag, value = struct.unpack_from(form, raw, at)
            tags.setdefault(tag, []).append(value)
            if tag == NULL:
                break
        else:
            raise BundleError("a dynamic segment without end", "DT_NULL as its last entry")
        if twice := [tag for tag, values in tags.items() if len(values) > 1 and tag != NEEDED]:
            raise BundleError(f"two entries of kind {twice[0]:#x} in its dynamic segment", "one")
        return tags

    def _load_at(self, address: int, size: int) -> Segment:
        for one in self._loads:
            if one.address <= address and address + size <= one.address + one.file_size:
                return one
        raise BundleError(f"a table at {address:#x} that is not in one segment of the file", "tables in the file")

    def _read(self, address: int, size: int) -> bytes:
        load = self._load_at(address, size)
        at = address - load.address + load.offset
        return self._data[at : at + size]

    def _fixed(self, address: int, size: int, what: str) -> bytes:
        """Return a table that nothing can write to."""
        if self._load_at(address, size).flags & WRITE:
            raise BundleError(f"a table of {what} that can be written to", "one in a segment that is only read")
        return self._read(address, size)

    def _is_code(self, address: int) -> bool:
        return any(one.flags & EXECUTE and one.address <= address < one.address + one.file_size for one in self._loads)

    def _hashed(self) -> int:
        """Return the number of symbols that the hash tables reach."""
        count = 1
        if HASH in self.tags:
            count = max(count, struct.unpack("<4xI", self._fixed(self.value(HASH), 8, "hashes"))[0])
        if GNU_HASH in self.tags:
            count = max(count, self._hashed_gnu(self.value(GNU_HASH)))
        return _limited(count)

    def _hashed_gnu(self, at: int) -> int:
        buckets, first, words, _ = struct.unpack("<IIII", self._fixed(at, 16, "hashes"))
        at += 16 + _limited(words) * (8 if self._is_64 else 4)
        starts = struct.unpack(f"<{_limited(buckets)}I", self._fixed(at, 4 * buckets, "hashes"))
        last = max(starts, default=0)
        if last < first:
            return int(first)
        at += 4 * buckets
        while not struct.unpack("<I", self._fixed(at + 4 * (_limited(last) - first), 4, "hashes"))[0] & 1:
            last += 1
        return last + 1

    def _all_relocations(self) -> Iterator[tuple[int, int, int]]:
        tables = [
            (RELA, RELASZ, RELAENT, True),
            (REL, RELSZ, RELENT, False),
        ]
        for start, size, entry, has_addend in tables:
            if start in self.tags or size in self.tags:
                if self.value(entry) != self._entry_size(has_addend):
                    raise BundleError(f"relocations of {self.value(entry)} bytes", f"{self._entry_size(has_addend)}")
                yield from self._table(self.value(start), self.value(size), has_addend)
        if JMPREL in self.tags or PLTRELSZ in self.tags:
            if self.value(PLTREL) not in (REL, RELA):
                raise BundleError(f"PLT relocations of kind {self.value(PLTREL)}", "DT_REL or DT_RELA")
            yield from self._table(self.value(JMPREL), self.value(PLTRELSZ), self.value(PLTREL) == RELA)
        if RELR in self.tags or RELRSZ in self.tags:
            yield from self._relative()
        for start, size, has_addend in ((ANDROID_RELA, ANDROID_RELASZ, True), (ANDROID_REL, ANDROID_RELSZ, False)):
            if start in self.tags or size in self.tags:
                yield from self._packed(self._fixed(self.value(start), self.value(size), "relocations"), has_addend)

    def _entry_size(self, has_addend: bool) -> int:
        return (3 if has_addend else 2) * (8 if self._is_64 else 4)

    def _table(self, address: int, size: int, has_addend: bool) -> Iterator[tuple[int, int, int]]:
        entry = self._entry_size(has_addend)
        if size % entry:
            raise BundleError(f"a table of relocations of {size} bytes", f"a multiple of {entry}")
        raw = self._fixed(address, size, "relocations")
        for at in range(0, _limited(size // entry) * entry, entry):
            where, info = struct.unpack_from("<QQ" if self._is_64 else "<II", raw, at)
            yield where, *self._split(info)

    def _split(self, info: int) -> tuple[int, int]:
        """Return type and symbol."""
        return (info & 0xFFFFFFFF, info >> 32) if self._is_64 else (info & 0xFF, info >> 8)

    def _relative(self) -> Iterator[tuple[int, int, int]]:
        """Yield the relocations of DT_RELR: addresses, and bitmaps of the words that follow them."""
        word = 8 if self._is_64 else 4
        relative = {"EM_X86_64": 8, "EM_AARCH64": 1027, "EM_ARM": 23}[self._machine]
        if self.value(RELRENT) != word or self.value(RELRSZ) % word:
            raise BundleError(f"a table of {self.value(RELRSZ)} bytes of {self.value(RELRENT)}", f"words of {word}")
        raw, base = self._fixed(self.value(RELR), self.value(RELRSZ), "relocations"), 0
        for at in range(0, len(raw), word):
            entry = int.from_bytes(raw[at : at + word], "little")
            if not entry & 1:
                yield entry, relative, 0
                base = entry + word
                continue
            for bit in range(8 * word - 1):
                if entry >> (bit + 1) & 1:
                    yield base + bit * word, relative, 0
            base += (8 * word - 1) * word

    def _packed(self, raw: bytes, has_addend: bool) -> Iterator[tuple[int, int, int]]:
        """Yield the relocations of Android's form: groups of differences, as bionic's loader reads them."""
        if raw[:4] != b"APS2":
            raise BundleError("packed relocations without APS2", "Android's form of relocations")
        numbers = _numbers(raw[4:])
        count, where, info = _limited(next(numbers)), next(numbers), 0
        while count > 0:
            group, flags = next(numbers), next(numbers)
            if not 0 < group <= count:
                raise BundleError(f"a group of {group} packed relocations of {count}", "groups of those that are left")
            step = next(numbers) if flags & 2 else 0
            info = next(numbers) if flags & 1 else info
            addend_in_group = has_addend and flags & 8
            if addend_in_group and flags & 4:
                next(numbers)
            for _ in range(group):
                where += step if flags & 2 else next(numbers)
                info = info if flags & 1 else next(numbers)
                if addend_in_group and not flags & 4:
                    next(numbers)
                yield where, *self._split(info & ((1 << (64 if self._is_64 else 32)) - 1))
            count -= group


def _segments(data: bytes, is_64: bool) -> Iterator[Segment]:
    """Yield the program headers, as many as the header says."""
    if is_64:
        start, size, count = struct.unpack_from("<32xQ14xHH", data)
    else:
        start, size, count = struct.unpack_from("<28xI10xHH", data)
    if size != (56 if is_64 else 32) or count == 0xFFFF:
        raise BundleError(f"{count} program headers of {size} bytes", "a number of usual ones")
    for at in range(start, start + count * size, size):
        if is_64:
            kind, flags, offset, address, _, file_size, memory, _ = struct.unpack_from("<IIQQQQQQ", data, at)
        else:
            kind, offset, address, _, file_size, memory, flags, _ = struct.unpack_from("<IIIIIIII", data, at)
        yield Segment(kind, flags, offset, address, file_size, memory)


def _numbers(raw: bytes) -> Iterator[int]:
    """Yield the signed LEB128 numbers of packed relocations. Raises BundleError at their end."""
    value = shift = 0
    for byte in raw:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield value - (1 << shift) if byte & 0x40 else value
            value = shift = 0
    raise BundleError("packed relocations that end too early", "as many as they say")


def _limited(count: int) -> int:
    if not 0 <= count <= _MOST:
        raise BundleError(f"{count} symbols or relocations", f"at most {_MOST}")
    return count
