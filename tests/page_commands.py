"""Run the commands of a page of documentation in a shell of a session of its own, and end what they leave running."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path


class PageCommands:
    """The shells of one reader of a page."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    def run(self, script: str, place: Path, own: Mapping[str, str], output: Path, longest_s: float) -> tuple[int, str]:
        """Return the exit code of a script and what it said, which `output` keeps. own: environment variables."""
        with output.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-eo", "pipefail", "-c", script],
                cwd=place,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.groups.append(process.pid)
            code = process.wait(timeout=longest_s)
        return code, output.read_text()

    def stop(self) -> None:
        """End what the commands left running."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
