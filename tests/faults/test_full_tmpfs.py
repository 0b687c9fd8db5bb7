"""Fill a small disk in the middle of a run: one clear error, soon, and the same command resumes when there is room."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import CELL, REPOSITORY, small_params, tvmflow

_SOON_S, _LOAD_S = 60.0, 8.0  # more for each process that waits on a busy machine


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of memory, hardly larger than what a run asks for."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1100m", "none", str(place)], check=False)
    if made.returncode:
        pytest.skip("needs root, to mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["import_model", "build"])
def test_a_disk_that_fills_in_the_middle_of_a_run(stage: str, disk: Path, tmp_path: Path) -> None:
    (disk / "params.yaml").write_text(yaml.safe_dump(small_params(), sort_keys=False))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tvmflow", "--root", str(disk), "run", CELL],
        cwd=REPOSITORY,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 900
    while not list(disk.glob(f"artifacts/.tmp/{stage}.*.new-*")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.02)
    with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        size = 0
        while True:
            os.posix_fallocate(filler.fileno(), size, 1 << 20)
            size += 1 << 20
    with (disk / "last").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4096))
    filled = time.monotonic()
    said = process.communicate(timeout=600)[1]
    took = time.monotonic() - filled
    errors = [line.strip() for line in said.splitlines() if "error:" in line]
    assert process.returncode == 1 and len(errors) == 1 and "no space left" in errors[0], said
    assert "Traceback" not in said, said
    assert took < _SOON_S + _LOAD_S * os.getloadavg()[0], f"{took:.0f} s: {said}"
    (disk / "filler").unlink()
    (disk / "last").unlink()
    left = [path.name for path in (disk / "artifacts").rglob("*.tmp") if path.is_file()]
    assert not left
    tvmflow(disk, "run", CELL)
