"""Test the quarantine of GPUs whose kernels differ from the CPU's: kept until they agree, and no release meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tasks.agreement import add_first_kernel
from tests.scorecards import DEVICE, scorecard
from tvmflow.devices.gpu.quarantine import DifferingKernel, note_agreement, read_quarantine
from tvmflow.devices.gpu_facts import GpuFacts
from tvmflow.evaluation.kernel_agreement import KernelAgreement, NetworkAgreement
from tvmflow.evaluation.scorecard import GpuAgreement, Scorecard
from tvmflow.shipping.gates.app import judge_gpu
from tvmflow.shipping.gates.gpu import gpu_reasons
from tvmflow.support.errors import AgreementError, StoreError

GPU = GpuFacts("opencl", "Mali-G72", "ARM Platform", "2.1")
NEWER = GpuFacts("opencl", "Mali-G72", "ARM Platform", "3.0")
CELL, OTHER = "a@phone:float32", "b@phone:float32"


def _agreement(*errors: float) -> NetworkAgreement:
    kernels = tuple(KernelAgreement(f"kernel{at}", error, True) for at, error in enumerate(errors))
    return NetworkAgreement(kernels, 1e-3, 3)


def _card(agreement: NetworkAgreement | None, gpu: GpuFacts | None = GPU) -> Scorecard:
    return scorecard(device=replace(DEVICE, gpu=gpu), kernel_agreement=agreement and agreement.summary)


def test_an_agreement_names_the_first_kernel_that_differs() -> None:
    good = _agreement(1e-6, 1e-4)
    assert good.summary == GpuAgreement(2, 3, 1e-3, 1e-4, None)
    bad = _agreement(1e-6, float("inf"), 0.5)
    assert bad.summary == GpuAgreement(3, 3, 1e-3, None, DifferingKernel("kernel1", None))
    error = add_first_kernel(AgreementError("deploy changes the outputs", "at most 1"), bad)
    assert "kernel1 is the first kernel" in error.found and error.expected == "at most 1"
    assert add_first_kernel(error, good) is error and add_first_kernel(error, None) is error


def test_a_gpu_is_in_quarantine_until_the_same_network_agrees(tmp_path: Path) -> None:
    assert read_quarantine(tmp_path) == ()
    note_agreement(tmp_path, GPU, CELL, None)
    assert read_quarantine(tmp_path) == ()
    note_agreement(tmp_path, GPU, CELL, DifferingKernel("conv", 0.5))
    note_agreement(tmp_path, GPU, CELL, DifferingKernel("pool", None))
    note_agreement(tmp_path, GPU, OTHER, None)
    note_agreement(tmp_path, NEWER, CELL, None)
    [held] = read_quarantine(tmp_path)
    assert (held.gpu, held.cell, held.kernel) == (GPU, CELL, "pool")
    assert "kernel pool of a@phone:float32 computes other values than the CPU (no number, 2" in held.reason
    note_agreement(tmp_path, GPU, CELL, None)
    assert read_quarantine(tmp_path) == ()


def test_a_damaged_quarantine_is_an_error(tmp_path: Path) -> None:
    note_agreement(tmp_path, GPU, CELL, DifferingKernel("conv", 0.5))
    [path] = (path for path in (tmp_path / "artifacts").iterdir() if path.suffix == ".json")
    for text in ("", "[{}]", "{", '[{"gpu": {"api": 1}}]'):
        path.write_text(text)
        with pytest.raises(StoreError, match="cannot be read"):
            read_quarantine(tmp_path)


def test_a_release_asks_for_kernels_that_agree_on_a_gpu_that_is_not_in_quarantine(tmp_path: Path) -> None:
    good, bad = _agreement(1e-6), _agreement(0.5)
    assert gpu_reasons(scorecard(), None, ()) == [], "a CPU computes it"
    assert gpu_reasons(_card(good), "opencl", ()) == []
    for card in (_card(None), _card(good, None), scorecard()):
        assert ["never compared" in reason for reason in gpu_reasons(card, "opencl", ())] == [True]
    note_agreement(tmp_path, GPU, OTHER, DifferingKernel("conv", 0.5))
    held = read_quarantine(tmp_path)
    assert gpu_reasons(_card(bad), "opencl", held) == [
        "kernel kernel0 computes different values from the CPU on Mali-G72"
    ]
    [reason] = gpu_reasons(_card(good), "opencl", held)
    assert reason.startswith("Mali-G72 (ARM Platform 2.1, opencl) is in quarantine: kernel conv of b@phone:float32")
    assert gpu_reasons(_card(good, NEWER), "opencl", held) == [], "another driver"


def test_the_gate_of_an_app_says_which_cell() -> None:
    [passed] = judge_gpu(CELL, [])
    [refused] = judge_gpu(CELL, ["kernel conv computes other values"])
    assert passed.passed and passed.gate == "gpu_agreement"
    assert not refused.passed and refused.reason == f"{CELL}: kernel conv computes other values (gpu_agreement)"
