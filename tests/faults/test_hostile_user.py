"""Run stages, Prefect's server and a measuring server as a user without privileges, while `nobody` attacks them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY, small_params

USER, NOBODY = 54321, 65534
pytestmark = [pytest.mark.slow, pytest.mark.heavy]

# What the user does, in a folder that all may write.
_WORK = """
import os, subprocess, sys, time
from pathlib import Path
from flows.settings import configure_prefect, wait_for_prefect
from tvmflow.config.workspace import Workspace
from tvmflow.devices.this_host import measure_on_this_host
from tvmflow.devices.rpc.local import local_server
from tvmflow.support.errors import UsageError
root, shared = Path(sys.argv[1]), Path.cwd()
assert os.getuid() == 54321
try:
    configure_prefect(Workspace(root))
    sys.exit("settings that another user planted were read")
except UsageError as error:
    assert "belongs to another user" in error.found, error
os.chdir(root)
configure_prefect(Workspace(root))
wait_for_prefect()
os.chdir(shared)
for stage in ("fetch", "import_model"):
    subprocess.run([sys.executable, "-P", "-m", "tasks", "--root", str(root), stage, "digits"], check=True)
with measure_on_this_host(60.0), local_server("local", 1) as server:
    session = server.connect(60)
    assert session.cpu(0).exist
    time.sleep(3)
print("worked")
"""
_PLANTED = {
    ".env": "PREFECT_API_URL=http://127.0.0.1:9/api\nPREFECT_LOGGING_SETTINGS_PATH={shared}/logging.yml\n",
    "prefect.toml": '[api]\nurl = "http://127.0.0.1:9/api"\n',
    **{
        f"{name}.py": "open('{shared}/ran', 'a').write('x')\n"
        for name in ("json", "sitecustomize", "usercustomize", "numpy", "tvm", "tvmflow", "venv", "platform")
    },
}


@pytest.fixture
def shared() -> Iterator[Path]:
    """Make a folder as /tmp is, in it; pytest's own is closed to others."""
    if os.getuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("needs root and util-linux, to run as other users")
    folder = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def _as_user(uid: int, *command: str) -> list[str]:
    """Return a command as another user, for whom Python can be reached in a mount namespace of its own."""
    closed = next((path for path in reversed(Path(sys.base_prefix).parents) if not path.stat().st_mode & 1), None)
    prepare = "true"
    if closed is not None:
        below = closed / Path(sys.base_prefix).relative_to(closed).parts[0]
        prepare = (
            f"mount -t tmpfs none /mnt && mkdir /mnt/p && mount --bind {below} /mnt/p && "
            f"mount -t tmpfs -o mode=755 none {closed} && mkdir {below} && mount --bind /mnt/p {below}"
        )
    script = f'{prepare} && exec setpriv --reuid={uid} --regid={uid} --clear-groups "$@"'
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", *command]


def test_nothing_is_done_by_another_user(shared: Path) -> None:
    home = shared / "home"
    workspace, victim = home / "workspace", home / "victim"
    workspace.mkdir(parents=True)
    victim.write_text("whole")
    (workspace / "params.yaml").write_text(yaml.safe_dump(small_params(), sort_keys=False))
    for path in (home, workspace, victim, workspace / "params.yaml"):
        os.chown(path, USER, USER)
    for name, text in _PLANTED.items():
        (shared / name).write_text(text.replace("{shared}", str(shared)))
        os.chown(shared / name, NOBODY, NOBODY)
    script = shared / "attack.py"
    shutil.copy(Path(__file__).parent / "hostile_user.py", script)
    python = str(Path(sys.prefix) / "bin" / "python")
    stop, results = shared / "stop", shared / "results.json"
    locks = shared / "tvmflow-locks"
    attack = [python, "-I", str(script), str(stop), str(results), str(victim), str(locks), str(workspace)]
    attacker = subprocess.Popen(_as_user(NOBODY, *attack), cwd="/", stderr=subprocess.PIPE, text=True)
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        **{"HOME": str(home), "USER": "somebody", "PYTHONPATH": str(REPOSITORY), "TVMFLOW_CACHE": str(home / "cache")},
        **{"TVMFLOW_LOCKS": str(locks), "PYTHONDONTWRITEBYTECODE": "1"},
    }
    work = _as_user(USER, python, "-P", "-c", _WORK, str(workspace))
    done = subprocess.run(work, cwd=shared, env=environment, capture_output=True, text=True, timeout=900, check=False)
    time.sleep(1)
    stop.touch()
    said = attacker.communicate(timeout=120)[1]
    assert done.returncode == 0 and "worked" in done.stdout, done.stdout + done.stderr[-4000:]
    assert attacker.returncode == 0, said
    found = json.loads(results.read_text())
    assert found["done"] == []
    assert all(count > 0 for count in found["tried"].values()), found["tried"]
    assert victim.read_text() == "whole" and not (shared / "ran").exists()
    strange = [str(path) for path in home.rglob("*") if path.lstat().st_uid != USER]
    assert strange == []
