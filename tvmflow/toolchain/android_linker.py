"""A compiler and linker of model libraries for Android without its NDK: clang and lld of zig, and stubs for bionic's
libraries.

A model library asks for a few functions of libc and libm alone. So it is compiled with headers of those
(runtime/bionic), and linked against libraries that have their names and versions and no code; the phone's own take
their place. So is the native part of the class in Java, with jni.h of a JDK. Nothing else can be made with this:
programs and C++ need the NDK. Run as a program by compilers.py, with nothing imported but Python's own; zig is found by
that.
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
    """Write libc.so, libm.so, libdl.so and the objects that every library gets. Raises CalledProcessError."""
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
    """Write the functions that compilers for 32-bit Arm call: divisions, 64 bits, 16-bit floats; and the end of a
    stack.
    """
    (folder / "empty.c").write_text("\n", encoding="ascii")
    made = ["-target", _ARM, "-fcompiler-rt", "-O", "ReleaseFast", "-fPIC", "-fstrip"]
    subprocess.run([zig, "build-lib", str(folder / "empty.c"), *made, f"-femit-bin={folder / _ARITHMETIC}"], check=True)


def main(arguments: list[str]) -> None:
    """Do what a compiler does with these options. In front of them: zig, the folder of the stubs, that of the headers,
    triple and API level.
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
    """Compile what is a source, and link."""
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
