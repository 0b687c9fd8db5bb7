"""Test the re-tune from one TVM version to the next, with both installed by `make test-all`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import SLUG, tvmflow

pytestmark = pytest.mark.usefixtures("with_prefect_server")

OLD = os.environ.get("TVMFLOW_OLD_TVM", "")


@pytest.mark.needs_old_tvm
@pytest.mark.skipif(not OLD, reason="needs an environment with another TVM: make test")
def test_schedules_of_the_old_tvm_are_replayed_on_the_new_one(copy_of_finished: Path) -> None:
    root = copy_of_finished
    for folder in ("tuning_log", "tune", ".index"):
        subprocess.run(["rm", "-rf", str(root / "artifacts" / folder)], check=True)

    # How fast this machine is from one minute to the next decides nothing here.
    params = (root / "params.yaml").read_text(encoding="utf-8")
    assert "replay_slowdown: 0.1" in params
    (root / "params.yaml").write_text(
        params.replace("replay_slowdown: 0.1", "replay_slowdown: 100.0"), encoding="utf-8"
    )

    def old(*arguments: str) -> None:
        done = subprocess.run(
            [OLD, "-m", "tvmflow", "--root", str(root), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    old("run", "digits")
    old("promote", "digits")
    result = json.loads(tvmflow(root, "retune", "digits", "--json").stdout)[0]
    assert result["before"]["tvm"] == "0.26.0" and result["now"]["tvm"] != "0.26.0"
    assert result["outcomes"]["fetch"] == "hit" and result["outcomes"]["tune"] == "made"
    tuning = result["tuning"]
    assert tuning["replayed"] >= 5 and tuning["lost"] == 0
    manifest = json.loads((root / "artifacts" / "build" / SLUG / "manifest.json").read_text(encoding="utf-8"))
    assert tuning["replayed"] + tuning["searched"] == len({kernel["workload"] for kernel in manifest["kernels"]})
    kernels = tuning["kernels"]
    assert kernels["re-measured"] >= 5 and kernels["lost"] == 0 and sum(kernels.values()) <= len(manifest["kernels"])
    assert result["promoted"] and result["verdict"].startswith(f"{SLUG} version 2 is the champion now (was version 1")
    assert any(line.startswith("toolchain.tvm: 0.26.0 -> ") for line in result["changes"]["tune"])
    rows = json.loads(tvmflow(root, "history", "digits", "--json").stdout)
    assert [row["version"] for row in rows if "champion" in row["version"]] == ["2 champion"]
    [again] = json.loads(tvmflow(root, "retune", "digits", "--json").stdout)
    assert again["outcomes"] == {} and "version 2 was made by this recipe" in again["verdict"]
