"""Test bundles: reproducible bytes, files that other tools read, a library that an app links."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.bundle_parts import LABELS, sha256
from tests.shipping.conftest import REQUEST
from tvmflow.shipping.bundle.abis import ABIS, abi_of
from tvmflow.shipping.bundle.arrays import array_of, npy_bytes
from tvmflow.shipping.bundle.manifest import SCHEMA_FILE, manifest_schema, read_manifest
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, signing_key
from tvmflow.shipping.bundle.verify import Trust, check_contents, verify
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
from tvmflow.support.errors import BundleError


@pytest.fixture(scope="module")
def unpacked(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    return folder


def _json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_made_twice_it_has_the_same_bytes(bundle: Path, part: Part, keys: KeyPair, tmp_path: Path) -> None:
    for path in part.folder.rglob("*"):
        path.touch()
    write_bundle(tmp_path / "again.zip", [part], REQUEST, signing_key(keys.private))
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_it_is_verified_and_runs(bundle: Path, trust: Trust, keys: KeyPair) -> None:
    report = verify(bundle, trust)
    assert (report.name, report.version, report.signer) == ("small", 3, keys.keyid)
    [library] = report.libraries
    assert library.ran == "4 golden inputs, outputs equal bit for bit" and "libc.so.6" in library.needed


def test_the_manifest_follows_its_schema_and_names_every_file(unpacked: Path) -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == manifest_schema(), "write it anew from manifest_schema()"
    manifest = _json(unpacked, "manifest.json")
    jsonschema.Draft202012Validator.check_schema(manifest_schema())
    jsonschema.Draft202012Validator(manifest_schema()).validate(manifest)
    files = {p.relative_to(unpacked).as_posix(): p.read_bytes() for p in unpacked.rglob("*") if p.is_file()}
    named = {name: (file["sha256"], file["size"]) for name, file in manifest["files"].items()}
    others = {name: data for name, data in files.items() if name not in ("manifest.json", "provenance.dsse.json")}
    assert named == {name: (sha256(data), len(data)) for name, data in others.items()}
    [library] = manifest["libraries"]
    assert library["labels"] == list(LABELS) and library["preprocessing"]["scale"] == 0.1
    assert library["file"] in files and library["made"]["system"][0].startswith("GLIBC_")


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"name": "../x"}, {"libraries": []}, {"more": 1}, {"files": {"/etc/x": {}}}]
)
def test_another_manifest_is_refused(unpacked: Path, change: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json is not valid"):
        read_manifest(json.dumps(_json(unpacked, "manifest.json") | change).encode())


def test_the_statement_is_in_toto_about_every_file(unpacked: Path) -> None:
    statement = json.loads(base64.b64decode(_json(unpacked, "provenance.dsse.json")["payload"]))
    assert statement["_type"].endswith("/Statement/v1") and statement["predicateType"].endswith("/provenance/v1")
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    files = [p for p in unpacked.rglob("*") if p.is_file() and p.name != "provenance.dsse.json"]
    assert subjects == {p.relative_to(unpacked).as_posix(): sha256(p.read_bytes()) for p in files}
    build = statement["predicate"]["buildDefinition"]
    assert {one["name"].split()[1] for one in build["resolvedDependencies"]} >= {
        "build/network.so",
        "tune/best.json",
        "fetch/golden.npz",
    }
    assert build["internalParameters"]["small@local-cpu:float32"]["build"]["recipe"]


def test_the_sbom_is_cyclonedx(unpacked: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (unpacked / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = json.loads(text)["components"]
    assert [one["name"] for one in components] == [
        "libsmall_local_cpu_float32.so",
        "kernels",
        "small",
        "tvmflow-runtime",
    ]
    assert components[0]["hashes"][0]["content"] == sha256(
        (unpacked / "lib/x86_64-linux-gnu/libsmall_local_cpu_float32.so").read_bytes()
    )


def test_the_example_is_built_as_the_readme_says(unpacked: Path) -> None:
    block = (unpacked / "README.md").read_text().split("```")[1]
    done = subprocess.run(
        ["sh", "-ec", block.replace("cc ", "gcc -Wall -Wextra -Werror ", 1)],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = np.load(unpacked / "cells/small.local-cpu.float32/golden/output0.npy")[0]
    scores, label = done.stdout.splitlines()
    assert (
        np.array_equal(np.array(scores.split()[1:], np.float32), expected) and label == LABELS[int(expected.argmax())]
    )


def test_the_model_card_says_what_was_measured(unpacked: Path) -> None:
    card = (unpacked / "cells/small.local-cpu.float32/card.md").read_text()
    for said in ("90.00% of 8 samples", "seeded: 0", "1 ms", "1x3x12x12", "| tvm | 0.27 |", "small@local-cpu:float32"):
        assert said in card


@pytest.mark.parametrize(
    ("triple", "abi"),
    [
        ("x86_64-linux-gnu", "x86_64-linux-gnu"),
        ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu"),
        ("aarch64-linux-gnu", "aarch64-linux-gnu"),
        ("aarch64-linux-android21", "arm64-v8a"),
        ("x86_64-linux-android", "x86_64"),
        ("armv7a-linux-androideabi24", "armeabi-v7a"),
        ("armv7a-unknown-linux-gnueabihf", "armv7a-linux-gnueabihf"),
    ],
)
def test_the_abi_follows_from_the_triple(triple: str, abi: str) -> None:
    assert abi_of(triple) is ABIS[abi]


def test_a_triple_without_abi_is_refused() -> None:
    for triple in ("x86_64-linux-musl", "riscv64-linux-gnu", "x86_64-apple-darwin"):
        with pytest.raises(BundleError, match=f"no ABI for the triple {triple}"):
            abi_of(triple)


@pytest.mark.parametrize(
    ("abis", "said"),
    [
        (("arm64-v8a",), "is for x86_64-linux-gnu; no cell is for arm64-v8a"),
        (("x86_64-linux-gnu", "arm64-v8a"), "no cell is for arm64-v8a"),
    ],
)
def test_what_does_not_fit_is_refused(part: Part, tmp_path: Path, abis: Any, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        write_bundle(tmp_path / "no.zip", [part], BundleRequest("small", abis=abis), None)
    assert not (tmp_path / "no.zip").exists()


def test_a_cell_twice_is_refused(part: Part, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="a duplicate cell"):
        write_bundle(tmp_path / "no.zip", [part, part], REQUEST, None)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_arrays_are_numpys(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.ones(shape, dtype)
    (tmp_path / "a.npy").write_bytes(npy_bytes(array))
    loaded = np.load(tmp_path / "a.npy", allow_pickle=False)
    assert loaded.dtype == array.dtype and loaded.shape == shape and np.array_equal(loaded, array)
    assert np.array_equal(array_of(npy_bytes(array), "a", dtype, shape), array)
    with pytest.raises(BundleError, match="not an array"):
        array_of(npy_bytes(array), "a", dtype, (*shape, 2))


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK: apt-get install openjdk-17-jdk-headless")
def test_its_java_class_opens_the_library(unpacked: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    shutil.copytree(unpacked, folder)
    readme = (folder / "README.md").read_text()
    [native] = re.findall(r"```\n *(cc [^`]*tvmflow_jni\.c[^`]*?)\n *```", readme)
    home = Path(str(shutil.which("javac"))).resolve().parent.parent
    subprocess.run(native, shell=True, cwd=folder, env={**os.environ, "JAVA_HOME": str(home)}, check=True)  # noqa: S602
    (tmp_path / "App.java").write_text(
        "public class App { public static void main(String[] words) {\n"
        "  try (tvmflow.Network network = new tvmflow.Network(words[0])) { "
        'System.out.println(String.join(" ", network.getLabels())); } } }\n'
    )
    classes = ["javac", "-d", str(tmp_path), str(tmp_path / "App.java"), "java/tvmflow/Network.java"]
    subprocess.run(classes, cwd=folder, check=True)
    [library] = _json(folder, "manifest.json")["libraries"]
    run = ["java", f"-Djava.library.path={folder}", "-cp", str(tmp_path), "App", str(folder / library["file"])]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.split() == list(LABELS)


def test_what_no_device_measured_is_marked_and_refused_as_measured(part: Part, tmp_path: Path) -> None:
    records = {stage: record for stage, record in part.records.items() if stage != "evaluate"}
    built = replace(part, records=records, version=None, is_measured=False)
    manifest = write_bundle(tmp_path / "b.zip", [built], REQUEST, None)
    [library] = manifest.libraries
    assert (library.measured, library.scorecard) == (False, None)
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert "## Not measured" in archive.read(library.card).decode()
        assert not [name for name in archive.namelist() if "scorecard" in name]
    for check in (verify, check_contents):
        with pytest.raises(BundleError, match="was built without a device, and never measured"):
            check(tmp_path / "b.zip", Trust(None, unsigned=True))
    [checked] = verify(tmp_path / "b.zip", Trust(None, unsigned=True, unmeasured=True)).libraries
    assert checked.ran == "4 golden inputs, outputs equal bit for bit"
    claims = json.loads(manifest.to_bytes())
    claims["libraries"][0]["measured"] = True
    with pytest.raises(BundleError, match="a scorecard for a measured library, and none for another"):
        read_manifest(json.dumps(claims).encode())
