"""Test what is linked with stubs of bionic: all that a loader reads is as from an NDK, and outputs are equal.

The library and the agent of x86-64 run here, on a libc.so that gives bionic's names to glibc's functions: their code,
variables of threads, numbers for sysconf. What only a phone can tell, bionic's own loader and functions, is tested
nowhere.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from tests.bionic_shims import BIONIC, write_shims
from tests.bundle_parts import CELL, LABELS, SPEC, small_part, small_scheduled, written
from tests.conftest import REPOSITORY
from tests.devices.agents import opened, session_with
from tests.shipping.conftest import REQUEST
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import link_rpc, write_network
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.programs import build_agent
from tvmflow.shipping.bundle.aar import write_aar
from tvmflow.shipping.bundle.abis import ABIS
from tvmflow.shipping.bundle.elf import check_shared_object, versions_of
from tvmflow.shipping.bundle.signing import KeyPair, signing_key
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.support.errors import StageError, ToolchainError
from tvmflow.toolchain.compilers import Command, compiler_for, compiler_named

NETWORK = Network(CELL, (SPEC,), ("scores",), 2, LABELS)


@pytest.fixture(scope="module")
def compiler() -> Command:
    try:
        return compiler_named("bionic-stubs").command("x86_64-linux-android")
    except ToolchainError as error:
        pytest.skip(f"needs zig: {error}")


def _symbols(path: Path) -> tuple[set[str], set[str]]:
    with path.open("rb") as file:
        found = list(ELFFile(file).get_section_by_name(".dynsym").iter_symbols())
        undefined = {one.name for one in found if one.name and one["st_shndx"] == "SHN_UNDEF"}
        return undefined, {one.name for one in found if one.name} - undefined


def _level(path: Path) -> int:
    with path.open("rb") as file:
        [note] = [note for part in ELFFile(file).iter_segments("PT_NOTE") for note in part.iter_notes()]
        assert note["n_name"] == "Android" and note["n_type"] in (1, "NT_GNU_ABI_TAG")  # which is 1 in a note of GNU's
        return int.from_bytes(note["n_descdata"][:4], "little")


@pytest.mark.parametrize(
    ("mtriple", "mcpu", "abi"),
    [
        ("aarch64-linux-android", "cortex-a53", "arm64-v8a"),
        ("x86_64-linux-android29", "x86-64-v2", "x86_64"),
        ("armv7a-linux-androideabi", "cortex-a8", "armeabi-v7a"),
    ],
)
def test_what_a_loader_looks_at(compiler: Command, tmp_path: Path, mtriple: str, mcpu: str, abi: str) -> None:
    path = tmp_path / "network.so"
    write_network(path, small_scheduled(mcpu, mtriple), NETWORK, compiler_named("bionic-stubs").command(mtriple))
    facts = check_shared_object(path, ABIS[abi], NETWORK.soname, NETWORK.symbol)
    assert set(facts["needed"]) <= {"libc.so", "libm.so"} and "libc.so" in facts["needed"]
    assert versions_of(path) == ("LIBC",) and _level(path) == (29 if mtriple.endswith("29") else 24)
    again = tmp_path / "again.so"
    write_network(again, small_scheduled(mcpu, mtriple), NETWORK, compiler_named("bionic-stubs").command(mtriple))
    assert again.read_bytes() == path.read_bytes()
    server = tmp_path / "rpc.so"
    link_rpc(server, compiler_named("bionic-stubs").command(mtriple))
    assert _symbols(server)[0] <= {name for file in BIONIC.glob("*.txt") for name in file.read_text().split()}


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK: apt-get install openjdk-17-jdk-headless")
def test_an_app_library_for_phones_of_64_and_of_32_bits(
    compiler: Command, keys: KeyPair, trust: Trust, tmp_path: Path
) -> None:
    """Without an NDK: the native part of the class is compiled with the JDK's jni.h."""
    phones = {
        "arm64-v8a": ("aarch64-linux-android", "cortex-a53"),
        "armeabi-v7a": ("armv7a-linux-androideabi", "cortex-a8"),
    }
    parts = []
    for abi, (mtriple, mcpu) in phones.items():
        made = small_part(tmp_path / abi)
        network = replace(NETWORK, cell=f"small@{mcpu}:float32")
        command = compiler_named("bionic-stubs").command(mtriple)
        built = write_network(tmp_path / abi / "build" / "network.so", small_scheduled(mcpu, mtriple), network, command)
        target = replace(made.manifest.target, mtriple=mtriple, mcpu=mcpu, mattr=(), cc="bionic-stubs")
        parts.append(replace(written(tmp_path / abi, built, target, LABELS), cell=network.cell))
    path, manifest = write_aar(tmp_path / "maven", parts, REQUEST, signing_key(keys.private))
    assert sorted(manifest.abis) == sorted(phones)
    assert {one.abi for one in verify(path, trust).libraries} == set(phones)
    [runtime] = (tmp_path / "maven").glob("tvmflow/tvmflow-runtime/*/*.aar")
    with zipfile.ZipFile(path) as model, zipfile.ZipFile(runtime) as shared:
        for abi, bits in (("arm64-v8a", 64), ("armeabi-v7a", 32)):
            soname = next(one.soname for one in manifest.libraries if one.abi == abi)
            for name, archive in ((soname, model), ("libtvmflow_jni.so", shared)):
                elf = ELFFile(io.BytesIO(archive.read(f"jni/{abi}/{name}")))
                assert elf.elfclass == bits and elf.get_machine_arch() == {64: "AArch64", 32: "ARM"}[bits]


def test_stubs_offer_no_more_than_a_bundle_may_ask_for() -> None:
    offered = {name for file in ("libc.txt", "libm.txt") for name in (BIONIC / file).read_text().split()}
    of_rpc = {"getenv", "syscall", "opendir", "readdir", "closedir", "getrusage", "sched_setaffinity"}
    of_rpc |= {"sem_init", "sem_destroy", "sem_post", "sem_wait"}
    assert offered - of_rpc <= ABIS["arm64-v8a"].with_gpu.symbols, "those of rpc.so, which no bundle has"


def test_the_library_of_x86_64_computes_here(compiler: Command, tmp_path: Path) -> None:
    scheduled = small_scheduled()
    for name, one in (("android.so", compiler), ("here.so", Command(("gcc",)))):
        write_network(tmp_path / name, scheduled, NETWORK, one)
    assert "__tls_get_addr" not in _symbols(tmp_path / "android.so")[0], "Android 7 has no variables of threads"
    write_shims(tmp_path, "x86_64", ["gcc"])
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, threading, numpy as np; from tvmflow.codegen.network.opened_network import OpenedNetwork\n"
        "network, x, found = OpenedNetwork(sys.argv[1] + '/android.so', 2), np.load(sys.argv[1] + '/x.npy'), []\n"
        "threads = [threading.Thread(target=lambda: found.append(network.run(x)[0])) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; np.save(sys.argv[1] + '/y.npy', np.stack(found))\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = OpenedNetwork(tmp_path / "here.so", 2).run(x)[0]
    for found in np.load(tmp_path / "y.npy"):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("mtriple", "loader", "machine"),
    [
        ("x86_64-linux-android", "/system/bin/linker64", "x64"),
        pytest.param("aarch64-linux-android", "/system/bin/linker64", "AArch64", marks=pytest.mark.slow),
        pytest.param("armv7a-linux-androideabi", "/system/bin/linker", "ARM", marks=pytest.mark.slow),
    ],
)
def test_what_a_loader_looks_at_of_the_agent(
    compiler: Command, tmp_path: Path, mtriple: str, loader: str, machine: str
) -> None:
    path = build_agent(tmp_path / "agent", compiler_named("bionic-stubs").command(mtriple).words)
    with path.open("rb") as file:
        elf = ELFFile(file)
        assert elf.get_machine_arch() == machine and elf["e_type"] == "ET_DYN" and elf["e_entry"]
        [interpreter] = elf.iter_segments("PT_INTERP")
        assert interpreter.get_interp_name() == loader
        loaded = list(elf.iter_segments("PT_LOAD"))
        assert all(one["p_align"] == 16384 and one["p_vaddr"] % 16384 == one["p_offset"] % 16384 for one in loaded)
        assert not [one for one in loaded if one["p_flags"] & 3 == 3], "no page is writable and executable"
        assert not list(elf.iter_segments("PT_TLS")), "Android 7 has no variables of threads"
        tags = {tag.entry.d_tag: tag for tag in elf.get_section_by_name(".dynamic").iter_tags()}
        needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    assert needed == {"libc.so", "libdl.so"} and not {"DT_TEXTREL", "DT_RUNPATH", "DT_RPATH"} & set(tags)
    assert tags["DT_FLAGS_1"].entry.d_val & 0x8000000, "PIE, which Android requires"
    assert versions_of(path) == ("LIBC",) and _level(path) == 24
    offered = [BIONIC / f"{name}.txt" for name in ("libc", "libdl", "program", "objects")]
    asked = _symbols(path)[0]
    assert "__libc_init" in asked and asked <= {name for file in offered for name in file.read_text().split()}


def test_the_agent_for_android_runs_a_library_for_android_here(compiler: Command, tmp_path: Path) -> None:
    """Both on glibc under bionic's names: start, numbers of errors, files, processes, messages, outputs."""
    program = build_agent(tmp_path / "agent", compiler.words)
    write_shims(tmp_path, "x86_64", ["gcc"])
    scheduled = small_scheduled()
    for name, one in (("android.so", compiler), ("here.so", Command(("gcc",)))):
        write_network(tmp_path / name, scheduled, NETWORK, one)
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12), dtype=np.float32)
    loader = ["/lib64/ld-linux-x86-64.so.2", "--library-path", str(tmp_path)]
    with start_agent([*loader, str(program)], str(tmp_path / "store")) as agent, session_with(agent) as session:
        facts = session.probe()
        assert facts["machine"] == "x86_64" and facts["online"] == os.cpu_count()
        assert facts["disk_free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
        network = opened(session, tmp_path / "android.so")
        assert np.array_equal(network.run(x)[0], OpenedNetwork(tmp_path / "here.so", 2).run(x)[0])
        assert all(seconds > 0 for seconds in network.time_runs(2))
        (tmp_path / "none.so").write_text("no library at all")
        with pytest.raises(StageError, match="the file is no library"):
            opened(session, tmp_path / "none.so")
        uploaded = session.upload(tmp_path / "android.so")
        assert uploaded == session.upload(tmp_path / "android.so"), "it is there"


def test_another_program_is_refused(compiler: Command, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int main(void) { return 0; }")
    done = subprocess.run(
        [*compiler.words, str(tmp_path / "main.c"), "-o", str(tmp_path / "main")], capture_output=True, check=False
    )
    assert done.returncode and b"has to be linked with -pie" in done.stderr


def test_it_is_chosen_where_there_is_no_ndk(compiler: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    assert compiler_for("aarch64-linux-android") == "bionic-stubs"
    monkeypatch.setenv("ANDROID_NDK_HOME", "/somewhere")
    assert compiler_for("aarch64-linux-android") == "ndk"
    with pytest.raises(ToolchainError, match="no stubs for"):
        compiler_named("bionic-stubs").command("aarch64-linux-gnu")
