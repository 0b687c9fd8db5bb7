"""Control a headless Chromium through its DevTools protocol over a pipe: load pages, evaluate scripts, take
screenshots.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")


def browser_path() -> str | None:
    """Return the program, None where none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser. `problems`: errors of scripts, and what its policy refused."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = os.fdopen(requests, "wb", buffering=0), os.fdopen(answers, "rb")
        self._count, self._session, self._buffer = 0, "", b""
        self.problems: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, address: str, width: int, height: int = 900, scheme: str = "light") -> None:
        """Load a page at a width in CSS pixels, light or dark, and wait until it has drawn."""
        self.problems.clear()
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._ask("Page.navigate", url=address)
        self.ask("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")

    def ask(self, expression: str) -> Any:
        """Return what JavaScript says in the page, whose policy does not count here. Raises AssertionError where it
        fails.
        """
        reply = self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12_000), "scale": 1}
        data = self._ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def _ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._count += 1
        request = {"id": self._count, "method": method, "params": arguments}
        request |= {"sessionId": self._session} if self._session else {}
        self._requests.write(json.dumps(request).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._answers.fileno(), 1 << 16)
            assert more, "the browser ended"
            self._buffer += more
        line, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"].get("exception", {}).get("description")))
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"])


@contextlib.contextmanager
def open_browser(program: str, profile: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own, without a network; it ends with the context."""
    (low_read, requests), (answers, low_write) = os.pipe(), os.pipe()
    # Above those that the shell redirects.
    read_requests, write_answers = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (low_read, low_write))
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-extensions",
        "--hide-scrollbars",
        "--disable-background-networking",
        "--proxy-server=127.0.0.1:9",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    # The protocol's pipe is descriptors 3 and 4 by definition.
    shell = f'exec "$@" 3<&{read_requests} 4>&{write_answers}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "browser", program, *options],
        pass_fds=(read_requests, write_answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for end in (low_read, low_write, read_requests, write_answers):
        os.close(end)
    try:
        yield Browser(requests, answers)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
