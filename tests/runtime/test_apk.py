"""Build the sample app as an APK without classes.dex, since no installed package has d8: manifest and resources by
aapt2, native code for 64-bit and 32-bit phones with 16 KB pages, signed and verified by apksigner.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.runtime.android_tools import AndroidTools, android_tools
from tests.runtime.test_android_app import MAIN
from tests.runtime.test_apps import NEEDS_JAVA
from tvmflow.codegen.network.link import link_jni
from tvmflow.support.errors import DeviceError, ToolchainError
from tvmflow.toolchain.compilers import Command, compiler_named

pytestmark = NEEDS_JAVA
PAGE = 16384
LIBRARY = "libtvmflow_jni.so"
PHONES = {"arm64-v8a": "aarch64-linux-android", "armeabi-v7a": "armv7a-linux-androideabi"}
_ALIGNED = 0xD935  # of extra fields: how an entry is aligned, then the bytes that do it
_PASSWORD = "pass:throw-away"  # noqa: S105


@pytest.fixture(scope="module")
def tools(own_home: Path) -> AndroidTools:
    try:
        return android_tools()
    except DeviceError as error:
        pytest.skip(str(error))


def _ran(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def base(tools: AndroidTools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with base.apk, of manifest and resources alone, and the class R of their numbers."""
    folder = tmp_path_factory.mktemp("apk")
    manifest = (MAIN / "AndroidManifest.xml").read_text()  # Gradle puts the namespace in
    (folder / "AndroidManifest.xml").write_text(manifest.replace("<manifest ", '<manifest package="example.camera" '))
    _ran(tools.aapt2("compile", "--dir", str(MAIN / "res"), "-o", str(folder / "res.zip")))
    _ran(
        tools.aapt2(
            "link",
            "-I",
            tools.framework,
            "--manifest",
            str(folder / "AndroidManifest.xml"),
            "--min-sdk-version",
            "24",
            "--target-sdk-version",
            "35",
            "--version-code",
            "1",
            "--version-name",
            "1",
            "--java",
            str(folder / "gen"),
            "-o",
            str(folder / "base.apk"),
            str(folder / "res.zip"),
        )
    )
    return folder


def _with_libraries(base: Path, libraries: dict[str, Path], to: Path) -> None:
    """Add libraries as apps with extractNativeLibs="false" have them: not compressed, each at a page."""
    with zipfile.ZipFile(base) as given, zipfile.ZipFile(to, "w") as out:
        content = {name: (given.read(name), given.getinfo(name).compress_type, 4) for name in given.namelist()}
        content |= {name: (path.read_bytes(), zipfile.ZIP_STORED, PAGE) for name, path in libraries.items()}
        for name, (data, kind, alignment) in content.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = kind
            assert out.fp is not None
            begin = out.fp.tell() + 30 + len(name) + 6
            info.extra = struct.pack("<HHH", _ALIGNED, 2 + -begin % alignment, alignment) + bytes(-begin % alignment)
            out.writestr(info, data)


def _begins(path: Path) -> dict[str, int]:
    """Return where the content of each entry that is not compressed begins."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset)
            name, extra = struct.unpack("<26xHH", file.read(30))
            if info.compress_type == zipfile.ZIP_STORED:
                found[info.filename] = info.header_offset + 30 + name + extra
    return found


@pytest.fixture(scope="module")
def signed(base: Path, tools: AndroidTools) -> Path:
    libraries = {}
    for abi, mtriple in PHONES.items():
        path = base / abi / LIBRARY
        path.parent.mkdir()
        try:
            compiler = compiler_named("bionic-stubs").command(mtriple)
        except ToolchainError as error:
            pytest.skip(str(error))
        home = Path(shutil.which("javac") or "").resolve().parent.parent / "include"
        link_jni(path, Command((*compiler.words, f"-I{home}", f"-I{home / 'linux'}")))
        libraries[f"lib/{abi}/{LIBRARY}"] = path
    _with_libraries(base / "base.apk", libraries, base / "unsigned.apk")
    keys = base / "keys.p12"
    command = [
        "keytool",
        "-genkeypair",
        "-keystore",
        str(keys),
        "-storepass",
        "throw-away",
        "-alias",
        "one",
        "-keyalg",
        "EC",
        "-dname",
        "CN=Nobody",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    out = base / "app.apk"
    _ran(
        tools.apksigner(
            "sign", "--ks", str(keys), "--ks-pass", _PASSWORD, "--out", str(out), str(base / "unsigned.apk")
        )
    )
    return out


def test_it_says_what_the_app_is(signed: Path, tools: AndroidTools) -> None:
    said = _ran(tools.aapt2("dump", "badging", str(signed)))
    for line in (
        "package: name='example.camera'",
        "sdkVersion:'24'",
        "targetSdkVersion:'35'",
        "uses-permission: name='android.permission.CAMERA'",
        "launchable-activity: name='example.camera.MainActivity'",
        "native-code: 'arm64-v8a' 'armeabi-v7a'",
    ):
        assert line in said


def test_libraries_lie_at_pages_of_16_kb_also_when_signed(signed: Path, tools: AndroidTools) -> None:
    _ran(tools.zipalign("-c", "-p", "4", str(signed)))
    libraries = {name: begin for name, begin in _begins(signed).items() if name.endswith(".so")}
    assert len(libraries) == 2 and all(begin % PAGE == 0 for begin in libraries.values())


def test_its_signature_holds_until_a_byte_is_altered(signed: Path, tools: AndroidTools) -> None:
    said = _ran(tools.apksigner("verify", "-v", "--print-certs", str(signed)))
    assert "Verified using v2 scheme (APK Signature Scheme v2): true" in said and "CN=Nobody" in said
    data = bytearray(signed.read_bytes())
    data[_begins(signed)[f"lib/arm64-v8a/{LIBRARY}"] + 4096] ^= 1
    altered = signed.with_name("altered.apk")
    altered.write_bytes(data)
    assert tools.apksigner("verify", str(altered)).returncode != 0


def test_the_sources_use_the_numbers_that_aapt2_gave(base: Path) -> None:
    """With the class R of aapt2 in place of the one among the stubs."""
    [numbers] = (base / "gen").rglob("R.java")
    assert "app_name" in numbers.read_text()
    done = subprocess.run(
        ["javac", "--release", "8", "-Xlint:-options", "-d", str(base / "classes"), str(numbers)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
