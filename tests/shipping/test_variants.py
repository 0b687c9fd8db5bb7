"""Test libraries of one network for processors with more and fewer instructions: each refuses others, an app picks."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bundle_parts import processor_part
from tests.conftest import REPOSITORY, install_wheel
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.shipping.bundle.aar import _models
from tvmflow.shipping.bundle.archive import Archive
from tvmflow.shipping.bundle.choices import choices
from tvmflow.shipping.bundle.manifest import Library, Manifest, read_manifest
from tvmflow.shipping.bundle.wheel import write_wheel
from tvmflow.shipping.bundle.write import BundleRequest
from tvmflow.support.errors import BundleError
from tvmflow.targets.processor_flags import _FLAGS
from tvmflow.toolchain.versions import missing_flags

RUNTIME = REPOSITORY / "runtime"
is_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="libraries for x86-64")
# x86-64's lists as an app has them, the most demanding first.
PROCESSORS = {"amx": "sapphirerapids", "v3": "x86-64-v3", "v2": "x86-64-v2"}
PROGRAM = """
#include "processor.h"
#include "plan.h"
#include <stdio.h>
static const char *wanted[2];
const plan_tables plan = {.flags = wanted};
int main(int count, char **words) {
  for (int i = 1; i < count; ++i) {
    wanted[0] = words[i];
    if (processor_lacks() != NULL) printf("%s\\n", words[i]);
  }
  return 0;
}
"""
LOAD = """
import json, sys, numpy as np, small
with small.load() as network:
    outputs = network(np.load(sys.argv[1]))
    print(json.dumps([network.name, np.asarray(outputs).ravel().tolist(), small.FASTER["small"]]))
"""


def test_the_runtime_knows_the_processor_as_linux_does(tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    include = [f"-I{RUNTIME / name}" for name in ("include", "src")]
    sources = ["program.c", str(RUNTIME / "src" / "processor.c")]
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", *include, *sources, "-o", "program"],
        cwd=tmp_path,
        check=True,
    )
    flags = list(_FLAGS[platform.machine()].values())
    said = subprocess.run([tmp_path / "program", *flags, "unknown"], capture_output=True, text=True, check=True)
    assert said.stdout.split() == missing_flags(flags)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("variants")
    return [processor_part(folder / name, name, mcpu) for name, mcpu in PROCESSORS.items()]


@is_x86
def test_a_wheel_loads_the_library_that_fits(parts: list[Any], tmp_path: Path) -> None:
    path, manifest = write_wheel(tmp_path, parts, BundleRequest("small"), None)
    cells = [f"small@{name}:float32" for name in PROCESSORS]
    [network] = manifest.networks
    assert (network.name, network.cpu, list(network.faster)) == ("small", cells[-1], cells[:-1])
    flags = {one.cell: one.made.flags for one in manifest.libraries}
    expected = next(cell for cell in cells if not missing_flags(flags[cell]))
    golden = np.load(parts[0].path("fetch", "golden.npz"))
    np.save(tmp_path / "x.npy", golden[golden.files[0]][:1])
    install_wheel(path, tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, tmp_path / "x.npy"],
        env={"PYTHONPATH": f"{tmp_path / 'site'}:{':'.join(sys.path)}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, outputs, faster = json.loads(done.stdout)
    assert name == expected and faster == cells[:-1]
    reference = np.load(parts[0].path("quantize", "reference.npz"))
    np.testing.assert_allclose(outputs, reference[reference.files[0]][0], rtol=1e-4, atol=1e-5)


@is_x86
def test_a_library_for_another_processor_says_so(parts: list[Any], tmp_path: Path) -> None:
    # Under the old path the linker would find the library that made the golden outputs.
    library = Path(shutil.copy(parts[0].path("build", "network.so"), tmp_path / "amx.so"))
    lacking = missing_flags(("amx_tile",))
    if not lacking:
        OpenedNetwork(library, 1)
        pytest.skip("this processor has AMX: no library is for another")
    with pytest.raises(Exception, match=r"this processor has no \w+, which the library was compiled for"):
        OpenedNetwork(library, 1)
    OpenedNetwork(Path(shutil.copy(parts[-1].path("build", "network.so"), tmp_path / "v2.so")), 1)


def test_libraries_are_variants_only_if_one_needs_more_than_the_other(bundle: Path) -> None:
    with Archive(bundle) as archive:
        manifest = read_manifest(archive.read("manifest.json"))

    def library(cell: str, *flags: str, gpu: str | None = None) -> Library:
        first = manifest.libraries[0]
        return first.model_copy(
            update={"cell": cell, "gpu": gpu, "made": first.made.model_copy(update={"flags": flags})}
        )

    low, high, other = library("m@a:int8", "x"), library("m@b:int8", "x", "y"), library("m@c:int8", "z", "x")
    [one] = choices([high, library("m@g:float16", gpu="vulkan"), low])
    assert (one.cpu, one.faster, one.gpu) == ("m@a:int8", ("m@b:int8",), "m@g:float16")
    same, finer = low.model_copy(update={"cell": "m@d:int8"}), library("m@b:int4", "x", "y")
    for group in ([high, other], [low, same], [low, finer]):
        assert len(choices(group)) == 2 and not any(one.faster for one in choices(group))
    libraries = (manifest.libraries[0].model_copy(update={"cell": "s@a:int8"}), high)
    with pytest.raises(BundleError, match="is of no library"):
        made = Manifest.model_construct(**{**dict(manifest), "libraries": libraries, "networks": (one,)})
        read_manifest(made.to_bytes())


def test_an_aar_tries_the_most_demanding_first(bundle: Path) -> None:
    with Archive(bundle) as archive:
        manifest = read_manifest(archive.read("manifest.json"))
    first = manifest.libraries[0]
    more = first.model_copy(
        update={
            "cell": "small@other:float32",
            "soname": "libmore.so",
            "made": first.made.model_copy(update={"flags": (*first.made.flags, "more")}),
        }
    )
    both = manifest.model_copy(update={"libraries": (first, more), "networks": choices([first, more])})
    rows = f'"small", "{first.abi}", "libmore.so", null, "{first.abi}", "{first.soname}", null'
    assert rows in _models(both, "com.example")
