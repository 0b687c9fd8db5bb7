"""Run the integer precisions through the real stages, in a workspace whose float32 cell is finished."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.conftest import stage, tvmflow

pytestmark = pytest.mark.usefixtures("with_prefect_server")


def test_an_int8_cell_all_the_way(copy_of_finished: Path) -> None:
    root, cell = copy_of_finished, "digits_torch@local-cpu:int8"
    tvmflow(root, "run", cell)
    card = json.loads(
        (root / "artifacts" / "evaluate" / cell.replace("@", ".").replace(":", ".") / "scorecard.json").read_text()
    )
    accuracy = card["accuracy"]
    assert set(accuracy) >= {"source", "imported", "quantized", "built"}
    assert accuracy["quantized"] == accuracy["built"], "the compiled integers are those of the definition"
    assert accuracy["built"] >= accuracy["source"] - 0.01
    assert card["quantization"]["layers"]
    assert "quantized" in json.dumps(json.loads(tvmflow(root, "report", "--json").stdout))


@pytest.mark.slow
def test_vta_int8_up_to_the_library(copy_of_finished: Path) -> None:
    root, cell = copy_of_finished, "digits_torch@local-cpu:vta_int8"
    given = yaml.safe_load((root / "params.yaml").read_text())
    tiny = given | {
        "quantize": given["quantize"] | {"vta_int8": {"scale": "global", "global_scale": 2.0**-9, "keep_float": []}}
    }
    (root / "params.yaml").write_text(yaml.safe_dump(tiny, sort_keys=False))
    for name in ("fetch", "import_model"):
        stage(root, name, cell)
    refused = stage(root, "quantize", cell, code=1).stderr
    assert "hint: quantize.vta_int8.global_scale: auto, or " in refused and "Traceback" not in refused
    (root / "params.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    for name in ("quantize", "graph_pack", "tune", "build"):
        stage(root, name, cell)
    folder = root / "artifacts" / "quantize" / "digits_torch.local-cpu.vta_int8"
    report = json.loads((folder / "quantization.json").read_text())
    scales = [layer["scale"] for layer in report["layers"] if layer.get("scale")]
    assert scales and all(np.log2(scale) == round(np.log2(scale)) for scale in scales), "powers of two only"
