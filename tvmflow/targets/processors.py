"""Check names of processors, triples and features before LLVM reads them.

LLVM replaces unknown names by its generic processor; some triples crash it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from tvmflow.support.errors import UnknownNameError, UsageError
from tvmflow.toolchain.triples import APPLE, ARM32, WASM, Triple
from tvmflow.toolchain.versions import ARCHITECTURES, known_processors

_VENDORS = ("unknown", "pc", "none", "redhat", "alpine")
_LEVEL = r"(2[1-9]|[3-9]\d)?"
_SYSTEM = rf"linux-(gnu|musl|android{_LEVEL})"
_SYSTEM_ARM32 = rf"linux-(gnueabihf|musleabihf|androideabi{_LEVEL})"
_NEEDED = {
    "x86_64": "sse2",
    "aarch64": "neon",
    "armv7a": "neon",
    WASM: "simd128",
}  # the feature that vectors of the architecture depend on


def check_processor(mcpu: str, mtriple: str, mattr: Iterable[str]) -> None:
    """Raise UsageError if LLVM does not know the architecture, the processor or its features."""
    architecture = architecture_of(mtriple)
    cpus, features = known_processors(architecture)
    if mcpu not in cpus:
        others = [name for name in ARCHITECTURES if mcpu in known_processors(name)[0]]
        where = f"; it is one of {', '.join(others)}" if others else ""
        raise UnknownNameError(
            f"mcpu {mcpu!r}: LLVM knows no such {architecture} processor{where}",
            _suggest(mcpu, cpus),
            "correct mcpu: of the target, or mtriple:",
        )
    for attribute in mattr:
        name = attribute[1:]
        if attribute[:1] not in ("+", "-"):
            raise UsageError(
                f"mattr {attribute!r}", f"+ or - before the name of a feature, as +{_closest(attribute, features)}"
            )
        if name not in features:
            raise UnknownNameError(
                f"mattr {attribute!r}: LLVM knows no such feature of {architecture}",
                _suggest(name, features),
                "correct mattr: of the target",
            )
        if name == _NEEDED[architecture] and attribute[0] == "-":
            raise UsageError(f"mattr {attribute!r}: a processor without vectors", f"{architecture} with {name}")


def architecture_of(mtriple: str) -> str:
    """Return the architecture of a triple. Raises UsageError if there are no schedules for it."""
    name, _, rest = mtriple.partition("-")
    if name not in ARCHITECTURES:
        raise UnknownNameError(
            f"mtriple {mtriple!r}: no schedules for the architecture {name[:40]!r}",
            " or ".join(_usual_triple(known) for known in ARCHITECTURES),
            "correct mtriple: of the target",
        )
    if name == WASM:
        if rest != "wasi":
            raise UsageError(f"mtriple {mtriple!r}: no system {rest[:40]!r}", _usual_triple(name), "correct mtriple:")
        return name
    if name == "aarch64" and (apple := APPLE.fullmatch(rest)) and not (apple[1] == "macos" and apple[3]):
        return name
    vendor, _, system = rest.partition("-")
    if not re.fullmatch(_SYSTEM_ARM32 if name == ARM32 else _SYSTEM, system if vendor in _VENDORS else rest):
        gnu, musl, android = (f"{name}-linux-{Triple(name, known).ending}" for known in ("gnu", "musl", "android"))
        raise UsageError(
            f"mtriple {mtriple!r}: no system {rest[:40]!r}",
            f"{gnu}, {musl} or {android}, the latter with an API level from 21 on if any; or aarch64-apple-ios15.0",
            "correct mtriple: of the target",
        )
    return name


def _usual_triple(architecture: str) -> str:
    return f"{WASM}-wasi" if architecture == WASM else f"{architecture}-linux-{Triple(architecture, 'gnu').ending}"


def _closest(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name.lstrip("+-"), sorted(known), 1)), min(known))


def _suggest(name: str, known: frozenset[str]) -> str:
    """Return a hint with the names that are probably meant; all of them if none is similar."""
    close = difflib.get_close_matches(name, sorted(known), 3, 0.6)
    if not close:
        return f"one of {', '.join(sorted(known))}"
    return f"did you mean {' or '.join(close)}? LLVM knows {len(known)}"
