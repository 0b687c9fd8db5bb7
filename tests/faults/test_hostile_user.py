"""Run commands as a user without privileges while `nobody` attacks them, and in folders that `nobody` made."""

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
SECRET = "planted-secret-" + "8e1f" * 8
SIGNING_KEY = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEI{0}\n-----END PRIVATE KEY-----\n"
TAKEN = ("tmp/torchinductor_somebody", "tmp/dask-scratch-space", "tmp/.git", "var-tmp/dvc", "var-tmp/dvc/repo")

# What the user does, in a folder that all may write.
_WORK = """
import os, subprocess, sys, time
from pathlib import Path
from flows.settings import configure_prefect, wait_for_prefect
from tvmflow.config.workspace import Workspace
from tvmflow.devices.rpc.local import local_server
from tvmflow.devices.this_host import measure_on_this_host
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
        for name in ("json", "sitecustomize", "usercustomize", "numpy", "tvm", "tvmflow", "tasks", "venv", "platform")
    },
}


class Machine:
    """Folders as a shared machine has them, in place of this machine's, and what two users do there."""

    def __init__(self, shared: Path) -> None:
        self.shared, self.home = shared, shared / "home"
        self.workspace, self.victim = self.home / "workspace", self.home / "victim"
        self.stop, self.results = shared / "stop", shared / "results.json"
        self.attacker: subprocess.Popen[str] | None = None
        self.make(0, "tmp", "var-tmp", "run-lock", mode=0o1777)
        self.make(USER, "home", "home/workspace")
        self.write(USER, self.victim, "whole")
        self.write(USER, self.workspace / "params.yaml", yaml.safe_dump(small_params(), sort_keys=False))

    def make(self, user: int, *names: str, mode: int = 0o755) -> Path:
        for name in names:
            (self.shared / name).mkdir(parents=True)
            (self.shared / name).chmod(mode)
            os.chown(self.shared / name, user, user)
        return self.shared / names[-1]

    def write(self, user: int, path: Path, text: str) -> None:
        path.write_text(text)
        os.chown(path, user, user)

    def plant(self, folder: Path) -> None:
        """Put files of `nobody` where Python, Prefect and git look for code."""
        for name, text in _PLANTED.items():
            self.write(NOBODY, folder / name, text.replace("{shared}", str(self.shared)))

    def as_user(self, uid: int, *command: str) -> list[str]:
        """Return a command as another user, for whom Python can be reached in a mount namespace of its own."""
        closed = next((path for path in reversed(Path(sys.base_prefix).parents) if not path.stat().st_mode & 1), None)
        prepare = [
            f"mount --bind {self.shared / name} {place}"
            for name, place in (("tmp", "/tmp"), ("var-tmp", "/var/tmp"), ("run-lock", "/run/lock"))  # noqa: S108
        ]
        if closed is not None:
            below = closed / Path(sys.base_prefix).relative_to(closed).parts[0]
            prepare += [
                f"mount -t tmpfs none /mnt && mkdir /mnt/p && mount --bind {below} /mnt/p",
                f"mount -t tmpfs -o mode=755 none {closed} && mkdir {below} && mount --bind /mnt/p {below}",
            ]
        script = f'{" && ".join(prepare)} && exec setpriv --reuid={uid} --regid={uid} --clear-groups "$@"'
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", *command]

    def python(self, uid: int, *words: str) -> list[str]:
        return self.as_user(uid, str(Path(sys.prefix) / "bin" / "python"), *words)

    def run(self, *words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python as the user."""
        given = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            **{"HOME": str(self.home), "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
            **{"TVMFLOW_RECORDS_SECRET": SECRET, "TVMFLOW_OTHER_TOKEN": SECRET, **environment},
        }
        return subprocess.run(
            self.python(USER, "-P", *words),
            cwd=cwd or self.shared,
            env=given,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )

    def tvmflow(self, *words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "tvmflow", *words, cwd=cwd, **environment)

    def attack(self) -> None:
        """Let `nobody` begin."""
        script, plan = self.shared / "attack.py", self.shared / "plan.json"
        shutil.copy(Path(__file__).parent / "hostile_user.py", script)
        taken = [f"/{name.replace('var-tmp', 'var/tmp')}" for name in TAKEN]
        places = ["/tmp", "/run/lock/tvmflow-locks", "/var/tmp", *taken]  # noqa: S108
        told = {
            **{"stop": self.stop, "results": self.results, "victim": self.victim, "workspace": self.workspace},
            **{"home": self.home, "secret": SECRET, "places": places},
        }
        plan.write_text(json.dumps(told, default=str))
        self.attacker = subprocess.Popen(
            ["nice", "-n", "15", *self.python(NOBODY, "-I", str(script), str(plan))],
            cwd="/",
            stderr=subprocess.PIPE,
            text=True,
        )

    def end_attack(self) -> str:
        """Return what it said that failed."""
        self.stop.touch()
        said = self.attacker.communicate(timeout=120)[1] if self.attacker else ""
        return said if self.attacker and self.attacker.returncode else ""

    def check(self) -> None:
        """End the attack; assert that much was tried, and nothing done."""
        time.sleep(1)
        assert not self.end_attack()
        found = json.loads(self.results.read_text())
        assert found["done"] == []
        assert all(count > 0 for count in found["tried"].values()), found["tried"]
        self.check_untouched()

    def check_untouched(self) -> None:
        assert self.victim.read_text() == "whole" and not (self.shared / "ran").exists()
        assert [str(path) for path in self.home.rglob("*") if path.lstat().st_uid != USER] == []


@pytest.fixture
def machine() -> Iterator[Machine]:
    if os.getuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("needs root and util-linux, to run as other users")
    shared = Path(tempfile.mkdtemp(prefix="shared-", dir="/opt"))  # pytest's own is closed to others
    shared.chmod(0o1777)
    machine = Machine(shared)
    yield machine
    machine.end_attack()
    shutil.rmtree(shared)


def test_nothing_is_done_by_another_user_to_servers_and_locks(machine: Machine) -> None:
    machine.plant(machine.shared)
    machine.attack()
    done = machine.run("-c", _WORK, str(machine.workspace), USER="somebody")
    assert done.returncode == 0 and "worked" in done.stdout, done.stdout + done.stderr[-4000:]
    machine.check()


def test_nothing_is_done_by_another_user_to_a_whole_run(machine: Machine) -> None:
    for name in TAKEN:
        machine.make(NOBODY, name, mode=0o777)
    for folder in (machine.shared, machine.shared / "tmp"):
        machine.plant(folder)
        machine.write(NOBODY, folder / "params.yaml", "models: {}\n")
    for name in (".env", "prefect.toml"):  # refused: the test below
        (machine.shared / name).unlink()
    home = machine.home
    machine.attack()
    root, key, archive = ("--root", str(machine.workspace)), str(home / "key"), str(home / "digits.zip")
    for words in (
        (*root, "init"),
        (*root, "run", "digits"),
        ("keys", "new", key),
        (*root, "bundle", "digits", "--newest", "--key", key, "-o", archive),
        ("verify", archive, "--key", f"{key}.pub"),
        (*root, "report"),
    ):
        done = machine.tvmflow(*words)  # without a name in /etc/passwd or in USER
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr[-4000:]}"
    machine.check()
    assert (machine.workspace / "artifacts" / "evaluate").is_dir() and Path(archive).is_file()
    left = [path.name for path in (machine.shared / "tmp").iterdir() if path.lstat().st_uid == USER]
    assert left == []


def _refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode in (1, 2) and len(errors) == 1, done.stdout + done.stderr
    assert all(word in errors[0] for word in words) and "Traceback" not in done.stderr, done.stderr


def test_folders_that_another_user_made_are_refused(machine: Machine) -> None:
    theirs = machine.make(NOBODY, "theirs", mode=0o777)
    machine.plant(theirs)
    machine.write(NOBODY, theirs / "params.yaml", (machine.workspace / "params.yaml").read_text())
    root, exchanged = ("--root", str(machine.workspace)), "can be exchanged by another user"
    _refused(machine.tvmflow(*root, "why", "digits", TMPDIR=str(theirs)), "temporary files", exchanged)
    _refused(machine.tvmflow(*root, "why", "digits", TVMFLOW_CACHE=str(theirs / "cache")), "the cache", exchanged)
    _refused(machine.tvmflow(*root, "why", "digits", HOME=str(theirs)), "the cache", exchanged)
    _refused(machine.tvmflow("why", "digits", cwd=theirs), "params.yaml belongs to another user")
    inner = machine.make(USER, "theirs/inner")
    _refused(machine.tvmflow("why", "digits", cwd=inner), "params.yaml belongs to another user")
    machine.write(USER, inner / "params.yaml", (machine.workspace / "params.yaml").read_text())
    for found in (machine.tvmflow("why", "digits", cwd=inner), machine.tvmflow("--root", str(inner), "why", "digits")):
        _refused(found, "the workspace", exchanged)
    _refused(machine.tvmflow("new", str(theirs / "new")), "the workspace", exchanged)
    _refused(machine.tvmflow(*root, "run", "digits", cwd=theirs), ".env belongs to another user")
    asked = machine.tvmflow(*root, "why", "digits", TMPDIR=str(theirs), TVMFLOW_TRUSTED=str(theirs))
    assert asked.returncode == 0, asked.stderr
    assert machine.tvmflow(*root, "why", "digits", cwd=theirs).returncode == 0
    machine.check_untouched()


def test_locks_that_another_user_took_are_refused(machine: Machine) -> None:
    locks = machine.make(NOBODY, "run-lock/tvmflow-locks", mode=0o1777)
    known = machine.run("-c", "from tvmflow.devices import device_lock as d; print(d._file_name(d.__name__))")
    assert known.returncode == 0, known.stderr
    take = (
        "import sys\nfrom tvmflow.devices.this_host import measure_on_this_host\n"
        "from tvmflow.support.errors import TvmflowError\n"
        "try:\n with measure_on_this_host(1.0): print('worked')\nexcept TvmflowError as error: print(error)\n"
    )
    assert machine.run("-c", take).stdout == "worked\n"
    made = [path for path in locks.iterdir() if path.lstat().st_uid == USER]
    assert made
    for path in made:
        path.unlink()
        path.symlink_to(machine.victim)
    assert "cannot be locked" in machine.run("-c", take).stdout
    for path in made:
        path.unlink()
        os.mkfifo(path)
    assert "cannot be locked" in machine.run("-c", take).stdout
    machine.check_untouched()


@pytest.mark.parametrize(
    "hostile",
    [
        {"TMPDIR": "/nowhere/at/all", "HOME": "/nowhere"},
        {"LANG": "no_NO.nothing", "TERM": "\x1b[31m", "COLUMNS": "-1", "LINES": "x" * 10000},
        {"XDG_CONFIG_HOME": "/proc/self/mem", "XDG_CONFIG_DIRS": ":" * 5000, "XDG_CACHE_HOME": "/dev/null"},
        {"TVMFLOW_LOCKS": "/dev/null", "TVMFLOW_CACHE": "/dev/full"},
        {"TVMFLOW_CACHE": "a\nb", "TVMFLOW_ROOT": "\t", "USER": "a\nb; rm -rf /", "LOGNAME": "../.."},
    ],
)
def test_an_odd_environment_is_a_result_or_one_error(hostile: dict[str, str], machine: Machine) -> None:
    for words in (("why", "digits"), ("status",)):
        done = machine.tvmflow("--root", str(machine.workspace), *words, **hostile)
        assert "Traceback" not in done.stderr and "\x1b" not in done.stdout + done.stderr
        if done.returncode:
            _refused(done)
    machine.check_untouched()
