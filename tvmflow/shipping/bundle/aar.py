"""Write a bundle as an Android library: an AAR in a Maven repository, for one line in Gradle's `dependencies`.

Libraries are in `jni/`, the class `tvmflow.Network` in `classes.jar` and its native part beside the libraries, the rest
of the bundle in `assets/`. As for a wheel, the signature of the whole file is beside it: AAR.dsse.json.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tvmflow.codegen.network.link import link_jni
from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.shipping.bundle.abis import abi_named, abi_of
from tvmflow.shipping.bundle.archive import Archive, write_archive
from tvmflow.shipping.bundle.manifest import File, Manifest
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import envelope
from tvmflow.shipping.bundle.statement import statement
from tvmflow.shipping.bundle.wheel import BESIDE
from tvmflow.shipping.bundle.write import BundleRequest, Content, contents
from tvmflow.support.errors import BundleError, UsageError
from tvmflow.support.files import describe_file, write_atomic
from tvmflow.support.temporary import temporary_folder
from tvmflow.toolchain.compilers import compiler_named
from tvmflow.toolchain.triples import triple_of

SUFFIX = ".aar"
GROUP = "tvmflow.models"  # default Maven group
NATIVE = "libtvmflow_jni.so"
_GROUP = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,7}")
_JAVA = "8"

_MANIFEST = """\
<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{package}">
    <uses-sdk android:minSdkVersion="{api}" />{uses}
</manifest>
"""
# Apps for API 31 and later see none of the vendor's libraries that they do not declare. API of a GPU -> its libraries.
_VENDORS = {"opencl": ("libOpenCL.so", "libOpenCL-pixel.so", "libOpenCL-car.so")}
_USES = '\n        <uses-native-library android:name="{name}" android:required="false" />'
_POM = """\
<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
         xsi:schemaLocation="http://maven.apache.org/POM/4.0.0 https://maven.apache.org/xsd/maven-4.0.0.xsd">
  <modelVersion>4.0.0</modelVersion>
  <groupId>{group}</groupId>
  <artifactId>{artifact}</artifactId>
  <version>{version}</version>
  <packaging>aar</packaging>
  <description>Networks that tvmflow {tvmflow} compiled for {abis}</description>
</project>
"""
_METADATA_FILE = "META-INF/com/android/build/gradle/aar-metadata.properties"
_OWN = ("AndroidManifest.xml", "R.txt", "classes.jar", "proguard.txt", _METADATA_FILE)
_KEEP = "-keep class tvmflow.Network** { *; }\n"
_METADATA = "aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk={api}\n"


def write_aar(
    folder: Path, parts: Sequence[Part], request: BundleRequest, key: Ed25519PrivateKey | None, group: str = GROUP
) -> tuple[Path, Manifest]:
    """Write an AAR and its POM below `folder`, a Maven repository, and with a key the envelope beside it. Returns where
    it is.

    group: of Maven. Raises UsageError for a group that cannot be one, BundleError for cells of no Android, or without a
    JDK.
    """
    if not _GROUP.fullmatch(group):
        raise UsageError(f"group {group!a}", "two or more lower-case words joined by dots, e.g. com.example")
    manifest, files = contents(parts, request, key)
    triples = {abi_of(part.manifest.target.mtriple).name: part for part in parts}
    _check(manifest, triples)
    artifact, version = (
        re.sub(r"[^a-z0-9]+", "-", manifest.name.lower()).strip("-") or "networks",
        str(manifest.version or 0),
    )
    api = max(triple_of(part.manifest.target.mtriple).level for part in triples.values())
    names = {
        "uses": _uses(manifest),
        "package": f"{group}.{artifact.replace('-', '_')}",
        "api": api,
        "group": group,
        "artifact": artifact,
        "version": version,
        "tvmflow": manifest.tvmflow,
        "abis": ", ".join(manifest.abis),
    }
    place = folder.joinpath(*group.split("."), artifact, version)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{artifact}-{version}{SUFFIX}"
    with temporary_folder("aar") as name:
        inside: Content = {_outside(file, artifact): content for file, content in files.items()}
        inside["classes.jar"] = _classes(Path(name))
        for abi, part in triples.items():
            inside[f"jni/{abi}/{NATIVE}"] = _native(Path(name) / abi, part)
        inside |= {
            "AndroidManifest.xml": _MANIFEST.format(**names).encode(),
            "R.txt": b"",
            "proguard.txt": _KEEP.encode(),
            _METADATA_FILE: _METADATA.format(**names).encode(),
        }
        write_archive(path, inside)
    pom = path.with_suffix(".pom")
    write_atomic(pom, _POM.format(**names))
    for file in (path, pom):
        _write_checksums(file)
    beside = path.with_name(path.name + BESIDE)
    beside.unlink(missing_ok=True)
    if key is not None:
        whole = describe_file(path)
        write_atomic(
            beside,
            envelope(statement(manifest, {path.name: File(sha256=whole.sha256, size=whole.size)}, parts), key).decode(),
        )
    return path, manifest


def _check(manifest: Manifest, abis: Iterable[str]) -> None:
    for name in abis:
        if abi_named(name).system != "android":
            raise BundleError(f"an AAR for {name}", "an Android ABI", "bundle cells of Android targets")
    if driven := next((one for one in manifest.libraries if one.device), None):
        raise BundleError(
            f"{driven.cell} needs a driver for the accelerator {driven.device}",
            "CPU cells: the Java class has no drivers",
        )


def _uses(manifest: Manifest) -> str:
    """Return the entries of Android's manifest for vendor libraries that the networks load."""
    vendors = sorted({name for one in manifest.libraries for name in _VENDORS.get(one.gpu or "", ())})
    inside_of = "".join(_USES.format(name=name) for name in vendors)
    return f"\n    <application>{inside_of}\n    </application>" if vendors else ""


def _outside(name: str, artifact: str) -> str:
    """Return the path of a bundle's file in the AAR."""
    return f"jni/{name.removeprefix('lib/')}" if name.startswith("lib/") else f"assets/{artifact}/{name}"


def bundle_in(archive: Archive) -> Archive:
    """Return a view of an AAR as its bundle. Raises BundleError for none, or more than one, and for a file that
    `write_aar` does not write: Android's tools run what lint.jar has, and link libs/.
    """
    folders = {name.split("/")[1] for name in archive.entries if re.fullmatch(r"assets/[^/]+/manifest\.json", name)}
    if len(folders) != 1:
        raise BundleError(f"{len(folders)} bundles in an AAR", "exactly one")
    start = f"assets/{folders.pop()}/"
    for name in archive.entries:
        if name not in _OWN and not name.startswith(("jni/", start)):
            raise BundleError(f"{name} is in the AAR", "the files that tvmflow writes into one")
    libraries = [name for name in archive.entries if name.startswith("jni/") and not name.endswith(f"/{NATIVE}")]
    names = {name.removeprefix(start): name for name in archive.entries if name.startswith(start)}
    return archive.renamed({**names, **{f"lib/{name.removeprefix('jni/')}": name for name in libraries}})


def _native(folder: Path, part: Part) -> bytes:
    """Return the native part of the class, linked like the library of a cell."""
    folder.mkdir()
    target = part.manifest.target
    row = compiler_named(target.cc)
    command = row.command(target.mtriple)
    if not row.has_jni:  # a JDK's says the same but for the size of types, which C knows
        headers = Path(_javac()).resolve().parent.parent / "include"
        command = replace(command, words=(*command.words, f"-I{headers}", f"-I{headers / 'linux'}"))
    link_jni(folder / NATIVE, command)
    return (folder / NATIVE).read_bytes()


def _javac() -> str:
    found = shutil.which("javac")
    if found is None:
        raise BundleError(
            "no javac on PATH",
            "a JDK to compile the AAR's class",
            "install it (Debian: apt-get install openjdk-17-jdk-headless)",
        )
    return found


def _classes(folder: Path) -> bytes:
    """Return classes.jar: the class, compiled for Java 8, which every Android supports."""
    classes = folder / "classes"
    source = RUNTIME / "java" / "tvmflow" / "Network.java"
    command = [
        _javac(),
        "--release",
        _JAVA,
        "-Xlint:-options",
        "-encoding",
        "UTF-8",
        "-g:none",
        "-d",
        str(classes),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise BundleError(f"javac failed on Network.java: {done.stderr.strip()[-400:]}", "JDK 9 or later")
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w") as out:  # names of inner classes have a $, which no bundle's files have
        out.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), "Manifest-Version: 1.0\n\n")
        for file in sorted(classes.rglob("*.class")):
            out.writestr(zipfile.ZipInfo(file.relative_to(classes).as_posix()), file.read_bytes())
    return jar.getvalue()


def _write_checksums(file: Path) -> None:
    """Write the checksum files of a Maven repository."""
    data = file.read_bytes()
    for kind in ("md5", "sha1", "sha256", "sha512"):
        digest = hashlib.new(kind, data, usedforsecurity=False).hexdigest()
        write_atomic(file.with_name(f"{file.name}.{kind}"), digest)
