"""Define the formats of a library without TVM: shared objects of ELF, modules of WebAssembly, archives of Mach-O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.macho_objects import archive_of, suffix_names
from tvmflow.toolchain.compilers import Command

PAGE = 16384  # bytes: the largest page size of Android, a multiple of all others
_BEFORE, _AFTER = (
    ("network", "device"),
    ("image", "scores", "arithmetic", "fallback", "sizes", "teams", "forks", "processor"),
)
_COMPILE = "-x c -std=c11 -O2 -fvisibility=hidden -ffunction-sections -Wall -Wextra -Werror".split()
_LINK = (
    "-shared",
    "-fPIC",
    "-Wl,--as-needed",
    "-Wl,-Bsymbolic",
    "-Wl,--gc-sections",
    "-Wl,-z,noexecstack",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,-z,text",
    f"-Wl,-z,max-page-size={PAGE}",
    f"-Wl,-z,common-page-size={PAGE}",
    "-Wl,--build-id=none",
    "-Wl,--no-undefined",
    "-Wl,-s",
)
# A module without main; JavaScript uses its memory, its allocator and its table of functions.
_LINK_WASM = (
    "-mexec-model=reactor",
    "-Wl,--gc-sections",
    "-Wl,-s",
    "-Wl,--export-table",
    "-Wl,--export=malloc",
    "-Wl,--export=free",
    "-Wl,-z,stack-size=1048576",
)

_ASSEMBLY = """\
    .section .rodata.tvmflow,"a"
    .balign {page}
    .globl plan_constants
    .hidden plan_constants
plan_constants:
    .incbin "{file}"
    .byte 0
    .section .note.GNU-stack,""
"""
_ASSEMBLY_MACHO = """\
    .section __TEXT,__const
    .balign {page}
    .globl _plan_constants
    .private_extern _plan_constants
_plan_constants:
    .incbin "{file}"
    .byte 0
"""
_EMBEDDING = """\
__attribute__((visibility("hidden"), aligned({page}))) const unsigned char plan_constants[] = {{
#embed "{file}" suffix(,)
0}};
"""


@dataclass(frozen=True)
class LibraryFormat:
    """sources: of the runtime, below its folder; compile, link: options of the compiler; constants_name: the source
    that includes the constants, constants_text: its text; constants_options: to compile it.
    """

    sources: tuple[str, ...]
    compile: tuple[str, ...]
    link: tuple[str, ...]
    constants_name: str
    constants_text: str
    constants_options: tuple[str, ...] = ()

    def write_constants_source(self, folder: Path, file: str, before: str = "") -> Path:
        """Write the source that includes a file of constants. before: text of the same language."""
        path = folder / self.constants_name
        path.write_text(before + self.constants_text.format(page=PAGE, file=file), encoding="ascii")
        return path

    def link_command(
        self, compiler: Command, folder: Path, network: Network, objects: Sequence[Path], path: Path, has_gpu: bool
    ) -> list[str]:
        """Return the command that makes the library of a network of its object files, to be run in `folder`; none where
        it is made already.
        """
        names = [str(file.relative_to(folder) if file.is_relative_to(folder) else file) for file in objects]
        own = self.link_options(folder, network.symbol, network.soname)
        return compiler.line(*self.link, *own, "-o", str(path), *names, *self.libraries(has_gpu))

    def file_name(self, network: Network) -> str:
        """Return the name of the library's file where an app has it."""
        return network.soname

    def link_options(self, folder: Path, symbol: str, soname: str) -> list[str]:
        """Return options that export the entry of a network, which is also called `symbol`, and name the library."""
        (folder / "exports.map").write_text(f"{{ global: tvmflow_network; {symbol}; local: *; }};\n", encoding="ascii")
        return [f"-Wl,--version-script={folder / 'exports.map'}", f"-Wl,-soname,{soname}"]

    def libraries(self, has_gpu: bool) -> list[str]:
        """Return the libraries of the system that a network is linked with."""
        return ["-lm", "-pthread", *(["-ldl"] if has_gpu else [])]


class WasmFormat(LibraryFormat):
    """A module has a list of exports, and no name, threads or libraries to load."""

    def link_options(self, folder: Path, symbol: str, soname: str) -> list[str]:
        return [f"-Wl,--export={name}" for name in ("tvmflow_network", symbol)]

    def libraries(self, has_gpu: bool) -> list[str]:
        return ["-lm"]

    def file_name(self, network: Network) -> str:
        return network.module_name


class ArchiveFormat(LibraryFormat):
    """An archive is linked into an app, by Xcode: it has no imports of its own, and only the network's own function."""

    def link_command(
        self, compiler: Command, folder: Path, network: Network, objects: Sequence[Path], path: Path, has_gpu: bool
    ) -> list[str]:
        suffix_names(objects, network.symbol.removeprefix("tvmflow_network"), {f"_{network.symbol}"})
        path.unlink(missing_ok=True)  # as linkers do: a library there may be loaded
        path.write_bytes(archive_of({file.name: file.read_bytes() for file in objects}))
        return []

    def file_name(self, network: Network) -> str:
        return network.archive_name


def _sources(pool: str) -> tuple[str, ...]:
    return tuple([*(f"src/{name}.c" for name in _BEFORE), pool, *(f"src/{name}.c" for name in _AFTER)])


ELF_FORMAT = LibraryFormat(_sources("src/pool.c"), (*_COMPILE, "-fPIC"), _LINK, "constants.S", _ASSEMBLY)
WASM_FORMAT = WasmFormat(
    _sources("wasm/pool.c"),
    (*_COMPILE, "-msimd128"),
    _LINK_WASM,
    "constants.c",
    _EMBEDDING,
    ("-x", "c", "-std=c23"),
)

ARCHIVE_FORMAT = ArchiveFormat(_sources("src/pool.c"), (*_COMPILE, "-fPIC", "-g0"), (), "constants.S", _ASSEMBLY_MACHO)


def format_of(compiler: Command) -> LibraryFormat:
    """Return the format of the libraries that a compiler links."""
    if compiler.makes_objects:
        return ARCHIVE_FORMAT
    return WASM_FORMAT if compiler.makes_wasm else ELF_FORMAT
