"""Compile and link for Android without the NDK, by zig's clang and lld and stubs of bionic's libraries.

A model library uses only a few functions of libc and libm, the agent some more (program.txt, objects.txt). So they are
compiled with headers of those (runtime/bionic), and linked against stub libraries with their names and versions but
without code; the phone's own libraries replace them. The native part of the Java class is built in the same way, with
jni.h of a JDK. Other programs, and C++, need the NDK.
Run as a program by compilers.py, with Python's standard library only, with the zig found there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCES = (".c", ".S", ".s")
_DROPPED = ("-fPIC", "-pthread", "-shared", "-pie")
_ARM = "arm-linux-eabi"
_ARITHMETIC = "arithmetic.a"
_PROGRAMS, _START = "programs", "start.o"
_ALIGNED = ("-z", "separate-loadable-segments")  # NDK's linker does so too: each segment on pages of its own


def make_stubs(folder: Path, zig: str, sources: Path, triple: str, api: str) -> None:
    """Write libc.so, libm.so, libdl.so and the objects linked into every library. Raises CalledProcessError."""
    (folder / "version.map").write_text("LIBC { global: *; };\n", encoding="ascii")
    (folder / _PROGRAMS).mkdir()
    for name in ("libc", "libm", "libdl"):
        _stub(folder, zig, triple, _names(sources / f"{name}.txt"), f"{name}.so")
    functions = [*_names(sources / "libc.txt"), *_names(sources / "program.txt")]
    _stub(folder, zig, triple, functions, f"{_PROGRAMS}/libc.so", _names(sources / "objects.txt"))
    _compile(zig, triple, [f"-DAPI={api}", str(sources / "note.S")], folder / "note.o")
    _compile(zig, triple, ["-O2", "-fPIE", "-fno-stack-protector", str(sources / "start.c")], folder / "start.o")
    options = ["-O2", "-fPIC", f"-isystem{sources / 'include'}", "-fvisibility=hidden", "-fno-stack-protector"]
    _compile(zig, triple, [*options, str(sources / "thread_local.c")], folder / "thread_local.o")
    if triple.startswith("arm-"):
        _make_arithmetic(zig, folder)


def _names(listed: Path) -> list[str]:
    return listed.read_text(encoding="ascii").split()


def _stub(
    folder: Path, zig: str, triple: str, functions: list[str], name: str, objects: list[str] | None = None
) -> None:
    """Write a library with these names and no code. objects: pointers."""
    lines = [".text", *(f".globl {one}\n.type {one},%function\n{one}:" for one in functions), ".long 0", ".data"]
    lines += [f".globl {one}\n.type {one},%object\n.size {one},8\n{one}: .quad 0" for one in objects or ()]
    text = "\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""])
    place = folder / name
    place.with_suffix(".S").write_text(text, encoding="ascii")
    _compile(zig, triple, [str(place.with_suffix(".S"))], place.with_suffix(".o"))
    version = f"--version-script={folder / 'version.map'}"
    _link(zig, ["-shared", "-soname", place.name, version, str(place.with_suffix(".o"))], place)


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
    elif "-shared" in options or "-pie" in options:
        _linked(zig, Path(stubs), triple, [include, *options])
    else:
        sys.exit("a program for Android has to be linked with -pie, as its system requires")


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
    subprocess.run([zig, "ld.lld", *options, "-o", str(to)], check=True)


def _linked(zig: str, stubs: Path, triple: str, options: list[str]) -> None:
    """Compile the sources and link a library, or with -pie a program."""
    libc, kind, begin = stubs / "libc.so", ["-shared"], list[str]()
    if "-pie" in options:
        loader = "/system/bin/linker" if triple.startswith("arm-") else "/system/bin/linker64"
        libc, kind, begin = stubs / _PROGRAMS / "libc.so", ["-pie", f"--dynamic-linker={loader}"], [str(stubs / _START)]
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
            elif word == "-s":
                link.append(word)
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
                *kind,
                *_ALIGNED,
                "--hash-style=gnu",
                *begin,
                *link,
                *own,
                "--as-needed",
                *map(str, (libc, stubs / "libm.so", stubs / "libdl.so")),
            ],
            to,
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
