"""Test a search from the command line: what it leaves out, that it goes on after a kill, what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.conftest import CELL, SLUG, tvmflow
from tvmflow import api
from tvmflow.config.workspace import Workspace
from tvmflow.shipping.search.goals import Candidate
from tvmflow.support.json_values import from_json

INT8 = CELL.replace("float32", "int8")
BAD = CELL.replace("float32", "vta_int8")
SEARCH = (
    "search",
    "digits_torch",
    "--precisions",
    "float32,int8,vta_int8",
    "--trials",
    "2",
    "--max-drop",
    "0.2%",
    "--max-latency",
    "5s",
)


@pytest.mark.usefixtures("with_prefect_server")
def test_a_killed_search_goes_on_and_writes_what_it_chose(copy_of_finished: Path) -> None:
    root = copy_of_finished
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["quantize"]["vta_int8"] |= {
        "scale": "global",
        "global_scale": 2.0,
    }  # clips: two samples get another class
    (root / "params.yaml").write_text("# by hand\n" + yaml.safe_dump(params, sort_keys=False))
    packed = _packed_then_killed(root)

    done = tvmflow(root, *SEARCH, "--json", "--write")
    found = {(one.cell, one.float_layers): one for one in _candidates(done.stdout)}
    assert packed.stat().st_mtime_ns == packed.with_suffix(".seen").stat().st_mtime_ns, "it began again"
    states = {key: (one.state, one.why) for key, one in found.items()}
    assert states[CELL, None] == ("recorded", ""), "MLflow has a measurement of this recipe"
    assert states[INT8, 0] == ("measured", "")
    assert states[INT8, 8] == ("left out", "the same as with at most 0: no more layers go back to float")
    assert states[BAD, None][0] == "left out" and "after quantize, above 0.20%" in states[BAD, None][1]
    assert not list((root / "artifacts" / ".search").glob("*vta_int8*/tune/*")), "what fails is never tuned"
    assert (root / "search-digits_torch.html").exists()

    text = (root / "params.yaml").read_text()
    [chosen] = [one["cell"] for one in json.loads(done.stdout)["candidates"] if one["is_chosen"]]
    assert (
        text.startswith("# by hand\n") and not (root / "artifacts" / "tune" / SLUG.replace("float32", "int8")).exists()
    )
    if chosen == INT8:
        assert yaml.safe_load(text)["overrides"] == {INT8: {"int8": {"max_drop": 0.002, "max_float_layers": 0}}}
        [plan] = api.plan(INT8, workspace=Workspace(root))
        assert [stage.state for stage in plan.stages if stage.stage not in ("fetch", "import_model")][:4] == [
            "restore"
        ] * 4
    else:
        assert chosen == CELL and yaml.safe_load(text)["overrides"] == {}


def _candidates(text: str) -> list[Candidate]:
    rows = json.loads(text)["candidates"]
    return [
        from_json(Candidate, {name: value for name, value in row.items() if name not in ("is_best", "is_chosen")})
        for row in rows
    ]


def _packed_then_killed(root: Path) -> Path:
    """Start a search, kill it when int8 is packed, and return the record of that stage."""
    search = subprocess.Popen(
        [sys.executable, "-m", "tvmflow", "--root", str(root), *SEARCH],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    try:
        while not (made := list((root / "artifacts" / ".search").glob("*.int8.*/graph_pack/*/record.json"))):
            assert time.monotonic() < deadline and search.poll() is None, "int8 was not packed"
            time.sleep(0.1)
    finally:
        os.killpg(search.pid, signal.SIGKILL)
        search.wait()
    seen = made[0].with_suffix(".seen")
    seen.touch()
    os.utime(seen, ns=(made[0].stat().st_mtime_ns,) * 2)
    return made[0]
