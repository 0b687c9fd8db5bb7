"""Follow "ResNet-18 on the Mali of RK3399 boards": three boards of a key tune, and one is lost on the way.

The boards are agents on this machine, behind programs that do what ssh and scp do; PoCL is in place of Mali's driver.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conftest import REPOSITORY, free_port, small_params
from tests.documents.walk import Params, walking
from tvmflow.devices.rpc.tracker_requests import queue_of
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.toolchain.software_gpus import software_drivers
from tvmflow.tuning.records.record import OK, read_records

SECTION = "ResNet-18 on the Mali of RK3399 boards"
BOARDS = ("one", "two", "three")
TRIALS = 8

SSH = """#!/bin/bash
# ssh -L HERE:127.0.0.1:9300 HOST COMMAND...: in the host's folder, at the port that is forwarded
here=${{2%%:*}}; cd {hosts}/$3 || exit 255; shift 3
exec env {environment} "${{@/9300/$here}}"
"""
SCP = """#!/bin/bash
for last; do :; done
mkdir -p {hosts}/${{last%:}} && cp "${{@:1:$#-1}}" {hosts}/${{last%:}}
"""


def _write_ssh(folder: Path, hosts: Path) -> Path:
    folder.mkdir()
    environment = shlex.join(f"{name}={value}" for name, value in software_drivers().pocl.environment.items())
    for name, text in (("ssh", SSH), ("scp", SCP)):
        (folder / name).write_text(text.format(hosts=hosts, environment=environment))
        (folder / name).chmod(0o755)
    return folder


def _settings(params: Params) -> None:
    params["models"] = {
        "resnet18": {
            "framework": "torch",
            "network": "digits_cnn",
            "weights": {"seeded": 3},
            "input": {"shape": [1, 1, 8, 8]},
        }
    }
    params["tune"] |= {"trials_per_workload": TRIALS, "kernel_timeout_s": 120.0, "give_up_s": 60.0}
    params["evaluate"] |= {"turns": 6, "turn_ms": 1.0, "warmup_runs": 1, "cold_starts": 1, "peers": []}
    if "rk3399-mali" in params["targets"]:
        params["targets"]["rk3399-mali"]["opencl"]["timeout_s"] = 120.0


class _Loss(threading.Thread):
    """Ends the agent of a board once all boards have measured; looks how many the tracker has in use meanwhile."""

    def __init__(self, log: Path, port: int, agent: str) -> None:
        super().__init__(daemon=True)
        self.log, self.tracker, self.agent = log, TrackerAddress("127.0.0.1", port), agent
        self.most_in_use, self.at, self.over = 0, -1, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            with suppress(OSError, KeyError):
                counts = queue_of(self.tracker)["rk3399"]
                self.most_in_use = max(self.most_in_use, counts["total"] - counts["free"])
            records = read_records(self.log) if self.log.exists() else []
            if self.at < 0 and {record.unit for record in records} >= set(BOARDS):
                self.at = len(records)
                for process in psutil.process_iter(["cmdline"]):
                    if self.agent in (process.info["cmdline"] or []) and str(process.cwd()).endswith("/two"):
                        process.send_signal(signal.SIGKILL)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
def test_three_boards_tune_and_one_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.documents.walk.LONGEST_S", 2500.0)
    root, hosts = tmp_path / "boards", tmp_path / "hosts"
    root.mkdir()
    (root / "params.yaml").write_text(yaml.safe_dump(small_params() | {"models": {}, "targets": {}, "cells": {}}))
    (root / "runtime").symlink_to(REPOSITORY / "runtime")
    port, places = free_port(), {f"930{at}": str(free_port()) for at in (1, 2, 3)}
    here = {
        "    mtriple: aarch64-linux-gnu\n": "",
        "cortex-a72": "host",
        "cpu_mask: 48": "cpu_mask: 1",
        "max_celsius: 70.0": "max_celsius: 120.0",
        "aarch64-linux-gnu-gcc": "gcc",
        "--port-end 9191": f"--port-end {port + 1}",
        "9190": str(port),
        **places,
    }
    own = {"PATH": f"{_write_ssh(tmp_path / 'bin', hosts)}:{os.environ['PATH']}"}
    log = root / "artifacts" / "tuning_log" / "resnet18.rk3399-mali.float32.jsonl"
    with walking(SECTION, root, here, _settings, own) as walk:
        walk.follow()
        said = walk.follow()
        [opencl] = [line for line in said.splitlines() if "opencl" in line and "pthread" in line]
        assert "3 of 3 free, 0 waiting" in said and "yes" in opencl, said
        loss = _Loss(log, port, "./tvmflow-agent")
        loss.start()
        said = walk.follow()
        loss.over.set()
        loss.join()
        assert loss.at > 0 and loss.most_in_use == 3, "three boards at once"
        _check_search(root, log, loss.at, said)
        assert walk.follow().strip() == "no candidate of mali failed"


def _check_search(root: Path, log: Path, lost_at: int, said: str) -> None:
    records = read_records(log)
    assert {record.status for record in records} == {OK}, "what a lost board did is no schedule's fault"
    tried = Counter((record.workload, tuple(sorted(record.knobs.items()))) for record in records)
    assert set(tried.values()) == {1}, "nothing twice"
    cost = json.loads((root / "artifacts/tune/resnet18.rk3399-mali.float32/record.json").read_text())["facts"]
    assert cost["devices_lost"] >= 1 and cost["given_up"] == 0 and set(cost["units"]) == set(BOARDS), cost
    after = {record.unit for record in records[lost_at + 8 :]}
    assert after == {"one", "three"}, "the others go on"
    lines = [line for line in said.splitlines() if line.startswith("[Task ")]
    assert len(lines) == len(records) and all("GFLOP/s" in line or " ms," in line for line in lines)
    per_kernel = Counter(record.workload for record in records)
    assert len(per_kernel) >= 4 and max(per_kernel.values()) == TRIALS
    ends = [line for line in lines if re.search(r"trial (\d+) of \1,", line)]
    assert len(ends) == len(per_kernel), "every kernel had all its trials: nothing was lost"
    card = json.loads((root / "artifacts/evaluate/resnet18.rk3399-mali.float32/scorecard.json").read_text())
    assert card["agreement"]["top1_agreement"] == 1.0 and card["agreement"]["max_relative_error"] < 1e-3
    assert card["device"]["gpu"]["api"] == "opencl" and card["kernel_agreement"]["first"] is None
    table = said[said.index("execution time") :]
    assert f"{card['latency']['compute']['mean_ms']:.4g}" in table
