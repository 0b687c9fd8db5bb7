"""Test wheels: installed by pip, run without TVM, reproducible, protected from changes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bundle_parts import CELL
from tests.shipping.conftest import REQUEST
from tvmflow.shipping.bundle.archive import Archive, write_archive
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, signing_key
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.shipping.bundle.wheel import write_wheel
from tvmflow.support.errors import BundleError, SignatureError

RUN = """
import sys, numpy as np, small
folder = small.Path(small.__file__).parent / "bundle" / "cells" / "small.local-cpu.float32" / "golden"
x, y = np.load(folder / "input0.npy"), np.load(folder / "output0.npy")
with small.load() as network:
    assert all(np.array_equal(network(x[i : i + 1])[0], y[i]) for i in range(len(x)))
assert "tvm" not in sys.modules and "tvmflow" not in sys.modules
with small.load("small.local-cpu:float32".replace(".", "@", 1)) as same:
    assert same.name == network.name and small.NETWORKS == {"small": (same.name, None)}
print(small.__version__, *small.LIBRARIES, network.labels[0])
"""


@pytest.fixture(scope="module")
def wheel(part: Part, keys: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("wheel"), [part], REQUEST, signing_key(keys.private))[0]


def test_it_is_installed_and_runs_without_tvm(wheel: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True)
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


def test_a_wheel_is_for_one_platform(part: Part, tmp_path: Path) -> None:
    other = replace(part, cell="other@arm:float32", slug="other.arm.float32")
    target = replace(part.manifest.target, mtriple="x86_64-linux-android")
    other.__dict__["manifest"] = replace(part.manifest, target=target)
    with pytest.raises(BundleError, match=r"libsmall_local_cpu_float32\.so: it|cells for|a wheel for"):
        write_wheel(tmp_path, [part, other], REQUEST, None)
    assert list(tmp_path.iterdir()) == []
