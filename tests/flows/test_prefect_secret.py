"""Test that the temporary server of a run answers this command alone: any local user can connect to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tvmflow.support.paths import CODE_ROOT

_RUN = """
import os, sys
from pathlib import Path
import requests
from flows.settings import configure_prefect, wait_for_prefect
from tvmflow.config.workspace import Workspace

configure_prefect(Workspace(Path(sys.argv[1])))
from prefect import flow
from prefect.client.orchestration import get_client

wait_for_prefect()
url, secret = os.environ["PREFECT_API_URL"], os.environ["PREFECT_API_AUTH_STRING"]
for auth in (None, ("tvmflow", "0" * 64), ("tvmflow", "")):
    for path, method in (("flow_runs/filter", "POST"), ("flows/", "POST"), ("admin/version", "GET")):
        assert requests.request(method, f"{url}/{path}", json={"name": "planted"}, auth=auth).status_code == 401, path

@flow
def own():
    return 4

assert own() == 4
with get_client(sync_client=True) as client:
    print([one.name for one in client.read_flows()], len(secret), secret in Path(f"/proc/self/cmdline").read_text())
"""


def test_nobody_else_reads_or_writes_the_server_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("{}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**kept, "PYTHONPATH": str(CODE_ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "['own'] 72 False"
    stored = b"".join(path.read_bytes() for path in (tmp_path / ".prefect").iterdir() if path.is_file())
    assert b"Basic " not in stored and b"tvmflow:" not in stored
