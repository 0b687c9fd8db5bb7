"""Write the runtime of Android apps as an artifact of its own, on which the AARs of all models depend.

The AAR `tvmflow-runtime` has the classes and their native part for every ABI. `tvmflow-runtime-ktx`, for which a Kotlin
compiler is needed, has the functions for coroutines.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.shipping.bundle.archive import Archive, write_archive
from tvmflow.shipping.bundle.maven import Coordinates, describe_artifact
from tvmflow.shipping.bundle.signing import envelope
from tvmflow.shipping.bundle.statement import plain_statement
from tvmflow.support.errors import BundleError
from tvmflow.support.files import sha256_of, write_atomic
from tvmflow.support.temporary import temporary_folder
from tvmflow.support.version import __version__
from tvmflow.toolchain.compilers import compiler_for, compiler_named
from tvmflow.toolchain.triples import ANDROID_LEVEL

RUNTIME_AAR = Coordinates("tvmflow", "tvmflow-runtime", __version__)
NATIVE = "libtvmflow_jni.so"
METADATA_FILE = "META-INF/com/android/build/gradle/aar-metadata.properties"
_KTX = Coordinates("tvmflow", "tvmflow-runtime-ktx", __version__, "jar")
_COROUTINES = Coordinates("org.jetbrains.kotlinx", "kotlinx-coroutines-core", "1.7.3", "jar")
_STDLIB = Coordinates("org.jetbrains.kotlin", "kotlin-stdlib", "1.9.24", "jar")
_TRIPLES = {
    "arm64-v8a": "aarch64-linux-android",
    "armeabi-v7a": "armv7a-linux-androideabi",
    "x86_64": "x86_64-linux-android",
}
_JAVA = "8"
# R8 removes methods that nothing calls; the names of the others, and their class's, are those of C functions.
_KEEP = "-keepclasseswithmembernames,includedescriptorclasses class tvmflow.Network { native <methods>; }\n"
_COROUTINE_JAR = "kotlinx-coroutines-core*.jar"
_DEBIAN_JARS = Path("/usr/share/java")

MANIFEST_XML = """\
<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{package}">
    <uses-sdk android:minSdkVersion="{api}" />{uses}
</manifest>
"""
AAR_METADATA = "aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk={api}\n"


def sources() -> list[Path]:
    """Return the sources of the Java classes."""
    return sorted((RUNTIME / "java" / "tvmflow").glob("*.java"))


def write_runtime(repository: Path, classes: Mapping[str, bytes], key: Ed25519PrivateKey | None) -> Path:
    """Write the runtime's artifacts into a Maven repository, and with a key an envelope beside each. Returns the AAR.

    classes: of `sources`, compiled.
    """
    path = RUNTIME_AAR.path(repository)
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder("runtime") as name:
        libraries = {f"jni/{abi}/{NATIVE}": _native(Path(name) / abi, triple) for abi, triple in _TRIPLES.items()}
    manifest = MANIFEST_XML.format(package="tvmflow.runtime", api=ANDROID_LEVEL, uses="")
    inside: dict[str, bytes | Path] = {
        **libraries,
        "classes.jar": jar_of(classes),
        "AndroidManifest.xml": manifest.encode(),
        "R.txt": b"",
        "proguard.txt": _KEEP.encode(),
        METADATA_FILE: AAR_METADATA.format(api=ANDROID_LEVEL).encode(),
    }
    write_archive(path, inside)
    _sign(path, key)
    describe_artifact(repository, RUNTIME_AAR, f"The runtime of networks that tvmflow {__version__} compiled")
    return path


def is_runtime(path: Path) -> bool:
    """Return whether a file has the name of the runtime's AAR, of whichever version."""
    return path.suffix == ".aar" and path.name.startswith(f"{RUNTIME_AAR.artifact}-")


def check_runtime(archive: Archive) -> None:
    """Check that an AAR is one that `write_runtime` writes: its files and the texts in it. Raises BundleError."""
    texts = {
        "AndroidManifest.xml": MANIFEST_XML.format(package="tvmflow.runtime", api=ANDROID_LEVEL, uses="").encode(),
        "R.txt": b"",
        "proguard.txt": _KEEP.encode(),
        METADATA_FILE: AAR_METADATA.format(api=ANDROID_LEVEL).encode(),
    }
    wanted = {*texts, "classes.jar", *(f"jni/{abi}/{NATIVE}" for abi in _TRIPLES)}
    for name in sorted(wanted ^ set(archive.entries)):
        where = "missing in" if name in wanted else "in"
        raise BundleError(f"{name} is {where} the runtime's AAR", "the files that tvmflow writes into it")
    for name, text in texts.items():
        if archive.read(name) != text:
            raise BundleError(f"{name} of the runtime's AAR was altered", "what tvmflow writes there")


def write_ktx(repository: Path, classes: Mapping[str, bytes], key: Ed25519PrivateKey | None) -> None:
    """Write the functions for coroutines into a Maven repository, as `write_runtime` does. Raises BundleError without a
    Kotlin compiler and the library of coroutines.
    """
    compiler = shutil.which("kotlinc")
    if compiler is None:
        raise BundleError("no kotlinc on PATH", "a Kotlin compiler", "install it (Debian: apt-get install kotlin)")
    places = (Path(compiler).resolve().parent.parent / "lib", _DEBIAN_JARS)
    library = next((jar for place in places for jar in sorted(place.glob(_COROUTINE_JAR))), None)
    if library is None:
        raise BundleError(
            f"no {_COROUTINE_JAR} in {places[0]}",
            "the library of coroutines beside kotlinc",
            "install it (Debian: apt-get install libkotlinx-coroutines-java)",
        )
    with temporary_folder("kotlin") as name:
        folder = Path(name)
        (folder / "java.jar").write_bytes(jar_of(classes))
        source = RUNTIME / "kotlin" / "tvmflow" / "Coroutines.kt"
        path = f"{folder / 'java.jar'}:{library}"
        words = ["-no-reflect", "-jvm-target", "1.8", "-module-name", _KTX.artifact, "-cp", path]
        _run([compiler, *words, "-d", str(folder / "made"), str(source)], "a Kotlin compiler of version 1.3 or later")
        made = _files_below(folder / "made")
    jar = _KTX.path(repository)
    jar.parent.mkdir(parents=True, exist_ok=True)
    draft = jar.with_name(f".{jar.name}.tmp")
    draft.write_bytes(jar_of(made))
    draft.replace(jar)
    _sign(jar, key)
    describe_artifact(repository, _KTX, "Coroutines of tvmflow's runtime", (RUNTIME_AAR, _COROUTINES, _STDLIB))


def _sign(path: Path, key: Ed25519PrivateKey | None) -> None:
    beside = path.with_name(f"{path.name}.dsse.json")
    beside.unlink(missing_ok=True)
    if key is not None:
        write_atomic(beside, envelope(plain_statement({path.name: sha256_of(path)}), key).decode())


def _native(folder: Path, triple: str) -> bytes:
    """Return the native part of the class for an ABI, linked with what links networks for Android here."""
    from tvmflow.codegen.network.link import link_jni  # imports TVM, which `verify` does without

    folder.mkdir()
    row = compiler_named(compiler_for(triple))
    command = row.command(triple)
    if not row.has_jni:  # a JDK's says the same but for the size of types, which C knows
        headers = Path(javac()).resolve().parent.parent / "include"
        command = replace(command, words=(*command.words, f"-I{headers}", f"-I{headers / 'linux'}"))
    link_jni(folder / NATIVE, command)
    return (folder / NATIVE).read_bytes()


def javac() -> str:
    """Return the Java compiler. Raises BundleError without one."""
    found = shutil.which("javac")
    if found is None:
        raise BundleError(
            "no javac on PATH",
            "a JDK to compile the AAR's classes",
            "install it (Debian: apt-get install openjdk-17-jdk-headless)",
        )
    return found


def compile_java(files: Sequence[Path]) -> dict[str, bytes]:
    """Return class files by their names in a jar, compiled for Java 8, which every Android supports."""
    with temporary_folder("java") as name:
        options = ["--release", _JAVA, "-Xlint:-options", "-encoding", "UTF-8", "-g:none", "-d", str(name)]
        _run([javac(), *options, *(str(file) for file in files)], "JDK 9 or later")
        return _files_below(Path(name))


def _files_below(folder: Path) -> dict[str, bytes]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def _run(command: list[str], expected: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        what = Path(command[0]).name
        raise BundleError(f"{what} failed: {(done.stderr or done.stdout).strip()[-400:]}", expected)


def jar_of(files: Mapping[str, bytes]) -> bytes:
    """Return a jar, the same for the same files."""
    jar = io.BytesIO()
    with zipfile.ZipFile(jar, "w") as out:  # names of inner classes have a $, which no bundle's files have
        out.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), "Manifest-Version: 1.0\n\n")
        for name, data in sorted(files.items()):
            out.writestr(zipfile.ZipInfo(name), data)
    return jar.getvalue()
