"""Start an agent on this machine, and build libraries that behave correctly or incorrectly."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.conftest import REPOSITORY
from tvmflow.backends.cpu import CpuBackend
from tvmflow.devices.agent.process import AgentProcess
from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.agent.session import AgentNetwork, AgentSession
from tvmflow.devices.session import SessionLimits
from tvmflow.targets.resolve import host_target

KINDS = (
    "DOUBLES",
    "FORGETS",
    "STOPS",
    "READS_NOTHING",
    "BAD_INSTRUCTION",
    "REFUSES",
    "EXITS",
    "GROWS",
    "LINGERS",
    "COMPUTES",
)
X = np.arange(1024, dtype=np.float32).reshape(1, 1024) / 1024
BACKEND = CpuBackend(host_target())
LIMITS = SessionLimits(60.0, 0.0)


def compiled(folder: Path, kind: str, compiler: Sequence[str] = ("gcc",), salt: int = 0) -> Path:
    """Return a library of a kind; salt: makes it another file."""
    path = folder / f"{kind.lower()}-{salt}.so"
    source = Path(__file__).parent / "agent_library.c"
    options = [
        "-shared",
        "-fPIC",
        "-O1",
        f"-DKIND={kind}",
        f"-DSALT={salt}",
        "-frandom-seed=1",
        f"-Wl,-soname,l{salt}.so",
    ]
    subprocess.run(
        [*compiler, *options, f"-I{REPOSITORY / 'runtime' / 'include'}", str(source), "-o", str(path)], check=True
    )
    return path


def secret_file(folder: Path, secret: bytes) -> Path:
    """Return a file that only its owner may read."""
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_bytes(secret + b"\n")
    return path


def connected_to(agent: AgentProcess) -> AgentConnection:
    return AgentConnection("127.0.0.1", agent.port, agent.secret, "here")


@contextlib.contextmanager
def session_with(agent: AgentProcess, limits: SessionLimits = LIMITS) -> Iterator[AgentSession]:
    with contextlib.closing(connected_to(agent)) as connection:
        yield AgentSession(connection, "unit", BACKEND.target, limits)


def opened(session: AgentSession, library: Path) -> AgentNetwork:
    found = session.network(session.upload(library), library.parent, [])
    assert isinstance(found, AgentNetwork)
    return found


def descendants(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found
