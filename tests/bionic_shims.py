"""Build a libc.so, libm.so and libdl.so with bionic's names and versions over glibc, to run libraries for Android."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import REPOSITORY

BIONIC = REPOSITORY / "runtime" / "bionic"
PROGRAM = BIONIC / "program.txt"
# Jump to the address that lies OFFSET bytes into TABLE.
_JUMPS = {
    "x86_64": "mov TABLE@GOTPCREL(%rip), %r11\n jmp *OFFSET(%r11)",
    "aarch64": "adrp x16, :got:TABLE\n ldr x16, [x16, :got_lo12:TABLE]\n ldr x16, [x16, #OFFSET]\n br x16",
    "arm": (
        "ldr r12, 1f\n2: add r12, pc, r12\n ldr r12, [r12]\n ldr r12, [r12, #OFFSET]\n bx r12\n1: .long "
        "TABLE(GOT_PREL)-(2b+8)"
    ),
}


_GLIBC = {"libc": "libc.so.6", "libm": "libm.so.6", "libdl": "libdl.so.2"}
_SINCE = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17", "arm": "GLIBC_2.4"}  # glibc's own dlopen


def write_shims(folder: Path, architecture: str, compiler: Sequence[str]) -> None:
    """Write the libraries. compiler: of C for that architecture and glibc."""
    for library, glibc in _GLIBC.items():
        names, table = (BIONIC / f"{library}.txt").read_text().split(), f"shim_{library}"
        names += PROGRAM.read_text().split() if library == "libc" else []
        lines = ['.text\n.section .note.GNU-stack,"",%progbits\n.text']
        for at, name in enumerate(names):
            jump = (
                _JUMPS[architecture]
                .replace("TABLE", table)
                .replace("OFFSET", str((4 if architecture == "arm" else 8) * at))
            )
            lines.append(f".globl {name}\n.type {name},%function\n{name}: {jump}")
        (folder / f"{library}.s").write_text("\n".join(lines) + "\n")
        quoted = ", ".join(f'"{name}"' for name in names)
        (folder / f"{library}.h").write_text(
            f'#define TABLE {table}\n#define GLIBC "{glibc}"\n#define NAMES {quoted}\n'
            f'#define SINCE "{_SINCE[architecture]}"\n' + ("#define IS_LIBC\n" if library == "libc" else "")
        )
        (folder / f"{library}.map").write_text("LIBC { global: *; };\n")
        options = [
            "-shared",
            "-fPIC",
            "-O1",
            "-fno-builtin",
            f"-Wl,-soname,{library}.so",
            f"-Wl,--version-script={folder / library}.map",
        ]
        sources = ["-include", str(folder / f"{library}.h"), str(Path(__file__).with_suffix(".c"))]
        compiled = [[*compiler, "-fPIC", "-O1", "-fno-builtin", *sources, "-c", "-o", str(folder / f"{library}.o")]]
        compiled += [
            [
                *compiler,
                *options,
                "-o",
                str(folder / f"{library}.so"),
                str(folder / f"{library}.o"),
                str(folder / f"{library}.s"),
                "-ldl",
            ]
        ]
        for command in compiled:
            subprocess.run(command, check=True)
