"""Test the choice of the compiler for each target, its command line, and the message if it is missing."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tvmflow.setup.doctor import examine
from tvmflow.support.errors import ToolchainError
from tvmflow.toolchain.compilers import COMPILERS, compiler_for, compiler_named

ARM64, ANDROID = "aarch64-linux-gnu", "aarch64-linux-android"


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmflow.toolchain.compilers._zig", lambda: None)


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho 'a compiler 1.2'\n")
    path.chmod(0o755)
    return path


def test_without_a_name_it_is_what_is_there(no_programs: Path, no_zig: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler_for(f"{platform.machine()}-linux-gnu") == "g++"
    assert compiler_for(f"{ANDROID}29") == "ndk"
    assert compiler_for("riscv64-linux-gnu") == "riscv64-linux-gnu-g++"
    with pytest.raises(ToolchainError) as caught:
        compiler_named(compiler_for("riscv64-linux-gnu")).command("riscv64-linux-gnu")
    assert "apt-get install g++-riscv64-linux-gnu" in caught.value.hint and "cc: zig" in caught.value.hint
    monkeypatch.setattr("tvmflow.toolchain.compilers._zig", lambda: "/a/zig")
    assert compiler_for("riscv64-linux-gnu") == "zig"
    program(no_programs / "riscv64-linux-gnu-g++")
    assert compiler_for("riscv64-linux-gnu") == "riscv64-linux-gnu-g++"


def test_32_bit_arm_has_names_of_its_own(no_programs: Path, no_zig: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each maker of compilers names it in another way."""
    linux, android = "armv7a-linux-gnueabihf", "armv7a-linux-androideabi"
    assert compiler_for(linux) == "arm-linux-gnueabihf-g++" and compiler_for(android) == "ndk"
    with pytest.raises(ToolchainError) as caught:
        compiler_named("arm-linux-gnueabihf-g++").command(linux)
    assert "apt-get install g++-arm-linux-gnueabihf" in caught.value.hint and "cc: zig" in caught.value.hint
    program(no_programs / "arm-linux-gnueabihf-g++")
    assert compiler_named("arm-linux-gnueabihf-g++").command(linux).words[-1] == "-static-libgcc"
    clang = f"toolchains/llvm/prebuilt/linux-{platform.machine()}/bin/armv7a-linux-androideabi26-clang"
    program(no_programs / "ndk" / clang)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(no_programs / "ndk"))
    assert COMPILERS["ndk"].command(f"{android}26").words == (str(no_programs / "ndk" / clang),)
    monkeypatch.setattr("tvmflow.toolchain.compilers._zig", lambda: "/a/zig")
    assert COMPILERS["zig"].command(linux).words[-2:] == ("-target", "arm-linux-gnueabihf.2.28")
    with pytest.raises(ToolchainError, match="zig has no system libraries"):
        COMPILERS["zig"].command(android)


def test_zig_serves_linux_and_not_android(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmflow.toolchain.compilers._zig", lambda: "/a/zig")
    line = COMPILERS["zig"].command("aarch64-unknown-linux-gnu").line("-Wl,-z,text", "-Wl,-z,now")
    assert line[-5:] == ["/a/zig", "cc", "-target", "aarch64-linux-gnu.2.28", "-Wl,-z,now"]
    assert "aarch64-linux-musl" in COMPILERS["zig"].command("aarch64-linux-musl").words
    with pytest.raises(ToolchainError, match="zig has no system libraries") as caught:
        COMPILERS["zig"].command(ANDROID)
    assert "ANDROID_NDK_HOME" in caught.value.hint


def test_zig_that_is_not_installed(no_zig: None) -> None:
    with pytest.raises(ToolchainError) as caught:
        COMPILERS["zig"].command(ARM64)
    assert "tvmflow[arm64]" in caught.value.hint and COMPILERS["zig"].version() == "absent"


def test_the_ndk_is_where_its_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with an NDK's files: none of Google's was at hand."""
    ndk = COMPILERS["ndk"]
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    assert ndk.version() == "absent"
    with pytest.raises(ToolchainError, match="ANDROID_NDK_HOME is not set"):
        ndk.command(ANDROID)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match="no aarch64-linux-android24-clang in the NDK"):
        ndk.command(ANDROID)
    (tmp_path / "source.properties").write_text("Pkg.Desc = Android NDK\nPkg.Revision = 27.2.12479018\n")
    folder = tmp_path / "toolchains" / "llvm" / "prebuilt" / f"linux-{platform.machine()}" / "bin"
    for level in ("24", "31"):
        program(folder / f"aarch64-linux-android{level}-clang")
    assert ndk.version() == "NDK 27.2.12479018"
    assert ndk.command(ANDROID).words == (str(folder / "aarch64-linux-android24-clang"),)
    assert ndk.command(f"{ANDROID}31").words == (str(folder / "aarch64-linux-android31-clang"),)
    with pytest.raises(ToolchainError, match="the NDK has no libraries"):
        ndk.command(ARM64)


def test_a_program_says_its_version_and_a_missing_one_how_to_get_it(no_programs: Path) -> None:
    path = program(no_programs / "my-cc")
    assert compiler_named(str(path)).version() == "a compiler 1.2"
    assert compiler_named("aarch64-linux-gnu-g++").version() == "absent"


def test_doctor_says_what_a_target_lacks(make_workspace: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def android(params: dict[str, dict[str, dict[str, object]]]) -> None:
        board = params["targets"]["rk3399"]
        phone = board | {"mtriple": ANDROID, "cc": "ndk"}
        params["targets"] = {
            "board": board,
            "phone": phone,
            "old": board | {"cc": "none-g++"},
            "stubs": board | {"mtriple": ANDROID},
        }
        params["cells"] = {}

    assert callable(make_workspace)
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    found = {finding.what: finding for finding in examine(make_workspace(android))}
    assert "ANDROID_NDK_HOME is not set" in found["compiler of phone"].found
    assert found["compiler of old"].level == "warning" and "none-g++" in found["compiler of old"].found
    assert found["compiler of board"].level == "ok" and "stubs" in found["compiler of stubs"].found
