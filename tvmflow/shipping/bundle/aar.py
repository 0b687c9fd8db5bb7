"""Write a model as an Android library: an AAR in a Maven repository, for one line in Gradle's `dependencies`.

It has what runs, and nothing else: libraries in `jni/`, and in `classes.jar` the class `Models`, by which an app opens
them. It depends on `tvmflow-runtime`, so that several models fit into one app. Beside it are the bundle that it is of,
BUNDLE.zip, and the signature of the whole file, AAR.dsse.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tvmflow.shipping.bundle.abis import abi_named
from tvmflow.shipping.bundle.android_runtime import (
    AAR_METADATA,
    MANIFEST_XML,
    METADATA_FILE,
    RUNTIME_AAR,
    compile_java,
    jar_of,
    sources,
    write_ktx,
    write_runtime,
)
from tvmflow.shipping.bundle.archive import Archive, write_archive
from tvmflow.shipping.bundle.manifest import Manifest
from tvmflow.shipping.bundle.maven import Coordinates, describe_artifact
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.wheel import write_envelope
from tvmflow.shipping.bundle.write import BundleRequest, Content, contents
from tvmflow.support.errors import BundleError, UsageError
from tvmflow.support.temporary import temporary_folder
from tvmflow.toolchain.triples import ANDROID_LEVEL, triple_of

SUFFIX = ".aar"
BUNDLE = "-bundle.zip"  # behind the AAR's name without its suffix
GROUP = "tvmflow.models"  # default Maven group
_GROUP = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,7}")
_RESERVED = frozenset(
    (
        "abstract assert boolean break byte case catch char class const continue default do double else enum extends "
        "false final finally float for goto if implements import instanceof int interface long native new null package "
        "private protected public return short static strictfp super switch synchronized this throw throws transient "
        "true try void volatile while _"
    ).split()
)
# Apps for API 31 and later see none of the vendor's libraries that they do not declare. API of a GPU -> its libraries.
_VENDORS = {"opencl": ("libOpenCL.so", "libOpenCL-pixel.so", "libOpenCL-car.so")}
_USES = '\n        <uses-native-library android:name="{name}" android:required="false" />'
_OWN = ("AndroidManifest.xml", "R.txt", "classes.jar", METADATA_FILE)
_MODELS = """\
package {package};

import tvmflow.Model;

/** The networks of {name}, version {version}, that tvmflow {tvmflow} compiled. */
public final class Models {{
{fields}

  private Models() {{}}
}}
"""
_FIELD = "  public static final Model {field} = new Model({words});"


def write_aar(
    folder: Path,
    parts: Sequence[Part],
    request: BundleRequest,
    key: Ed25519PrivateKey | None,
    group: str = GROUP,
    kotlin: bool = False,
) -> tuple[Path, Manifest]:
    """Write an AAR, its bundle and the runtime below `folder`, a Maven repository, and with a key envelopes beside
    them. Returns where the AAR is.

    group: of Maven; kotlin: also write the functions for coroutines. Raises UsageError for a group that cannot be one,
    BundleError for cells of no Android, or without a JDK.
    """
    manifest, files = contents(parts, request, key)
    return pack_aar(folder, manifest, files, key, group, kotlin), manifest


def pack_aar(
    folder: Path, manifest: Manifest, files: Content, key: Ed25519PrivateKey | None, group: str, kotlin: bool = False
) -> Path:
    """Write an AAR as `write_aar` does, of the files of a bundle."""
    if not _GROUP.fullmatch(group) or not _RESERVED.isdisjoint(group.split(".")):
        raise UsageError(f"group {group!a}", "two or more lower-case words joined by dots, e.g. com.example")
    _check(manifest)
    artifact = re.sub(r"[^a-z0-9]+", "-", manifest.name.lower()).strip("-") or "networks"
    place = Coordinates(group, artifact, str(manifest.version or 0))
    package = ".".join([group, _word(artifact)])
    levels = [triple_of(one.made.mtriple).level for one in manifest.libraries]
    path = place.path(folder)
    with temporary_folder("models") as name:
        source = Path(name) / "Models.java"
        source.write_text(_models(manifest, package), encoding="utf-8")
        classes = compile_java([*sources(), source])
    own = {name: data for name, data in classes.items() if name.startswith(f"{package.replace('.', '/')}/")}
    path.parent.mkdir(parents=True, exist_ok=True)
    android = MANIFEST_XML.format(package=package, api=max(ANDROID_LEVEL, *levels), uses=_uses(manifest))
    inside: dict[str, bytes | Path] = {_inside(one.file): files[one.file] for one in manifest.libraries}
    inside |= {
        "AndroidManifest.xml": android.encode(),
        "R.txt": b"",
        "classes.jar": jar_of(own),
        METADATA_FILE: AAR_METADATA.format(api=max(ANDROID_LEVEL, *levels)).encode(),
    }
    write_archive(path, inside)
    write_archive(place.path(folder, BUNDLE), files)
    write_envelope(path, files, key)
    words = f"Networks that tvmflow {manifest.tvmflow} compiled for {', '.join(manifest.abis)}"
    describe_artifact(folder, place, words, (RUNTIME_AAR,))
    runtime = {name: data for name, data in classes.items() if name not in own}
    write_runtime(folder, runtime, key)
    if kotlin:
        write_ktx(folder, runtime, key)
    return path


def _check(manifest: Manifest) -> None:
    for name in manifest.abis:
        if abi_named(name).system != "android":
            raise BundleError(f"an AAR for {name}", "an Android ABI", "bundle cells of Android targets")
    if driven := next((one for one in manifest.libraries if one.device), None):
        raise BundleError(
            f"{driven.cell} needs a driver for the accelerator {driven.device}",
            "CPU cells: the Java class has no drivers",
        )


def _models(manifest: Manifest, package: str) -> str:
    """Return the source of the class with one constant for each network, its libraries by ABI."""
    words: dict[str, list[str | None]] = {}
    for one in manifest.networks:
        for first in (*one.faster, one.cpu):
            files = [None if cell is None else manifest.library(cell).soname for cell in (first, one.gpu)]
            words.setdefault(one.name, [one.name]).extend([one.abi, *files])
    fields: dict[str, str] = {}
    for name in words:
        field = _word(name).upper()
        if field in fields:
            raise BundleError(f"the networks {name} and {fields[field]} in one AAR", "names that differ in letters")
        fields[field] = name
    lines = [
        _FIELD.format(
            field=field, words=", ".join("null" if text is None else json.dumps(text) for text in words[name])
        )
        for field, name in fields.items()
    ]
    return _MODELS.format(
        package=package,
        name=manifest.name,
        version=manifest.version or 0,
        tvmflow=manifest.tvmflow,
        fields="\n".join(lines),
    )


def _word(text: str) -> str:
    """Return text as an identifier of Java."""
    word = re.sub(r"[^A-Za-z0-9]+", "_", text)
    return f"_{word}" if word[:1].isdigit() or word in _RESERVED else word


def _uses(manifest: Manifest) -> str:
    """Return the entries of Android's manifest for vendor libraries that the networks load."""
    vendors = sorted({name for one in manifest.libraries for name in _VENDORS.get(one.gpu or "", ())})
    inside_of = "".join(_USES.format(name=name) for name in vendors)
    return f"\n    <application>{inside_of}\n    </application>" if vendors else ""


def _inside(library: str) -> str:
    return f"jni/{library.removeprefix('lib/')}"


def check_inside(archive: Archive, manifest: Manifest) -> None:
    """Check that an AAR has the libraries of its bundle, and nothing that `write_aar` does not write: Android's tools
    run what lint.jar has, and link libs/. Raises BundleError.
    """
    wanted = {_inside(one.file): manifest.files[one.file].sha256 for one in manifest.libraries}
    for name in archive.entries:
        if name not in _OWN and name not in wanted:
            raise BundleError(f"{name} is in the AAR", "the files that tvmflow writes into one")
    for name in (*_OWN, *wanted):
        if name not in archive.entries:
            raise BundleError(f"{name} is not in the AAR", "every library of its bundle, and what Android's tools read")
        if name in wanted and archive.sha256(name) != wanted[name]:
            raise BundleError(f"{name} in the AAR differs from the bundle's", "the library of the bundle beside it")
