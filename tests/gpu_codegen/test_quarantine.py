"""GPUs whose kernels differ from the CPU's: remembered until they agree, and no release relies on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.agreement import add_first_kernel
from tvmflow.devices.gpu.quarantine import note_agreement, read_quarantine
from tvmflow.devices.gpu_facts import GpuFacts
from tvmflow.evaluation.kernel_agreement import KernelAgreement, NetworkAgreement
from tvmflow.shipping.gates.app import judge_gpu
from tvmflow.shipping.gates.gpu import gpu_reasons
from tvmflow.support.errors import AgreementError, StoreError

GPU = GpuFacts("opencl", "Mali-G72", "ARM Platform", "2.1")
NEWER = GpuFacts("opencl", "Mali-G72", "ARM Platform", "3.0")
CELL, OTHER = "a@phone:float32", "b@phone:float32"


def _agreement(*errors: float) -> dict[str, Any]:
    kernels = tuple(KernelAgreement(f"kernel{at}", error, True) for at, error in enumerate(errors))
    return NetworkAgreement(kernels, 1e-3, 3).to_json()


def _card(agreement: dict[str, Any] | None, gpu: GpuFacts | None = GPU) -> dict[str, Any]:
    return {"device": {"gpu": gpu.to_json() if gpu else None}, "kernel_agreement": agreement}


def test_an_agreement_names_the_first_kernel_that_differs() -> None:
    good = _agreement(1e-6, 1e-4)
    assert good == {"kernels": 2, "samples": 3, "bound": 1e-3, "largest_error": 1e-4, "first": None}
    bad = _agreement(1e-6, float("inf"), 0.5)
    assert bad["first"] == {"kernel": "kernel1", "error": None} and bad["largest_error"] is None
    error = add_first_kernel(AgreementError("deploy changes the outputs", "at most 1"), bad)
    assert "kernel1 is the first kernel" in error.found and error.expected == "at most 1"
    assert add_first_kernel(error, good) is error and add_first_kernel(error, None) is error


def test_a_gpu_is_in_quarantine_until_the_same_network_agrees(tmp_path: Path) -> None:
    assert read_quarantine(tmp_path) == ()
    note_agreement(tmp_path, GPU, CELL, None)
    assert read_quarantine(tmp_path) == ()
    note_agreement(tmp_path, GPU, CELL, {"kernel": "conv", "error": 0.5})
    note_agreement(tmp_path, GPU, CELL, {"kernel": "pool", "error": None})
    note_agreement(tmp_path, GPU, OTHER, None)
    note_agreement(tmp_path, NEWER, CELL, None)
    [held] = read_quarantine(tmp_path)
    assert (held.gpu, held.cell, held.kernel) == (GPU, CELL, "pool")
    assert "kernel pool of a@phone:float32 computes other values than the CPU (no number, 2" in held.reason
    note_agreement(tmp_path, GPU, CELL, None)
    assert read_quarantine(tmp_path) == ()


def test_a_damaged_quarantine_is_an_error(tmp_path: Path) -> None:
    note_agreement(tmp_path, GPU, CELL, {"kernel": "conv", "error": 0.5})
    [path] = (path for path in (tmp_path / "artifacts").iterdir() if path.suffix == ".json")
    for text in ("", "[{}]", "{", '[{"gpu": {"api": 1}}]'):
        path.write_text(text)
        with pytest.raises(StoreError, match="cannot be read"):
            read_quarantine(tmp_path)


def test_a_release_asks_for_kernels_that_agree_on_a_gpu_that_is_not_in_quarantine(tmp_path: Path) -> None:
    good, bad = _agreement(1e-6), _agreement(0.5)
    assert gpu_reasons({"device": {}}, None, ()) == [], "a CPU computes it"
    assert gpu_reasons(_card(good), "opencl", ()) == []
    for card in (_card(None), _card(good, None), {"device": {}}):
        assert ["never compared" in reason for reason in gpu_reasons(card, "opencl", ())] == [True]
    note_agreement(tmp_path, GPU, OTHER, {"kernel": "conv", "error": 0.5})
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
