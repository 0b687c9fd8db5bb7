"""Compile and link libraries for Android without the NDK, by zig's clang and lld and stubs of bionic's libraries.

A model library uses only a few functions of libc and libm. So it is compiled with headers of those (runtime/bionic),
and linked against stub libraries with their names and versions but without code; the phone's own libraries replace
them. The native part of the Java class is built in the same way, with jni.h of a JDK. Programs and C++ need the NDK.
Run as a program by compilers.py, with Python's standard library only, with the zig found there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCES = (".c", ".S", ".s")
_DROPPED = ("-fPIC", "-pthread", "-shared")
_ARM = "arm-linux-eabi"
_ARITHMETIC = "arithmetic.a"
_ALIGNED = ("-z", "separate-loadable-segments")  # NDK's linker does so too: each segment on pages of its own


def make_stubs(folder: Path, zig: str, sources: Path, triple: str, api: str) -> None:
    """Write libc.so, libm.so, libdl.so and the objects linked into every library. Raises CalledProcessError."""
    (folder / "version.map").write_text("LIBC { global: *; };\n", encoding="ascii")
    for name in ("libc", "libm", "libdl"):
        listed = sources / f"{name}.txt"
        symbols = listed.read_text(encoding="ascii").split() if listed.exists() else []
        lines = [f".globl {one}\n.type {one},%function\n{one}:" for one in symbols]
        text = ".text\n" + "\n".join(lines) + '\n.long 0\n.section .note.GNU-stack,"",%progbits\n'
        (folder / f"{name}.S").write_text(text, encoding="ascii")
        _compile(zig, triple, [str(folder / f"{name}.S")], folder / f"{name}.o")
        _link(
            zig,
            ["-soname", f"{name}.so", f"--version-script={folder / 'version.map'}", str(folder / f"{name}.o")],
            folder / f"{name}.so",
        )
    _compile(zig, triple, [f"-DAPI={api}", str(sources / "note.S")], folder / "note.o")
    options = ["-O2", "-fPIC", f"-isystem{sources / 'include'}", "-fvisibility=hidden", "-fno-stack-protector"]
    _compile(zig, triple, [*options, str(sources / "thread_local.c")], folder / "thread_local.o")
    if triple.startswith("arm-"):
        _make_arithmetic(zig, folder)


def _make_arithmetic(zig: str, folder: Path) -> None:
    """Write the compiler runtime of 32-bit Arm: divisions, 64-bit operations, 16-bit floats; and the stack protector's
    end.
    """
    (folder / "empty.c").write_text("\n", encoding="ascii")
    made = ["-target", _ARM, "-fcompiler-rt", "-O", "ReleaseFast", "-fPIC", "-fstrip"]
    subprocess.run([zig, "build-lib", str(folder / "empty.c"), *made, f"-femit-bin={folder / _ARITHMETIC}"], check=True)


def main(arguments: list[str]) -> None:
    """Act as a compiler with these options. Before them: zig, the folders of stubs and headers, triple and API
    level.
    """
    if arguments[0] == "--stubs":
        make_stubs(Path(arguments[1]), arguments[2], Path(arguments[3]), *arguments[4:6])
        return
    zig, stubs, headers, triple, *options = arguments
    include = f"-isystem{headers}"
    if "-c" in options:
        _compile(zig, triple, [include, *(word for word in options if word != "-c")], None)
    elif "-shared" in options:
        _library(zig, Path(stubs), triple, [include, *options])
    else:
        sys.exit("a program for Android needs its NDK: set ANDROID_NDK_HOME")


def _compile(zig: str, triple: str, options: list[str], to: Path | None) -> None:
    out = [] if to is None else ["-o", str(to)]
    # Nothing that a library of the compiler's would have to bring, or that bionic has from some version on only: for
    # Android itself clang calls functions for atomics, which zig cannot turn off.
    architecture, _, api = triple.partition("-linux-android.")
    own = ["-nostdlib", "-femulated-tls", "-D__ANDROID__=1", f"-D__ANDROID_API__={api}"]
    # armeabi-v7a gives floats to functions in registers of integers, and computes with its vectors.
    target = (
        [_ARM, "-mfloat-abi=softfp", "-fno-unwind-tables"] if architecture == "arm" else [f"{architecture}-linux-none"]
    )
    subprocess.run([zig, "cc", "-target", *target, *own, "-c", *options, *out], check=True)


def _link(zig: str, options: list[str], to: Path) -> None:
    subprocess.run([zig, "ld.lld", "-shared", *options, "-o", str(to)], check=True)


def _library(zig: str, stubs: Path, triple: str, options: list[str]) -> None:
    """Compile the sources and link."""
    with tempfile.TemporaryDirectory() as name:
        objects, link, compile_with, to = [], list[str](), list[str](), Path("a.out")
        words = iter(options)
        for word in words:
            if word == "-o":
                to = Path(next(words))
            elif word == "-x":
                next(words)  # a language: files say what they are
            elif word.startswith("-Wl,"):
                link += word.split(",")[1:]
            elif word.endswith(_SOURCES):
                objects.append(word)
            elif word.startswith(("-l", "-L")) or word in _DROPPED:
                continue
            elif word.startswith("-"):
                compile_with.append(word)
            else:
                link.append(word)
        for at, source in enumerate(objects):
            made = Path(name) / f"{at}.o"
            _compile(zig, triple, ["-fPIC", *compile_with, source], made)
            link.append(str(made))
        own = [str(stubs / file) for file in ("note.o", "thread_local.o", _ARITHMETIC) if (stubs / file).exists()]
        _link(
            zig,
            [
                *_ALIGNED,
                "--hash-style=gnu",
                *link,
                *own,
                "--as-needed",
                *(str(stubs / f"{lib}.so") for lib in ("libc", "libm", "libdl")),
            ],
            to,
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
