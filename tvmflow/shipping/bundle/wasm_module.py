"""Check a module of WebAssembly of a bundle: its sections, imports and exports, against an allowlist.

The file is untrusted: it is read in a sandbox (`verify.py`), byte by byte with bounds, and not run here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.shipping.bundle.abis import Abi
from tvmflow.support.errors import BundleError

_HEADER = b"\0asm\1\0\0\0"
_SYSTEM = "wasi_snapshot_preview1"
_ENTRY = "tvmflow_network"
# custom, type, import, function, table, memory, global, export, start, element, code, data, data count
_KNOWN = range(13)
_IMPORT, _EXPORT, _START = 2, 7, 8
_FUNCTION, _TABLE, _MEMORY, _GLOBAL = range(4)
_EXPORTS = {
    "memory": _MEMORY,
    "__indirect_function_table": _TABLE,
    "_initialize": _FUNCTION,
    "malloc": _FUNCTION,
    "free": _FUNCTION,
    _ENTRY: _FUNCTION,
}


class _Reader:
    """Bytes of a section, read in order. Raises BundleError at the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise BundleError(f"a module cut off at byte {len(self.data)}", "whole sections")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        """Return an unsigned LEB128 number of 32 bits."""
        found = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                if found >> 32:
                    break
                return found
        raise BundleError("a number of more than 32 bits in a module", "LEB128 of 32 bits")

    def name(self) -> str:
        return self.take(self.number()).decode("utf-8", "backslashreplace")

    @property
    def is_at_end(self) -> bool:
        return self.at == len(self.data)


def check_module(path: Path, abi: Abi, soname: str, symbol: str) -> dict[str, Any]:
    """Return the modules that a module imports from, as `needed`. Raises BundleError for anything that its ABI does not
    allow.
    """
    try:
        return _check(path.read_bytes(), abi, symbol)
    except BundleError as error:
        raise BundleError(f"{soname}: {error.found}", error.expected, error.hint) from None


def _check(data: bytes, abi: Abi, symbol: str) -> dict[str, Any]:
    if not data.startswith(_HEADER):
        raise BundleError("not a module of WebAssembly", "a binary module of version 1")
    whole, last = _Reader(data[len(_HEADER) :]), 0.0
    sections: dict[int, _Reader] = {}
    while not whole.is_at_end:
        kind, body = whole.take(1)[0], _Reader(whole.take(whole.number()))
        if kind not in _KNOWN or kind == _START:
            raise BundleError(f"a section of kind {kind}", "those of a network's module")
        if not kind:
            continue  # custom: names, producers
        order = {12: 9.5}.get(kind, kind)  # the count of data lies before the code
        if order <= last:
            raise BundleError(f"section {kind} twice or out of order", "each section once, in order")
        sections[kind], last = body, order
    _check_imports(sections.get(_IMPORT), abi)
    _check_exports(sections.get(_EXPORT), symbol)
    return {"needed": [_SYSTEM] if _IMPORT in sections else []}


def _check_imports(section: _Reader | None, abi: Abi) -> None:
    for _ in range(section.number() if section else 0):
        assert section is not None
        module, name, kind = section.name(), section.name(), section.take(1)[0]
        if module != _SYSTEM or name not in abi.symbols or kind != _FUNCTION:
            raise BundleError(
                f"imports {module[:60]!a} {name[:60]!a}", f"functions of {_SYSTEM}: {', '.join(sorted(abi.symbols))}"
            )
        section.number()  # its type
    if section is not None and not section.is_at_end:
        raise BundleError("bytes behind the imports", "whole sections")


def _check_exports(section: _Reader | None, symbol: str) -> None:
    wanted, found = {**_EXPORTS, symbol: _FUNCTION}, {}
    for _ in range(section.number() if section else 0):
        assert section is not None
        name = section.name()
        found[name] = section.take(1)[0]
        section.number()  # its index
    if found != wanted or (section is not None and not section.is_at_end):
        raise BundleError(f"exports {', '.join(sorted(found))[:300] or 'nothing'}", ", ".join(sorted(wanted)))
