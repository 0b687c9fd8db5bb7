"""Test the flags for Android's NDK with a real clang and lld that have Android's triples: Debian's.

The folder has the layout of an NDK; its libraries are the stubs of bionic. What a loader reads of such a library equals
what zig links, and a library of x86-64 computes the same here.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from tests.bionic_shims import BIONIC, write_shims
from tests.bundle_parts import small_scheduled
from tests.conftest import REPOSITORY
from tests.shipping.test_bionic_stubs import NETWORK, _level, _symbols
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.shipping.bundle.abis import ABIS
from tvmflow.shipping.bundle.elf import check_shared_object, versions_of
from tvmflow.support.errors import ToolchainError
from tvmflow.toolchain.compilers import Command, compiler_for, compiler_named
from tvmflow.toolchain.triples import triple_of

CASES = [
    ("aarch64-linux-android", "cortex-a53", "arm64-v8a"),
    ("armv7a-linux-androideabi", "cortex-a8", "armeabi-v7a"),
    ("x86_64-linux-android29", "x86-64-v2", "x86_64"),
]

pytestmark = pytest.mark.skipif(
    shutil.which("clang") is None or shutil.which("ld.lld") is None,
    reason="needs Debian's clang: apt-get install clang lld",
)


def _stubs(mtriple: str) -> Command:
    try:
        return compiler_named("bionic-stubs").command(mtriple)
    except ToolchainError as error:
        pytest.skip(f"needs zig: {error}")


def _write_ndk(folder: Path, mtriple: str) -> Path:
    """Write the parts of an NDK that a library of that triple needs; its clang is the one on PATH."""
    triple, stubs = triple_of(mtriple), Path(_stubs(mtriple).words[-3])
    name = f"{triple.architecture}-linux-{triple.ending}{triple.level}"
    system, sysroot = folder / "toolchains" / "llvm" / "prebuilt" / f"linux-{platform.machine()}", folder / "sysroot"
    (system / "bin").mkdir(parents=True)
    libraries = sysroot / "usr" / "lib"
    libraries.mkdir(parents=True)
    shutil.copytree(BIONIC / "include", sysroot / "usr" / "include")
    for library in ("libc.so", "libm.so", "libdl.so"):
        shutil.copy(stubs / library, libraries)
    shutil.copy(stubs / "note.o", libraries / "crtbegin_so.o")
    (folder / "empty.c").write_text("\n")
    target = [f"--target={name}", f"--sysroot={sysroot}", f"-B{libraries}"]
    subprocess.run(["clang", *target, "-c", str(folder / "empty.c"), "-o", str(libraries / "crtend_so.o")], check=True)
    zig = _stubs(mtriple).words[-4]
    subprocess.run([zig, "ar", "rcs", str(libraries / "thread_local.a"), str(stubs / "thread_local.o")], check=True)
    if (stubs / "arithmetic.a").exists():
        shutil.copy(stubs / "arithmetic.a", libraries)
    inputs = " ".join(f"/usr/lib/{file.name}" for file in sorted(libraries.glob("*.a")))
    (libraries / "libgcc.a").write_text(f"INPUT({inputs})\n")  # a linker script, as libraries may be
    clang = system / "bin" / f"{name}-clang"
    clang.write_text(f'#!/bin/sh\nexec clang {shlex.join(target)} "$@"\n')
    (libraries / "ld").write_text('#!/bin/sh\nexec ld.lld "$@"\n')  # -fuse-ld would be unused without a link
    for program in (clang, libraries / "ld"):
        program.chmod(0o755)
    (folder / "source.properties").write_text("Pkg.Desc = Android NDK\nPkg.Revision = 27.2.12479018\n")
    return folder


def _alignments(path: Path) -> set[int]:
    with path.open("rb") as file:
        return {part["p_align"] for part in ELFFile(file).iter_segments("PT_LOAD")}


@pytest.mark.parametrize(("mtriple", "mcpu", "abi"), CASES)
def test_a_library_of_the_ndk_equals_one_of_zig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mtriple: str, mcpu: str, abi: str
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(_write_ndk(tmp_path / "ndk", mtriple)))
    assert compiler_for(mtriple) == "ndk"
    scheduled, ndk, zig = small_scheduled(mcpu, mtriple), tmp_path / "ndk.so", tmp_path / "zig.so"
    write_network(ndk, scheduled, NETWORK, compiler_named("ndk").command(mtriple))
    write_network(zig, scheduled, NETWORK, _stubs(mtriple))
    found, expected = (check_shared_object(one, ABIS[abi], NETWORK.soname, NETWORK.symbol) for one in (ndk, zig))
    assert set(found["needed"]) == set(expected["needed"]) and versions_of(ndk) == versions_of(zig) == ("LIBC",)
    assert _level(ndk) == _level(zig) and _alignments(ndk) == _alignments(zig) == {0x4000}
    assert _symbols(ndk)[1] == _symbols(zig)[1] and _symbols(ndk)[0] <= set(ABIS[abi].symbols)
    again = tmp_path / "again.so"
    write_network(again, scheduled, NETWORK, compiler_named("ndk").command(mtriple))
    assert again.read_bytes() == ndk.read_bytes(), "the same bytes each time"
    if abi == "x86_64" and platform.machine() == "x86_64":
        _check_outputs(tmp_path, ndk)


def _check_outputs(folder: Path, library: Path) -> None:
    write_shims(folder, "x86_64", ["gcc"])
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12), dtype=np.float32)
    np.save(folder / "x.npy", x)
    code = (
        "import sys, numpy as np; from tvmflow.codegen.network.opened_network import OpenedNetwork\n"
        "np.save(sys.argv[3], OpenedNetwork(sys.argv[1], 2).run(np.load(sys.argv[2]))[0])\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(REPOSITORY)}
    arguments = [str(library), str(folder / "x.npy"), str(folder / "y.npy")]
    subprocess.run([sys.executable, "-c", code, *arguments], env=environment, check=True)
    write_network(folder / "here.so", small_scheduled("x86-64-v2", "x86_64-linux-gnu"), NETWORK, Command(("gcc",)))
    assert np.array_equal(np.load(folder / "y.npy"), OpenedNetwork(folder / "here.so", 2).run(x)[0])
