"""Check that generated code executes as many instructions on arm64 as the file says, and says so where it is more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.arm64_instructions import NETWORKS, RENEW, counts_of, load
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.toolchain.versions import version

GOLDEN = load()


@pytest.mark.few(1)
@pytest.mark.skipif(version("tvm") != GOLDEN["tvm"], reason="the counts are of the pinned TVM")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_executes_as_many_instructions_as_before(
    name: str, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    found, known = counts_of(NETWORKS[name], emulated, runner, tmp_path), GOLDEN["counts"][name]
    ratio = found["instructions"] / known["instructions"]
    assert found == known, f"{name}: {ratio:.4f} of the instructions; if that is meant: {RENEW}"


def test_the_counts_are_of_these_networks() -> None:
    assert list(GOLDEN["counts"]) == list(NETWORKS), RENEW
