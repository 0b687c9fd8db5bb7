"""Test downloads against a loopback server that fails in every way."""

from __future__ import annotations

import base64
import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tvmflow.sources.download import DownloadLimits, download
from tvmflow.support.errors import DigestError, DownloadError, SourceError

BODY = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(BODY).hexdigest()
LIMITS = DownloadLimits(max_bytes=1_000_000, attempts=3, timeout_s=1.0, first_delay_s=0.01)
Reply = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server:
    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append(f"{self.path} {self.headers.get('Range', '')}".strip())
                reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                reply(self)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/model.pt"


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.http.serve_forever, daemon=True)
    thread.start()
    yield running
    running.http.shutdown()


def whole(handler: http.server.BaseHTTPRequestHandler, body: bytes = BODY) -> None:
    start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    handler.send_header("Content-Length", str(len(body) - start))
    handler.end_headers()
    handler.wfile.write(body[start:])


def cut_off(handler: http.server.BaseHTTPRequestHandler) -> None:
    start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
    handler.send_header("Content-Length", str(len(BODY) - start))
    handler.end_headers()
    handler.wfile.write(BODY[start : start + 100_000])


def status(code: int, **headers: str) -> Reply:
    def reply(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return reply


def hang(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(BODY)))
    handler.end_headers()
    threading.Event().wait(1.5)


def never_resumes(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(BODY)))
    handler.end_headers()
    handler.wfile.write(BODY)


def wrong_range(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 5-{len(BODY) - 1}/{len(BODY)}")
    handler.send_header("Content-Length", str(len(BODY) - 5))
    handler.end_headers()
    handler.wfile.write(BODY[5:])


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(100):
            handler.wfile.write(BODY)
    except OSError:
        pass


@pytest.mark.parametrize(
    "replies",
    [
        [whole],
        [cut_off, cut_off, whole],
        [status(503), whole],
        [status(429), status(500), whole],
        [hang, whole],
        [cut_off, never_resumes],
        [cut_off, wrong_range, whole],
        [cut_off, status(416), whole],
    ],
    ids=["at once", "cut off twice", "503", "429 and 500", "hangs", "does not resume", "wrong range", "range refused"],
)
def test_arrives_in_the_end(server: Server, tmp_path: Path, replies: list[Reply]) -> None:
    server.replies = replies
    download(server.url, tmp_path / "model.pt", LIMITS, SHA256)
    assert (tmp_path / "model.pt").read_bytes() == BODY
    assert not (tmp_path / "model.pt.part").exists()


def test_a_part_is_continued_and_not_fetched_again(server: Server, tmp_path: Path) -> None:
    server.replies = [cut_off]
    with pytest.raises(DownloadError, match="in 1 attempts"):
        download(server.url, tmp_path / "m", DownloadLimits(1_000_000, 1, 1.0, 0.01), SHA256)
    server.replies = [whole]
    download(server.url, tmp_path / "m", LIMITS, SHA256)
    assert server.requests[-1].endswith("bytes=65536-")  # whole chunks of what had arrived


def test_wrong_bytes_are_never_kept(server: Server, tmp_path: Path) -> None:
    server.replies = [lambda handler: whole(handler, BODY[::-1])]
    with pytest.raises(DigestError, match=r"has sha256 [0-9a-f]{64}"):
        download(server.url, tmp_path / "m", LIMITS, SHA256)
    assert list(tmp_path.iterdir()) == []


def test_an_old_part_of_another_file_does_no_harm(server: Server, tmp_path: Path) -> None:
    server.replies = [whole]
    (tmp_path / "m.part").write_bytes(b"something else")
    download(server.url, tmp_path / "m", LIMITS, SHA256)
    assert (tmp_path / "m").read_bytes() == BODY


@pytest.mark.parametrize("reply", [endless, status(200, Content_Length="9" * 12)])
def test_too_large_is_refused_and_dropped(server: Server, tmp_path: Path, reply: Reply) -> None:
    server.replies = [reply]
    with pytest.raises(SourceError, match=r"more than 1000000 bytes|could not be downloaded"):
        download(server.url, tmp_path / "m", LIMITS, SHA256)
    assert not (tmp_path / "m").exists()


def test_gone_for_good_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    server.replies = [status(404)]
    with pytest.raises(SourceError, match="HTTP 404"):
        download(server.url, tmp_path / "m", LIMITS, SHA256)
    assert len(server.requests) == 1


def test_redirects_are_followed_and_checked(server: Server, tmp_path: Path) -> None:
    server.replies = [status(302, Location="/other"), whole]
    download(server.url, tmp_path / "m", LIMITS, SHA256)
    server.replies = [status(302, Location="http://example.com/x")]
    with pytest.raises(SourceError, match="protocol http"):
        download(server.url, tmp_path / "n", LIMITS, SHA256)
    server.replies = [status(302, Location="file:///etc/passwd")]
    with pytest.raises(SourceError, match="protocol file"):
        download(server.url, tmp_path / "n", LIMITS, SHA256)
    server.replies = [status(302, Location="/again")]
    with pytest.raises(SourceError, match="redirects more than"):
        download(server.url, tmp_path / "n", LIMITS, SHA256)


def test_nobody_there_is_retryable_and_shows_no_password(tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as error:
        download("http://user:secret@127.0.0.1:9/m?token=hidden", tmp_path / "m", LIMITS, SHA256)
    assert error.value.retryable
    assert "secret" not in str(error.value) and "hidden" not in str(error.value)


def test_user_and_password_come_from_netrc(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password word\n")
    monkeypatch.setenv("NETRC", str(netrc))
    expected = "Basic " + base64.b64encode(b"me:word").decode()
    server.replies = [lambda h: whole(h) if h.headers.get("Authorization") == expected else status(401)(h)]
    download(server.url, tmp_path / "model.pt", LIMITS, SHA256)
    assert (tmp_path / "model.pt").read_bytes() == BODY
