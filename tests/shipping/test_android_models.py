"""Test two model AARs and the runtime in one app: unpacked as Android's packager does it, run by a desktop JVM.

The libraries are Android's of x86-64, on a libc.so that gives bionic's names to glibc's functions.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.bionic_shims import write_shims
from tests.bundle_parts import LABELS, SPEC, small_part, small_scheduled, written
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.shipping.bundle.aar import write_aar
from tvmflow.shipping.bundle.android_runtime import compile_java, sources, write_ktx
from tvmflow.shipping.bundle.archive import Archive
from tvmflow.shipping.bundle.choices import choices
from tvmflow.shipping.bundle.manifest import Library, Manifest, read_manifest
from tvmflow.shipping.bundle.write import BundleRequest
from tvmflow.support.errors import BundleError, ToolchainError
from tvmflow.toolchain.compilers import compiler_named

TRIPLE = "x86_64-linux-android"
NEEDS_JAVA = pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
APP = """
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Paths;
import tvmflow.Model;
import tvmflow.Network;

public final class App {
  static void run(Model model, byte[] x) {
    try (Network network = model.open(null)) {
      ByteBuffer input = Network.buffer(network.getInputs().get(0));
      ByteBuffer output = Network.buffer(network.getOutputs().get(0));
      input.put(x).rewind();
      network.run(new ByteBuffer[] {input}, new ByteBuffer[] {output});
      StringBuilder line = new StringBuilder(model.getName() + " " + network.getName());
      line.append(" " + network.getLabels().get(0));
      for (int i = 0; i < 5; ++i) line.append(' ').append(Integer.toHexString(output.getInt(4 * i)));
      System.out.println(line + " " + network.getProcessor().kind + " " + network.getProcessor().reason);
    }
  }

  public static void main(String[] words) throws Exception {
    byte[] x = Files.readAllBytes(Paths.get(words[0]));
    run(com.example.first.Models.FIRST, x);
    run(org.other.second.Models.SECOND, x);
    run(new Model("pair", "x86_64", "libfirst_phone_float32.so", "libnowhere.so"), x);
    try {
      new Model("none", "mips", "a.so", null).open(null);
    } catch (UnsupportedOperationException error) {
      System.out.println(error.getMessage());
    }
  }
}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Maven repository with two models of two teams."""
    folder = tmp_path_factory.mktemp("maven")
    try:
        command = compiler_named("bionic-stubs").command(TRIPLE)
    except ToolchainError as error:
        pytest.skip(f"needs zig: {error}")
    for name, group, labels in (("first", "com.example", LABELS), ("second", "org.other", ("ant", *LABELS[1:]))):
        place = tmp_path_factory.mktemp(name) / "cell"
        made = small_part(place)
        network = Network(f"{name}@phone:float32", (SPEC,), ("scores",), 2, labels)
        built = write_network(place / "build" / "network.so", small_scheduled(), network, command)
        target = replace(made.manifest.target, mtriple=TRIPLE, cc="bionic-stubs")
        part = replace(written(place, built, target, labels), cell=network.cell, slug=f"{name}.phone.float32")
        write_aar(folder, [part], BundleRequest(name, version=1), None, group)
    return folder


def _merge(repository: Path, app: Path) -> None:
    """Unpack all AARs into one app. Fails where Android's packager and its checks do."""
    packages = []
    for aar in sorted(repository.rglob("*.aar")):
        with zipfile.ZipFile(aar) as archive:
            manifest = ElementTree.fromstring(archive.read("AndroidManifest.xml"))  # noqa: S314 (our own)
            packages.append(manifest.attrib["package"])
            files = {
                f"lib/{n.removeprefix('jni/')}": archive.read(n) for n in archive.namelist() if n.startswith("jni/")
            }
            with zipfile.ZipFile(io.BytesIO(archive.read("classes.jar"))) as jar:
                files |= {f"classes/{n}": jar.read(n) for n in jar.namelist() if n != "META-INF/MANIFEST.MF"}
        for name, data in files.items():
            assert not (app / name).exists(), f"{name} twice: the second in {aar.name}"
            (app / name).parent.mkdir(parents=True, exist_ok=True)
            (app / name).write_bytes(data)
    assert len(packages) == 3 and len(set(packages)) == 3, "each has its own namespace"


def _run(*command: str, folder: Path, libraries: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"} | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def app(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything that the three AARs bring, an input, and what runs libraries for Android here."""
    folder = tmp_path_factory.mktemp("app")
    _merge(repository, folder)
    write_shims(folder / "lib" / "x86_64", "x86_64", ["gcc"])
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12), dtype=np.float32)
    (folder / "x").write_bytes(x.tobytes())
    return folder


@pytest.fixture(scope="module")
def expected(app: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    made = small_part(tmp_path_factory.mktemp("here") / "cell")
    x = np.frombuffer((app / "x").read_bytes(), np.float32).reshape(1, 3, 12, 12)
    [scores] = OpenedNetwork(made.path("build", "network.so"), 2).run(x)
    return [f"{bits:x}" for bits in scores.ravel().view(np.uint32)]


@NEEDS_JAVA
@pytest.mark.slow
def test_two_models_run_in_one_app(app: Path, expected: list[str]) -> None:
    (app / "App.java").write_text(APP)
    _run("javac", "-Xlint:all", "-Werror", "-cp", "classes", "-d", "classes", "App.java", folder=app)
    place = app / "lib" / "x86_64"
    said = _run(
        "java", "-Xcheck:jni", f"-Djava.library.path={place}", "-cp", "classes", "App", "x", folder=app, libraries=place
    ).splitlines()
    lines = [line.split(maxsplit=9) for line in said[:3]]
    assert [line[:3] for line in lines] == [
        ["first", "first@phone:float32", "cat"],
        ["second", "second@phone:float32", "ant"],
        ["pair", "first@phone:float32", "cat"],
    ]
    assert all(line[3:8] == expected and line[8] == "cpu" for line in lines)
    assert len(lines[0]) == 9 and lines[2][9], "the pair says why the CPU computes: its library for a GPU is not there"
    assert said[3] == "none has no library for x86_64"


def _library(manifest: Manifest, cell: str, abi: str, gpu: str | None = None, **other: object) -> Library:
    return manifest.libraries[0].model_copy(update={"cell": cell, "abi": abi, "gpu": gpu, **other})


def test_libraries_of_one_model_are_one_network(bundle: Path) -> None:
    with Archive(bundle) as archive:
        manifest = read_manifest(archive.read("manifest.json"))
    assert [one.model_dump() for one in manifest.networks] == [
        {"name": "small", "abi": manifest.libraries[0].abi, "cpu": manifest.libraries[0].cell, "gpu": None}
        | {"faster": ()}
    ]
    cpu, gpu = _library(manifest, "m@a:float32", "x86_64"), _library(manifest, "m@g:float16", "x86_64", "vulkan")
    other = _library(manifest, "m@b:float32", "arm64-v8a")
    found = [(one.name, one.abi, one.cpu, one.gpu) for one in choices([cpu, gpu, other])]
    assert found == [("m", "arm64-v8a", "m@b:float32", None), ("m", "x86_64", "m@a:float32", "m@g:float16")]
    small = _library(manifest, "m@a:int8", "x86_64")
    names = {(one.name, one.cpu or one.gpu) for one in choices([cpu, small, other])}
    assert names == {("m:float32", "m@a:float32"), ("m:int8", "m@a:int8"), ("m:float32", "m@b:float32")}
    differs = _library(manifest, "m@g:float32", "x86_64", "vulkan", labels=("x",))
    assert {one.name for one in choices([cpu, differs])} == {"m@a:float32", "m@g:float32"}
    wrong = json.loads(manifest.to_bytes()) | {
        "networks": [{"name": "small", "abi": "x86_64", "cpu": "no@such:cell", "gpu": None}]
    }
    with pytest.raises(BundleError, match="network small of x86_64 is of no library"):
        read_manifest(json.dumps(wrong).encode())


KOTLIN = """
import com.example.first.Models
import java.nio.ByteBuffer
import java.io.File
import kotlinx.coroutines.runBlocking
import tvmflow.Network
import tvmflow.awaitOpen
import tvmflow.awaitRun

fun main(words: Array<String>) = runBlocking {
    val network = Models.FIRST.awaitOpen()
    val input = Network.buffer(network.inputs[0])
    val output = Network.buffer(network.outputs[0])
    input.put(File(words[0]).readBytes()).rewind()
    network.awaitRun(arrayOf(input), arrayOf(output))
    println((0 until 5).joinToString(" ") { Integer.toHexString(output.getInt(4 * it)) })
    network.close()
}
"""


@NEEDS_JAVA
@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("kotlinc") is None,
    reason="needs kotlinc: apt-get install kotlin libkotlinx-coroutines-java libkotlinx-atomicfu-java",
)
def test_coroutines_run_a_network(app: Path, expected: list[str], tmp_path: Path) -> None:
    write_ktx(tmp_path, compile_java(sources()), None)
    [jar] = tmp_path.rglob("*.jar")
    (tmp_path / "main.kt").write_text(KOTLIN)
    shared = Path("/usr/share/java")
    path = f"{app / 'classes'}:{jar}:{shared / 'kotlinx-coroutines-core.jar'}"
    _run("kotlinc", "-jvm-target", "1.8", "-cp", path, "-d", "made", "main.kt", folder=tmp_path)
    place = app / "lib" / "x86_64"
    path = ":".join(["made", path, *map(str, shared.glob("atomicfu.jar")), str(shared / "kotlin-stdlib.jar")])
    words = ["java", f"-Djava.library.path={place}", "-cp", path, "MainKt", str(app / "x")]
    assert _run(*words, folder=tmp_path, libraries=place).split() == expected
