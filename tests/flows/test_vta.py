"""Run all stages of a cell on the simulated accelerator, in a workspace whose float32 cell is finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import stage, tvmflow
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.instructions import INSTRUCTION_BYTES

pytestmark = pytest.mark.usefixtures("with_prefect_server")

CELL = "digits_torch@vta-sim:vta_int8"
FOLDER = "digits_torch.vta-sim.vta_int8"


def _read(root: Path, *parts: str) -> Any:
    return json.loads(root.joinpath("artifacts", *parts).read_text())


def test_a_cell_on_the_simulated_accelerator(copy_of_finished: Path) -> None:
    root = copy_of_finished
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["tune"]["trials_per_workload"] = 0  # of the CPU's kernels; tiles are searched for all the same
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    tvmflow(root, "run", CELL)
    card, program = (
        _read(root, "evaluate", FOLDER, "scorecard.json"),
        _read(root, "build", FOLDER, "vta", "manifest.json"),
    )
    assert card["device"]["kind"] == f"vta-{VtaConfig().name}" and card["peers"] == {}
    accuracy = card["accuracy"]
    assert accuracy["quantized"] == accuracy["built"] and accuracy["built"] >= accuracy["source"] - 0.01
    # The layers before VTA are float: a value between two int8 steps may be rounded the other way, and no more than
    # that.
    built = card["agreement_by_step"]["quantized-built"]
    assert built["top1_agreement"] == 1.0 and (built["sqnr_db"] is None or built["sqnr_db"] > 60)
    vta = card["part"]
    assert vta["runs"] >= accuracy["samples"] and vta["offloaded"] == ["conv1", "max_pool2d0", "conv2"]
    assert vta["counters"] == program["counters"] and vta["counters"]["gemm_counter"] > 0
    folder = root / "artifacts" / "build" / FOLDER / "vta" / "vta0"
    assert [region["name"] for region in vta["regions"]] == ["vta0"] and vta["counted"]
    assert (folder / "instructions.bin").stat().st_size == INSTRUCTION_BYTES * vta["counters"]["insn_count"]
    assert (folder / "listing.txt").read_text().count("FINISH") == vta["launches"] == 3
    tiles = _read(root, "tune", FOLDER, "best.json")["part"]
    assert [tile["layer"] for tile in tiles] == ["conv1_q", "conv2_q"] and all(tile["cycles"] > 0 for tile in tiles)
    archive = str(
        root / "vta.zip"
    )  # the library without TVM, whose accelerator is simulated through the driver seam in C
    tvmflow(root, "bundle", CELL, "--newest", "--unsigned", "--output", archive)
    [library] = json.loads(tvmflow(root, "verify", archive, "--unsigned", "--json").stdout)["libraries"]
    assert library["ran"].startswith("4 golden inputs")
    tvmflow(root, "report")
    cells = json.loads(tvmflow(root, "report", "--json").stdout)["cells"]
    shown = {one["card"]["cell"]: one["card"] for one in cells}
    assert shown[CELL]["part"]["counters"] == vta["counters"] and FOLDER in (root / "report.html").read_text()
    history = json.loads(tvmflow(root, "history", CELL, "--json").stdout)
    assert history


@pytest.mark.slow
def test_other_precisions_and_impossible_cuts_are_told(copy_of_finished: Path) -> None:
    root = copy_of_finished
    for name in ("fetch", "import_model"):
        stage(root, name, CELL)
    wrong = tvmflow(root, "run", "digits_torch@vta-sim:float32", code=2)
    assert "vta_int8" in wrong.stderr and "Traceback" not in wrong.stderr
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["targets"]["vta-sim"]["vta"] |= {"start": "conv9", "mode": "reference"}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    stage(root, "quantize", CELL)
    refused = stage(root, "graph_pack", CELL, code=2)
    assert "no layer 'conv9' on VTA" in refused.stderr and "conv1" in refused.stderr
    params["targets"]["vta-sim"]["vta"] |= {"start": "conv2", "config": {"log_block": 5}}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    for name in ("graph_pack", "tune", "build"):
        stage(root, name, CELL)
    assert _read(root, "build", FOLDER, "manifest.json")["part"]["offloaded"] == ["conv2"]
