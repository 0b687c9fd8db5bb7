"""Restart a library on a device while it is measured."""

from __future__ import annotations

from collections.abc import Callable

from tvmflow.devices.session import RemoteModel


class Restartable:
    """A library on a device that can be restarted with the same inputs in other memory. model: the current one."""

    def __init__(self, start: Callable[[], RemoteModel]) -> None:
        self._start = start
        self.model = start()

    def time_runs(self, repeat: int) -> list[float]:
        """Return `repeat` times of one run each, in seconds, like RemoteModel."""
        return self.model.time_runs(repeat)

    def state(self, threads: int, look: bool) -> dict[str, float] | None:
        """Return the state of the library's process, like RemoteModel."""
        return self.model.state(threads, look)

    def relocate(self) -> None:
        """Start the library again before closing the current one, so that it gets other memory."""
        before, self.model = self.model, self._start()
        before.close()
