"""Test the C++ binding with a GPU library and CPU fallback: which device computes, why, and what cannot be written."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.gpu_codegen.test_fallback import _write
from tests.gpu_codegen.test_opencl_faults import SAMPLE, opencl_driver
from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.support.runtime_binding import network_binding
from tvmflow.toolchain.software_gpus import software_drivers

PROGRAM = r"""
#include <fstream>
#include <iostream>
#include <iterator>
#include "tvmflow.hpp"
extern "C" const tvmflow_api *tvmflow_network(void);
int main(int, char **words) {
  std::ifstream file(words[1], std::ios::binary);
  std::vector<char> x((std::istreambuf_iterator<char>(file)), {});
  tvmflow_gpu where = tvmflow_gpu();
  where.library = words[3][0] ? words[3] : nullptr;
  tvmflow::network first(tvmflow_network(), tvmflow::gpu_library(words[2]), where), net(std::move(first));
  std::vector<float> scores(net.output(0).size / 4), features(net.output(1).size / 4);
  for (int i = 0; i < 2; ++i) net.run({x.data()}, {scores.data(), features.data()});
  std::ofstream(words[4], std::ios::binary).write(reinterpret_cast<char *>(scores.data()), scores.size() * 4);
  const tvmflow::processor_info who = net.processor();
  std::cout << who.device << "|" << who.gpu << "|" << who.reason << "\n";
}
"""
MISUSES = {
    "elements of a type that no output has": "net.run<double>(nullptr);",
    "memory of a GPU": "net.processor().buffer();",
    "a copy of an instance": "tvmflow::network other(net);",
    "a GPU library without a CPU library": 'tvmflow::network other(tvmflow::gpu_library("x"));',
}


def _compiled(folder: Path, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "main.cc").write_text(text)
    options = ["-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{RUNTIME / 'include'}"]
    command = ["g++", *options, str(folder / "main.cc"), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cpp")
    _write(made / "opencl.so", "opencl")
    _write(made / "cpu.so", None)
    done = _compiled(made, PROGRAM, str(made / "cpu.so"), "-ldl", f"-Wl,-rpath,{made}", "-o", str(made / "app"))
    assert done.returncode == 0, done.stderr
    soname = subprocess.run(["readelf", "-d", str(made / "cpu.so")], capture_output=True, text=True, check=True).stdout
    [name] = re.findall(r"soname: \[(.*)\]", soname)
    (made / name).symlink_to(made / "cpu.so")
    return made


def _run(folder: Path, tmp_path: Path, library: Path, driver: Path, environment: dict[str, str] | None = None) -> str:
    """Return device, GPU and reason; the scores are compared with the CPU's."""
    SAMPLE.tofile(tmp_path / "x")
    words = [str(folder / "app"), str(tmp_path / "x"), str(library), str(driver), str(tmp_path / "y")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    with network_binding().Network(folder / "cpu.so") as network:
        expected = network(SAMPLE)[0]
    found = np.fromfile(tmp_path / "y", np.float32).reshape(expected.shape)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    return done.stdout.strip()


def test_a_gpu_computes_and_is_told(folder: Path, tmp_path: Path) -> None:
    driver = software_drivers().pocl
    said = _run(folder, tmp_path, folder / "opencl.so", driver.library, {**os.environ, **driver.environment})
    assert re.fullmatch(r"4\|.+\|", said), said


@pytest.mark.parametrize(
    ("library", "fault", "reason"),
    [
        ("opencl.so", ".", r"1\|Fake GPU\|.*self-test failed"),
        ("opencl.so", "f", r"1\|\|.*clFinish: error -5"),
        ("none.so", ".", r"1\|\|no library for a GPU was given: .*none\.so: cannot open"),
        ("main.cc", ".", r"1\|\|no library for a GPU was given: .*main\.cc"),
    ],
)
def test_the_cpu_takes_over_and_the_reason_is_told(
    folder: Path, tmp_path: Path, library: str, fault: str, reason: str
) -> None:
    said = _run(folder, tmp_path, folder / library, opencl_driver(tmp_path, fault))
    assert re.fullmatch(reason + ".*", said), said


@pytest.mark.parametrize("what", MISUSES)
def test_wrong_use_does_not_compile(tmp_path: Path, what: str) -> None:
    text = '#include "tvmflow.hpp"\nvoid use(tvmflow::network &net);\nvoid use(tvmflow::network &net) { %s }\n'
    right = _compiled(tmp_path, text % "net.run<float>(nullptr);", "-c", "-o", str(tmp_path / "right.o"))
    assert right.returncode == 0, right.stderr
    assert _compiled(tmp_path, text % MISUSES[what], "-c", "-o", str(tmp_path / "wrong.o")).returncode != 0


def test_no_function_gives_a_pointer_to_memory() -> None:
    text = (RUNTIME / "include" / "tvmflow.hpp").read_text()
    given = re.findall(r"^  (?:const )?(\w+(?:::\w+)?) \*(\w+)\(", text, re.M)
    assert {name for kind, name in given if kind != "tvmflow_api"} == set()
