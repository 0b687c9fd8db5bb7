"""Test AARs: the layout that Android's tools expect, linked by an NDK, in a Maven repository, protected from changes.

The NDK is a fake: its clang calls gcc, and links with libraries of the names of Android's that hold every function an
ABI allows.
"""

from __future__ import annotations

import hashlib
import io
import platform
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bundle_parts import CELL, android_part
from tests.shipping.conftest import REQUEST
from tvmflow.shipping.bundle.aar import write_aar
from tvmflow.shipping.bundle.abis import ABIS
from tvmflow.shipping.bundle.archive import Archive, write_archive
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, signing_key
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.support.errors import BundleError, SignatureError, ToolchainError, UsageError
from tvmflow.toolchain.compilers import compiler_named

pytestmark = [
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK: apt-get install openjdk-17-jdk-headless"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the fake NDK compiles for x86-64"),
]
# glibc's gives fscanf another name.
STDIO = """#include <stddef.h>
typedef struct file FILE;
FILE *fopen(const char *, const char *);
int fclose(FILE *);
int fscanf(FILE *, const char *, ...);
int snprintf(char *, size_t, const char *, ...);
"""
METADATA = "META-INF/com/android/build/gradle/aar-metadata.properties"
LIBRARY = "jni/x86_64/libsmall_local_cpu_float32.so"


def _fake_ndk(folder: Path) -> Path:
    """Return the folder of an NDK for x86-64."""
    programs = folder / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin"
    programs.mkdir(parents=True)
    functions = {*ABIS["x86_64"].symbols, "calloc", "dlopen", "dlsym", "dlclose", "dlerror"} - {
        "_ITM_deregisterTMCloneTable",
        "_ITM_registerTMCloneTable",
    }
    (folder / "c.c").write_text("".join(f"void {name}(void) {{}}\n" for name in sorted(functions)))
    for name, source in (("libc.so", "c.c"), ("libm.so", "empty.c"), ("libdl.so", "empty.c")):
        (folder / "empty.c").write_text("")
        command = [
            "gcc",
            "-w",
            "-shared",
            "-fPIC",
            "-fno-builtin",
            "-nostdlib",
            f"-Wl,-soname,{name}",
            "-o",
            str(folder / name),
            str(folder / source),
        ]
        subprocess.run(command, check=True)
    (folder / "include").mkdir()
    (folder / "include" / "stdio.h").write_text(STDIO)
    home = Path(str(shutil.which("javac"))).resolve().parent.parent
    for name, mtriple in (
        ("aarch64-linux-android24", "aarch64-linux-android"),
        ("armv7a-linux-androideabi24", "armv7a-linux-androideabi"),
        ("x86_64-linux-android24", "x86_64-linux-android"),
    ):  # of the runtime
        words = shlex.join(compiler_named("bionic-stubs").command(mtriple).words)
        (programs / f"{name}-clang").write_text(
            f'#!/bin/sh\nexec {words} -I{home}/include -I{home}/include/linux "$@"\n'
        )
        (programs / f"{name}-clang").chmod(0o755)
    clang = programs / "x86_64-linux-android26-clang"
    clang.write_text(
        (
            f"#!/bin/sh\nexec gcc -D__ANDROID__ -D_GNU_SOURCE= -nostdlib -L{folder} -I{folder}/include "
            f'-I{home}/include -I{home}/include/linux "$@" -lc\n'
        ).replace("-pthread", "")
    )
    clang.chmod(0o755)
    (folder / "source.properties").write_text("Pkg.Revision = 27.2.1\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def ndk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        try:
            patch.setenv("ANDROID_NDK_HOME", str(_fake_ndk(tmp_path_factory.mktemp("ndk"))))
        except ToolchainError as error:
            pytest.skip(f"needs zig: {error}")
        yield


@pytest.fixture(scope="module")
def android(ndk: None, tmp_path_factory: pytest.TempPathFactory) -> Part:
    return android_part(tmp_path_factory.mktemp("android") / "cell", "x86_64-linux-android26")


@pytest.fixture(scope="module")
def aar(android: Part, keys: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_aar(tmp_path_factory.mktemp("maven"), [android], REQUEST, signing_key(keys.private), "com.example")[0]


def test_it_is_what_androids_tools_expect(aar: Path) -> None:
    with zipfile.ZipFile(aar) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = ElementTree.fromstring(files["AndroidManifest.xml"])  # noqa: S314 (our own)
    assert manifest.get("package") == "com.example.small"
    assert [list(child.attrib.values()) for child in manifest] == [["26"]]
    assert set(files) == {"AndroidManifest.xml", "R.txt", "classes.jar", LIBRARY, METADATA}, "nothing but what runs"
    assert b"aarFormatVersion=1.0\n" in files[METADATA]
    with zipfile.ZipFile(io.BytesIO(files["classes.jar"])) as jar:
        assert set(jar.namelist()) == {"META-INF/MANIFEST.MF", "com/example/small/Models.class"}
        assert jar.read("com/example/small/Models.class")[:8] == b"\xca\xfe\xba\xbe\x00\x00\x00\x34"  # of Java 8
    with zipfile.ZipFile(_runtime(aar)) as archive:
        assert set(archive.namelist()) == {
            "AndroidManifest.xml", "R.txt", "classes.jar", "proguard.txt", METADATA,
            *(f"jni/{abi}/libtvmflow_jni.so" for abi in ("arm64-v8a", "armeabi-v7a", "x86_64")),
        }  # fmt: skip
        assert archive.read("proguard.txt").startswith(b"-keepclasseswithmembernames")
        with zipfile.ZipFile(io.BytesIO(archive.read("classes.jar"))) as jar:
            assert {"tvmflow/Network.class", "tvmflow/Network$Tensor.class", "tvmflow/Model.class"} <= set(
                jar.namelist()
            )


def _runtime(aar: Path) -> Path:
    [found] = aar.parents[4].glob("tvmflow/tvmflow-runtime/*/*.aar")
    return found


def test_its_libraries_are_androids(aar: Path, tmp_path: Path) -> None:
    for path, name in ((aar, LIBRARY), (_runtime(aar), "jni/x86_64/libtvmflow_jni.so")):
        with zipfile.ZipFile(path) as archive:
            archive.extract(name, tmp_path)
            dynamic = subprocess.run(
                ["readelf", "-dWl", str(tmp_path / name)], capture_output=True, text=True, check=True
            ).stdout
            assert set(re.findall(r"NEEDED.*\[(.*)\]", dynamic)) <= {"libc.so", "libm.so", "libdl.so"}
            assert re.findall(r"SONAME.*\[(.*)\]", dynamic) == [Path(name).name]
            assert {line.split()[-1] for line in dynamic.splitlines() if line.strip().startswith("LOAD")} == {"0x4000"}


def test_it_lies_in_a_maven_repository(aar: Path) -> None:
    assert aar.parts[-5:] == ("com", "example", "small", "3", "small-3.aar")
    pom = ElementTree.parse(aar.with_suffix(".pom")).getroot()  # noqa: S314 (our own)
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    assert [pom.findtext(f"m:{word}", None, space) for word in ("groupId", "artifactId", "version", "packaging")] == [
        "com.example",
        "small",
        "3",
        "aar",
    ]
    for file in (aar, aar.with_suffix(".pom")):
        for kind in ("md5", "sha1", "sha256", "sha512"):
            assert file.with_name(f"{file.name}.{kind}").read_text() == hashlib.new(kind, file.read_bytes()).hexdigest()


def test_it_is_the_same_each_time(aar: Path, android: Part, keys: KeyPair, tmp_path: Path) -> None:
    again, _ = write_aar(tmp_path, [android], REQUEST, signing_key(keys.private), "com.example")
    assert again.read_bytes() == aar.read_bytes() and _runtime(again).read_bytes() == _runtime(aar).read_bytes()


def test_it_is_verified(aar: Path, trust: Trust, tmp_path: Path) -> None:
    report = verify(aar, replace(trust, at_least=3))
    [library] = report.libraries
    assert (library.cell, library.abi) == (CELL, "x86_64") and set(library.needed) <= {"libc.so", "libm.so"}
    copy = tmp_path / aar.name
    data = aar.read_bytes()
    copy.write_bytes(data)
    with pytest.raises(SignatureError, match=r"no small-3\.aar\.dsse\.json next to small-3\.aar"):
        verify(copy, trust)
    beside = copy.with_name(f"{copy.name}.dsse.json")
    beside.write_bytes(aar.with_name(beside.name).read_bytes())
    with pytest.raises(UsageError, match=r"small-3-bundle\.zip cannot be read"):
        verify(copy, trust)
    beside = f"{copy.stem}-bundle.zip"
    copy.with_name(beside).write_bytes(aar.with_name(beside).read_bytes())
    assert verify(copy, trust).sha256 == hashlib.sha256(data).hexdigest()
    place = data.index(b"minCompileSdk")  # of a file that the bundle does not know
    copy.write_bytes(data[:place] + b"#" + data[place + 1 :])
    with pytest.raises(BundleError, match="was altered: its digest differs from the statement next to it"):
        verify(copy, trust)


def test_another_file_than_the_bundles_is_refused(aar: Path, tmp_path: Path) -> None:
    with Archive(aar) as archive:
        files = {one: archive.read(one) for one in archive.entries}
    beside = f"{aar.stem}-bundle.zip"
    (tmp_path / beside).write_bytes(aar.with_name(beside).read_bytes())
    for changed, reason in (
        ({**files, "lint.jar": b"PK"}, r"lint\.jar is in the AAR"),
        ({**files, LIBRARY: files[LIBRARY] + b"\0"}, "differs from the bundle's"),
        ({name: data for name, data in files.items() if name != LIBRARY}, f"{LIBRARY} is not in the AAR"),
    ):
        write_archive(tmp_path / aar.name, changed)
        with pytest.raises(BundleError, match=reason):
            verify(tmp_path / aar.name, Trust(None, unsigned=True))


def test_what_cannot_be_an_aar(part: Part, android: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BundleError, match="an AAR for x86_64-linux-gnu"):
        write_aar(tmp_path, [part], REQUEST, None)
    with pytest.raises(UsageError, match=r"group '\.\./x'"):
        write_aar(tmp_path, [android], REQUEST, None, "../x")
    with pytest.raises(UsageError, match=r"group 'com\.new'"):  # a word of Java's
        write_aar(tmp_path, [android], REQUEST, None, "com.new")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BundleError, match="no javac on PATH"):
        write_aar(tmp_path, [android], REQUEST, None)
    assert not list(tmp_path.rglob("*.aar"))


def test_the_runtime_is_verified_by_its_signature_and_files(aar: Path, trust: Trust, tmp_path: Path) -> None:
    runtime = _runtime(aar)
    checked = verify(runtime, trust)
    assert checked.signer and checked.files == 8 and checked.libraries == () and checked.manifest is None
    with Archive(runtime) as archive:
        files = {name: archive.read(name) for name in archive.entries}
    path = tmp_path / runtime.name
    write_archive(path, {**files, "jni/x86_64/libtvmflow_jni.so": b"other"})
    shutil.copy(runtime.with_name(f"{runtime.name}.dsse.json"), tmp_path)
    with pytest.raises(BundleError, match="was altered: its digest differs from the statement next to it"):
        verify(path, trust)
    (tmp_path / f"{path.name}.dsse.json").unlink()
    with pytest.raises(SignatureError, match="dsse"):
        verify(path, trust)
    unsigned = Trust(None, unsigned=True)
    for changed, text in (
        ({**files, "lint.jar": b"x"}, "lint.jar is in the runtime's AAR"),
        ({name: data for name, data in files.items() if name != "proguard.txt"}, "proguard.txt is missing in"),
        ({**files, "AndroidManifest.xml": files["AndroidManifest.xml"] + b" "}, "AndroidManifest.xml .* was altered"),
    ):
        write_archive(path, changed)
        with pytest.raises(BundleError, match=text):
            verify(path, unsigned)
