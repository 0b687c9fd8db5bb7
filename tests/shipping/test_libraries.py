"""Test shared objects that bundles reject: each fault compiled into one and named, and misbehaviour at run time."""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bundle_parts import CELL, copy_of
from tests.shipping.conftest import REQUEST
from tvmflow.config.buckets import Sizes
from tvmflow.shipping.bundle.abis import ABIS, Abi, abi_of
from tvmflow.shipping.bundle.elf import check_shared_object
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.shipping.bundle.write import write_bundle
from tvmflow.support.errors import BundleError
from tvmflow.support.files import save_arrays
from tvmflow.support.json_values import write_json

SONAME, SYMBOL = "libx.so", "tvmflow_network_x"
SOURCE = "int tvmflow_network(void) { return 0; }\nint tvmflow_network_x(void) { return 0; }\n"
PAGES = ("-Wl,-z,max-page-size=16384", "-Wl,-z,common-page-size=16384")


@pytest.fixture(scope="module")
def abi(part: Part) -> Abi:
    return abi_of(part.manifest.target.mtriple)


def _compiled(folder: Path, *options: str, more: str = "", soname: str = SONAME) -> Path:
    source, path = folder / "x.c", folder / "x.so"
    source.write_text(SOURCE + more)
    name = [f"-Wl,-soname,{soname}"] if soname else []
    subprocess.run(
        ["gcc", "-shared", "-fPIC", *PAGES, *name, "-o", str(path), str(source), *options],
        check=True,
        capture_output=True,
    )
    return path


def test_a_library_that_is_well(tmp_path: Path, abi: Abi) -> None:
    path = _compiled(
        tmp_path,
        "-lm",
        more='float expf(float); __attribute__((visibility("hidden"))) float f(float x) { return expf(x); }',
    )
    facts = check_shared_object(path, abi, SONAME, SYMBOL)
    assert set(facts["needed"]) <= {"libc.so.6", "libm.so.6"} and "expf" in facts["undefined"]


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        (["-Wl,--no-as-needed", "-lutil", "-ldl", "-l:libgcc_s.so.1"], "", "needs the libraries .*libgcc_s.so.1"),
        ([], 'int system(const char *); int g(void) { return system("id"); }', "imports the functions system"),
        (
            [],
            "int execve(); int connect(); int g(void) { return execve() + connect(); }",
            "imports the functions connect, execve",
        ),
        (["-Wl,-rpath,/tmp/x"], "", "has library search paths .DT_RUNPATH"),
        (["-Wl,-rpath,/tmp/x", "-Wl,--disable-new-dtags"], "", "has library search paths .DT_RPATH"),
        (["-Wl,-z,execstack"], "", "requests an executable stack"),
        ([], "int more(void) { return 1; }", "exports more"),
        (["-Wl,--version-script=v.map"], "", "exports tvmflow_network"),
        (["-Wl,--dynamic-list=d.list", "-Wl,-z,initfirst", "-Wl,-z,interpose"], "", None),
        (["-Wl,--auxiliary,libevil.so"], "", "entries of the kind DT_AUXILIARY"),
        (["-Wl,-F,libevil.so"], "", "entries of the kind DT_FILTER"),
        (["-Wl,--audit=libevil.so"], "", "entries of the kind DT_AUDIT"),
    ],
)
def test_faulty_libraries(tmp_path: Path, abi: Abi, options: list[str], more: str, said: str | None) -> None:
    (tmp_path / "v.map").write_text("{ global: tvmflow_network; local: *; };")
    (tmp_path / "d.list").write_text("{ tvmflow_network; tvmflow_network_x; };")
    path = _compiled(
        tmp_path,
        *(
            option.replace("=v.map", f"={tmp_path}/v.map").replace("=d.list", f"={tmp_path}/d.list")
            for option in options
        ),
        more=more,
    )
    with pytest.raises(BundleError, match=said or "has the flags DT_FLAGS_1") as error:
        check_shared_object(path, abi, SONAME, SYMBOL)
    assert error.value.found.startswith(SONAME) and error.value.expected


@pytest.mark.parametrize(
    ("soname", "said"), [("libother.so", "its SONAME is libother.so"), ("", "its SONAME is missing")]
)
def test_another_soname(tmp_path: Path, abi: Abi, soname: str, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        check_shared_object(_compiled(tmp_path, soname=soname), abi, SONAME, SYMBOL)


def test_text_relocations(tmp_path: Path, abi: Abi) -> None:
    if abi.architecture != "x86_64":
        pytest.skip("needs x86-64, where an absolute address in code is a relocation of it")
    (tmp_path / "y.s").write_text(
        ".text\n.globl tvmflow_network, tvmflow_network_x\ntvmflow_network:\ntvmflow_network_x:\n"
        'movabs $tvmflow_network, %rax\nret\n.section .note.GNU-stack,""\n'
    )
    command = [
        "gcc",
        "-shared",
        "-nostdlib",
        "-Wl,-z,notext",
        *PAGES,
        f"-Wl,-soname,{SONAME}",
        "-o",
        str(tmp_path / "y.so"),
        str(tmp_path / "y.s"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(BundleError, match="has text relocations"):
        check_shared_object(tmp_path / "y.so", abi, SONAME, SYMBOL)


def test_segments_must_fit_the_pages_of_android(tmp_path: Path, abi: Abi) -> None:
    android = next(one for one in ABIS.values() if one.system == "android" and one.architecture == abi.architecture)
    path = _compiled(tmp_path, "-Wl,-z,max-page-size=4096", "-Wl,-z,common-page-size=4096", "-nostdlib")
    with pytest.raises(BundleError, match="a segment aligned to 4096 bytes"):
        check_shared_object(path, android, SONAME, SYMBOL)
    assert check_shared_object(_compiled(tmp_path, "-nostdlib"), android, SONAME, SYMBOL)["needed"] == []


def test_another_processor_and_another_kind_of_file(tmp_path: Path, abi: Abi) -> None:
    other = next(one for one in ABIS.values() if one.architecture != abi.architecture)
    with pytest.raises(BundleError, match="a file of 64 bits for"):
        check_shared_object(_compiled(tmp_path), other, SONAME, SYMBOL)
    (tmp_path / "x.o").write_bytes(b"")
    subprocess.run(["gcc", "-c", "-o", str(tmp_path / "x.o"), str(tmp_path / "x.c")], check=True)
    with pytest.raises(BundleError, match="type ET_REL"):
        check_shared_object(tmp_path / "x.o", abi, SONAME, SYMBOL)


def test_damaged_libraries_are_one_error(tmp_path: Path, abi: Abi) -> None:
    """Whatever is altered, it is a library that is well or one error."""
    whole, draw, refused = _compiled(tmp_path).read_bytes(), random.Random(0), 0
    for turn in range(300):
        data = bytearray(whole)
        for _ in range(3):
            data[draw.randrange(len(data) if turn % 2 else 1024)] = draw.randrange(256)
        (tmp_path / "y.so").write_bytes(data[: draw.randrange(len(data))] if turn % 10 == 0 else data)
        try:
            check_shared_object(tmp_path / "y.so", abi, SONAME, SYMBOL)
        except BundleError:
            refused += 1
    assert refused > 50


def _changed(part: Part, folder: Path, trust_none: Trust, said: str) -> None:
    write_bundle(folder / "b.zip", [part], REQUEST, None)
    with pytest.raises(BundleError, match=said):
        verify(folder / "b.zip", trust_none)


ANYBODY = Trust(None, unsigned=True)


def test_outputs_that_are_not_those_of_the_manifest(part: Part, tmp_path: Path) -> None:
    import numpy as np

    from tvmflow.support.files import load_arrays

    other = copy_of(part, tmp_path / "part")
    [outputs] = load_arrays(other.path("quantize", "reference.npz"), "golden")
    save_arrays(other.path("quantize", "reference.npz"), golden=(outputs + np.float32(0.1),))
    _changed(other, tmp_path, ANYBODY, "this library changes the outputs: on the 4 golden inputs the largest error is")


def test_a_library_of_another_network(part: Part, tmp_path: Path) -> None:
    other = Part("other@local-cpu:float32", part.slug, part.records, part.folder, part.version)
    _changed(other, tmp_path, ANYBODY, f"reports network {CELL}")


def test_a_library_of_one_size_where_the_manifest_has_several(part: Part, tmp_path: Path) -> None:
    other = copy_of(part, tmp_path / "part")
    manifest = replace(part.manifest, sizes=Sizes(("batch",), ((1, 4),), (), (0.0,)))
    write_json(other.path("build", "manifest.json"), manifest)
    _changed(other, tmp_path, ANYBODY, r"reports sizes \{\}")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("__builtin_trap();", "died of SIG"),
        ("*(volatile int *)0 = 1;", "died of SIGSEGV"),
        ("return 0;", "NULL pointer|does not run"),
    ],
)
def test_a_library_that_does_harm_when_it_is_entered(part: Part, tmp_path: Path, body: str, said: str) -> None:
    """Its process dies; ours goes on."""
    other, network = copy_of(part, tmp_path / "part"), part.manifest.network
    other.path("build", "network.so").unlink()
    functions = "".join(
        f"const void *{name}(void) {{ {body} return 0; }}\n" for name in ("tvmflow_network", network.symbol)
    )
    (tmp_path / "x.c").write_text(functions)
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        *PAGES,
        f"-Wl,-soname,{network.soname}",
        "-o",
        str(other.path("build", "network.so")),
        str(tmp_path / "x.c"),
    ]
    subprocess.run(command, check=True)
    _changed(other, tmp_path, ANYBODY, said)
