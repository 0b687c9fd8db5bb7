"""Test the C runtime alone: a hand-written plan, every call and every error, under the compiler's sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

RUNTIME = REPOSITORY / "runtime"


def _sources(folder: str) -> list[Path]:
    """Return the runtime, a plan written by hand and what uses it."""
    return [*sorted((RUNTIME / "src").glob("*.c")), *sorted((Path(__file__).parent / folder).glob("*.c"))]


@pytest.mark.parametrize("folder", [".", "images", "device", "sizes"])
@pytest.mark.parametrize(
    "options", [["-O2"], ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], ["-fsanitize=thread"]]
)
def test_every_call_and_every_fault(tmp_path: Path, options: list[str], folder: str) -> None:
    command = [
        "gcc",
        "-std=c11",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        *options,
        f"-I{RUNTIME / 'include'}",
        f"-I{RUNTIME / 'src'}",
    ]
    built = subprocess.run(
        [*command, *map(str, _sources(folder)), "-o", "driver", "-pthread", "-lm"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    # On newer kernels ThreadSanitizer needs addresses that are not randomized.
    done = subprocess.run(
        ["setarch", "-R", "./driver"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("compiler", [["gcc", "-std=c99"], ["g++", "-std=c++11"]])
def test_the_header_stands_alone(tmp_path: Path, compiler: list[str]) -> None:
    source = tmp_path / ("app.cc" if compiler[0] == "g++" else "app.c")
    source.write_text('#include "tvmflow.h"\nint main(void) { return sizeof(tvmflow_api) == 0; }\n')
    done = subprocess.run(
        [
            *compiler,
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            f"-I{RUNTIME / 'include'}",
            str(source),
            "-o",
            str(tmp_path / "app"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("folder", "name"), [(".", "cpp_app.cc"), ("sizes", "sizes_app.cc")])
def test_an_instance_is_an_object_in_cpp(tmp_path: Path, folder: str, name: str) -> None:
    include, warn = (
        [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}"],
        ["-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"],
    )
    parts = [file for file in _sources(folder) if file.name != "driver.c"]
    for file in parts:
        subprocess.run(["gcc", "-std=c11", *warn, *include, "-c", str(file)], cwd=tmp_path, check=True)
    objects = [f"{file.stem}.o" for file in parts]
    app = str(Path(__file__).parent / name)
    subprocess.run(
        ["g++", "-std=c++11", *warn, *include, app, *objects, "-pthread", "-lm", "-o", "app"], cwd=tmp_path, check=True
    )
    done = subprocess.run(["./app"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
