"""Test the agent as a process: authentication, storage, crashing libraries, and facts about the device."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import random
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.devices.agents import (
    BACKEND,
    LIMITS,
    connected_to,
    descendants,
    opened,
    secret_file,
    session_with,
)
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.process import AgentProcess, start_agent
from tvmflow.devices.agent.protocol import VERSION, AgentConnection
from tvmflow.devices.agent.session import AgentSession
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import SessionLimits
from tvmflow.support.errors import (
    AgentVersionError,
    DeviceError,
    DeviceFullError,
    DeviceLostError,
    DeviceRefusedError,
    UsageError,
)

# -- digests and secrets --


def test_its_digests_are_those_of_python(tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text("""
#include "sha256.h"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
  static unsigned char bytes[1 << 16], digest[32];
  size_t size = fread(bytes, 1, sizeof bytes, stdin), key = (size_t)atoi(arguments[1]);
  (void)count;
  hmac_sha256(bytes, key, bytes + key, size - key, digest);
  fwrite(digest, 1, 32, stdout);
  sha256 made;
  sha256_begin(&made);
  for (size_t at = 0, part = 1; at < size; at += part, part = part * 3 % 131 + 1)
    sha256_add(&made, bytes + at, part < size - at ? part : size - at);
  sha256_end(&made, digest);
  fwrite(digest, 1, 32, stdout);
}""")
    folder = REPOSITORY / "runtime" / "agent"
    options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{folder}"]
    subprocess.run(["gcc", *options, str(source), str(folder / "sha256.c"), "-o", str(tmp_path / "main")], check=True)
    chance = random.Random(1)
    for size, key in [
        (0, 0),
        (1, 1),
        (55, 3),
        (56, 0),
        (63, 63),
        (64, 64),
        (65, 65),
        (119, 100),
        (1000, 129),
        (60000, 32),
    ]:
        content = chance.randbytes(size)
        done = subprocess.run([str(tmp_path / "main"), str(key)], input=content, capture_output=True, check=True)
        assert done.stdout[:32] == hmac.digest(content[:key], content[key:], "sha256")
        assert done.stdout[32:] == hashlib.sha256(content).digest()


def test_who_has_another_secret_gets_nothing(agent: AgentProcess) -> None:
    with pytest.raises(DeviceRefusedError, match="has another secret"):
        AgentConnection("127.0.0.1", agent.port, b"0" * 64, "here")
    connected_to(agent).close()


def test_silent_connections_shut_nobody_out(agent: AgentProcess) -> None:
    """More than there are places for, opened again as they are ended; a host that is known stays."""
    with contextlib.ExitStack() as kept:
        known = kept.enter_context(contextlib.closing(connected_to(agent)))
        known.ask("taken", "asking")  # the agent has read its proof
        for _ in range(40):
            kept.enter_context(socket.create_connection(("127.0.0.1", agent.port)))
        begun = time.monotonic()
        connected_to(agent).close()
        assert time.monotonic() - begun < 5, "without waiting for the time limit of the silent ones"
        assert known.ask("taken", "asking")["status"] == "ok"
    assert len(descendants(agent.process.pid)) <= 33


@pytest.mark.slow
def test_a_byte_now_and_then_holds_no_connection(agent: AgentProcess) -> None:
    """The time limit is that of the whole authentication."""
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", agent.port)) as slow:
        slow.settimeout(4)
        with contextlib.suppress(OSError):
            for byte in b"tvmflow agent\n\0\0" + struct.pack("<I", VERSION):
                slow.sendall(bytes([byte]))
                try:
                    if not slow.recv(1):
                        break
                except TimeoutError:
                    continue
    assert 9 < time.monotonic() - begun < 20


@pytest.mark.parametrize("how", ["data before a proof", "a long greeting", "slowly"])
def test_a_host_reads_little_before_a_proof(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmflow.devices.agent.protocol.CONNECT_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = [0]

        def pretend() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(52)
                greeting = b"tvmflow agent\n\0\0" + struct.pack("<I", VERSION) + bytes(32)
                if how == "slowly":
                    for byte in greeting:
                        connection.sendall(bytes([byte]))
                        time.sleep(0.3)
                connection.sendall(greeting)
                connection.recv(32)
                kind, size = (2, 1 << 20) if how == "data before a proof" else (3, 1 << 20)
                for _ in range(600):
                    connection.sendall(struct.pack("<BBHI", kind, 0, 0, size) + bytes(size))
                    sent[0] += size

        thread = threading.Thread(target=pretend)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(DeviceLostError):
            AgentConnection("127.0.0.1", listener.getsockname()[1], b"0" * 64, "here")
        assert time.monotonic() - begun < 5
        thread.join()
        assert sent[0] < 16 << 20, "what the sockets hold"


def test_an_agent_of_another_version_is_named(agent: AgentProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmflow.devices.agent.protocol.VERSION", 7)
    with pytest.raises(AgentVersionError, match=f"has version {VERSION}, and this tvmflow speaks version 7"):
        connected_to(agent)


def test_who_pretends_to_be_an_agent_is_found_out(agent: AgentProcess) -> None:
    """It repeats what a real agent said; without the secret it cannot answer a new question."""
    real = connected_to(agent)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def pretend() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(52)
                connection.sendall(b"tvmflow agent\n\0\0" + struct.pack("<I", VERSION) + bytes(32))
                connection.recv(32)
                reply = json.dumps({"status": "ok", "proof": "0" * 64}).encode()
                connection.sendall(struct.pack("<BBHI", 3, 0, 0, len(reply)) + reply)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(DeviceRefusedError):
            AgentConnection("127.0.0.1", listener.getsockname()[1], agent.secret, "here")
        thread.join()
    real.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3, b"\0" * 200])
def test_what_is_no_agent_is_said(answer: bytes) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(52)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DeviceLostError, match=r"closed the connection|not from an agent"):
            AgentConnection("127.0.0.1", listener.getsockname()[1], b"0" * 64, "here")
        thread.join()


def test_a_secret_that_others_may_read_is_refused(program: Path, tmp_path: Path) -> None:
    path = secret_file(tmp_path, b"s" * 32)
    path.chmod(0o644)
    device = DeviceEntry.model_validate({"transport": "agent", "key": "k", "port": 9, "secret_file": str(path)})
    with pytest.raises(UsageError, match="readable by others"), open_session(device, BACKEND, LIMITS):
        pass
    done = subprocess.run(
        [str(program), "--folder", str(tmp_path / "s"), "--secret-file", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "only its owner may read a secret" in done.stderr


def test_it_ends_with_its_life_line(program: Path, tmp_path: Path, libraries: dict[str, Path]) -> None:
    with start_agent([str(program)], str(tmp_path / "store")) as agent:
        connection = connected_to(agent)
        session = AgentSession(connection, "unit", BACKEND.target, LIMITS)
        opened(session, libraries["DOUBLES"])
        children = descendants(agent.process.pid)
        assert len(children) == 2, "a session and its library"
        ended = agent.process
    assert ended.returncode == 0
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{child}/status").exists() and not _is_dead(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    connection.close()


def _is_dead(process: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    return True


# -- files --


def test_a_file_arrives_once_and_whole(agent: AgentProcess, tmp_path: Path) -> None:
    content = random.Random(2).randbytes(300_000)
    with session_with(agent) as session:
        digest = session.connection.upload(content, "a file")
        assert digest == hashlib.sha256(content).hexdigest()
        assert (tmp_path / "store" / digest).read_bytes() == content
        sent = _sent_bytes(session.connection)
        session.connection.upload(content, "a file")
        assert _sent_bytes(session.connection) - sent < 500, "it is there already"
        assert session.connection.upload(b"", "nothing") == hashlib.sha256(b"").hexdigest()


def _sent_bytes(connection: AgentConnection) -> int:
    info = connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    return int(struct.unpack_from("<Q", info, 120)[0])  # tcpi_bytes_acked


def test_an_upload_goes_on_where_it_stopped(agent: AgentProcess, tmp_path: Path) -> None:
    content = random.Random(3).randbytes(600_000)
    digest = hashlib.sha256(content).hexdigest()
    cut = connected_to(agent)
    cut.ask("take", "taking it")
    cut._write(f"upload sha256={digest} size={len(content)}", 0)
    assert cut._reply()[0]["offset"] == 0
    cut._frame(2, 0, content[:400_000])
    cut._socket.sendall(struct.pack("<BBHI", 2, 0, 0, 1000) + b"part of a frame")
    cut.close()
    part = tmp_path / "store" / f"{digest}.part"
    deadline = time.monotonic() + 120
    while not part.exists() or part.stat().st_size < 400_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with session_with(agent, SessionLimits(60.0, 10.0)) as session:
        session.connection.upload(content, "a file")
        assert _sent_bytes(session.connection) < 250_000, "only the rest was sent"
    assert (tmp_path / "store" / digest).read_bytes() == content and not part.exists()


def test_other_bytes_than_were_said_do_not_count(agent: AgentProcess, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    with session_with(agent) as session:
        session.connection._write(f"upload sha256={digest} size=5", 0)
        session.connection._reply()
        session.connection._frame(2, 0, b"wrong")
        assert session.connection._reply()[0]["status"] == "digest"
        with pytest.raises(DeviceLostError, match="was not uploaded"):
            session.network(digest, tmp_path, [])
        assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["lock"]


def test_what_was_used_longest_ago_makes_room(agent: AgentProcess, tmp_path: Path) -> None:
    parts = [bytes([at]) * 400_000 for at in range(3)]
    with session_with(agent) as session:
        one, two = (session.connection.upload(part, "a file") for part in parts[:2])
        os.utime(tmp_path / "store" / two, (1, 1))
        three = session.connection.upload(parts[2], "a file")
        assert {path.name for path in (tmp_path / "store").iterdir()} == {one, three, "lock"}
        with pytest.raises(DeviceFullError, match="larger than all that the agent may store"):
            session.connection.upload(bytes(2_000_000), "a file")
        session.connection.upload(parts[0], "a file")


def test_a_full_disk_is_said(program: Path, tmp_path: Path) -> None:
    """A disk of its own would need privileges: the system's call says that it is full, as it does on a full one."""
    shim = tmp_path / "full.c"
    shim.write_text("""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
ssize_t write(int file, const void *bytes, size_t size) {
  ssize_t (*real)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  struct stat found;
  if (!fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size + size > 100000) return errno = ENOSPC, -1;
  return real(file, bytes, size);
}""")
    subprocess.run(["gcc", "-shared", "-fPIC", str(shim), "-o", str(tmp_path / "full.so"), "-ldl"], check=True)
    command = ["env", f"LD_PRELOAD={tmp_path / 'full.so'}", str(program)]
    with start_agent(command, str(tmp_path / "store")) as agent, session_with(agent) as session:
        with pytest.raises(DeviceFullError, match="no space is left on the device") as error:
            session.connection.upload(bytes(3_000_000), "a library")
        assert not error.value.retryable
        assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["lock"], "what nobody can use is gone"
        session.connection.upload(bytes(50_000), "a small file")


@pytest.mark.parametrize(
    "request_text",
    [
        "upload sha256=../../etc/passwd size=1",
        "upload sha256=" + "A" * 64 + " size=1",
        "upload sha256=" + "0" * 63 + " size=1",
        "upload size=1",
        "upload sha256=" + "0" * 64,
        "upload sha256=" + "0" * 64 + " size=99999999999999999999",
        "open sha256=lock",
        "nothing",
        "open",
        "upload sha256=" + "0" * 64 + "/x size=1",
    ],
)
def test_what_is_no_request_is_refused(agent: AgentProcess, tmp_path: Path, request_text: str) -> None:
    with session_with(agent) as session:
        with pytest.raises(DeviceError):
            session.connection.ask(request_text, "asking for nonsense")
        assert session.probe()["version"] == VERSION
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["lock", "store"]
