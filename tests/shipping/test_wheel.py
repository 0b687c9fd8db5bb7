"""Test wheels: installed by pip, run without TVM, reproducible, protected from changes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.bundle_parts import CELL, LABELS, SPEC, small_part, small_scheduled, written
from tests.conftest import install_wheel
from tests.shipping.conftest import REQUEST
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.shipping.bundle.archive import Archive, write_archive
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, signing_key
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.shipping.bundle.wheel import write_wheel
from tvmflow.support.errors import BundleError, SignatureError, ToolchainError
from tvmflow.toolchain.compilers import compiler_named

RUN = """
import sys, numpy as np, small
folder = small.Path(small.__file__).parent / "bundle" / "cells" / "small.local-cpu.float32" / "golden"
x, y = np.load(folder / "input0.npy"), np.load(folder / "output0.npy")
with small.load() as network:
    assert all(np.array_equal(network(x[i : i + 1])[0], y[i]) for i in range(len(x)))
assert "tvm" not in sys.modules and "tvmflow" not in sys.modules
with small.load("small.local-cpu:float32".replace(".", "@", 1)) as same:
    assert same.name == network.name and small.NETWORKS == {"small": (same.name, None)}
[(cell, (processor, flags))] = small.PROCESSORS.items()
found = next(x for x in open("/proc/cpuinfo").read().splitlines() if x.lower().startswith(("flags", "features")))
assert flags and set(flags) <= set(found.split())
open("poor", "w").write("flags\t\t: fpu " + " ".join(flags[1:]))
try:
    small._check_processor(cell, "poor")
except small.NetworkError as error:
    assert str(error) == f"{cell} was compiled for {processor}; this processor has no {flags[0]}"
else:
    raise AssertionError("no error")
print(small.__version__, *small.LIBRARIES, network.labels[0])
"""


FORK = """
import _ctypes, ctypes, os, sys
sys.path.insert(0, sys.argv[2])
from tvmflow_network import Network
with Network(sys.argv[1]):
    pass
handle = ctypes.CDLL(sys.argv[1])._handle
name = os.path.realpath(sys.argv[1])
while name in open("/proc/self/maps").read():
    _ctypes.dlclose(handle)
child = os.fork()
if not child:
    os._exit(7)
assert os.waitpid(child, 0)[1] >> 8 == 7
print("forked")
"""


@pytest.fixture(scope="module")
def wheel(part: Part, keys: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("wheel"), [part], REQUEST, signing_key(keys.private))[0]


def test_it_is_installed_and_runs_without_tvm(wheel: Path, tmp_path: Path) -> None:
    install_wheel(wheel, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["3", CELL, "cat"], done.stderr


def test_it_is_the_same_each_time_and_names_its_platform(
    wheel: Path, part: Part, keys: KeyPair, tmp_path: Path
) -> None:
    again, manifest = write_wheel(tmp_path, [part], REQUEST, signing_key(keys.private))
    assert again.read_bytes() == wheel.read_bytes() and again.name == wheel.name
    newest = max(tuple(map(int, text.split("_")[1].split("."))) for text in manifest.libraries[0].made.system)
    machine = part.manifest.target.mtriple.split("-")[0]
    assert wheel.name == f"small-3-py3-none-manylinux_{newest[0]}_{newest[1]}_{machine}.whl"


def test_it_is_verified(wheel: Path, trust: Trust, tmp_path: Path) -> None:
    report = verify(wheel, replace(trust, at_least=3))
    assert report.version == 3 and report.libraries[0].ran.endswith("bit for bit")
    copy = tmp_path / wheel.name
    data = wheel.read_bytes()
    copy.write_bytes(data)
    with pytest.raises(SignatureError, match=r"no .*\.whl\.dsse\.json next to "):
        verify(copy, trust)
    beside = copy.with_name(f"{copy.name}.dsse.json")
    beside.write_bytes(wheel.with_name(beside.name).read_bytes())
    place = data.index(b"numpy in, numpy out")  # of the module, which the bundle's own statement does not know
    copy.write_bytes(data[:place] + b"N" + data[place + 1 :])
    with pytest.raises(BundleError, match="was altered: its digest differs from the statement next to it"):
        verify(copy, trust)


@pytest.mark.parametrize(
    "name",
    [
        "evil.pth",
        "small/evil.py",
        "small-3.data/scripts/sh",
        "small-3.dist-info/entry_points.txt",
        "other-3.dist-info/WHEEL",
    ],
)
def test_a_file_outside_the_bundle_is_refused(wheel: Path, tmp_path: Path, name: str) -> None:
    with Archive(wheel) as archive:
        files = {one: archive.read(one) for one in archive.entries}
    write_archive(tmp_path / wheel.name, {**files, name: b"import os"})
    with pytest.raises(BundleError, match=f"{name} is in the wheel"):
        verify(tmp_path / wheel.name, Trust(None, unsigned=True))


def test_a_pipe_beside_a_wheel_is_refused(wheel: Path, trust: Trust, tmp_path: Path) -> None:
    (tmp_path / wheel.name).write_bytes(wheel.read_bytes())
    os.mkfifo(tmp_path / f"{wheel.name}.dsse.json")
    with pytest.raises(BundleError, match="it is a pipe, not a plain file"):
        verify(tmp_path / wheel.name, trust)


def test_linked_by_zig_it_installs_where_glibc_is_old(part: Part, tmp_path: Path) -> None:
    """The tag is held against the versions of symbols, as auditwheel does: glibc 2.28 or older."""
    try:
        command = compiler_named("zig").command("x86_64-linux-gnu")
    except ToolchainError as error:
        pytest.skip(f"needs zig: {error}")
    made = small_part(tmp_path / "cell")
    path = tmp_path / "cell" / "build" / "network.so"
    built = write_network(path, small_scheduled(), Network(CELL, (SPEC,), ("scores",), 2, LABELS), command)
    target = replace(part.manifest.target, cc="zig")
    old, _ = write_wheel(tmp_path, [written(tmp_path / "cell", built, target, LABELS)], REQUEST, None)
    with path.open("rb") as file:
        needs = [
            aux.name for _, all in ELFFile(file).get_section_by_name(".gnu.version_r").iter_versions() for aux in all
        ]
    newest = max(tuple(map(int, name.removeprefix("GLIBC_").split(".")))[:2] for name in needs)
    [tag] = re.findall(r"manylinux_(\d+)_(\d+)_x86_64\.whl", old.name)
    assert newest <= tuple(map(int, tag)) <= (2, 28)
    assert verify(old, Trust(None, unsigned=True)).libraries[0].ran.startswith("4 golden inputs"), made.cell
    words = [sys.executable, "-c", FORK, str(path), str(RUNTIME / "python")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "forked\n"), done.stderr


def test_a_wheel_is_for_one_platform(part: Part, tmp_path: Path) -> None:
    other = replace(part, cell="other@arm:float32", slug="other.arm.float32")
    target = replace(part.manifest.target, mtriple="x86_64-linux-android")
    other.__dict__["manifest"] = replace(part.manifest, target=target)
    with pytest.raises(BundleError, match=r"libsmall_local_cpu_float32\.so: it|cells for|a wheel for"):
        write_wheel(tmp_path, [part, other], REQUEST, None)
    assert list(tmp_path.iterdir()) == []
