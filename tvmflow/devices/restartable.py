"""A library on a device that can be started again while it is measured."""

from __future__ import annotations

from collections.abc import Callable

from tvmflow.devices.session import RemoteModel


class Restartable:
    """A library on a device, and how it is started: with its inputs set, in memory that no other start of it has.

    model: the last that was started.
    """

    def __init__(self, start: Callable[[], RemoteModel]) -> None:
        self._start = start
        self.model = start()

    def time_runs(self, repeat: int) -> list[float]:
        """Return `repeat` times of one run each, in seconds, as RemoteModel does."""
        return self.model.time_runs(repeat)

    def state(self, threads: int, look: bool) -> dict[str, float] | None:
        """Return what the device knows of the state of the library's process, as RemoteModel does."""
        return self.model.state(threads, look)

    def relocate(self) -> None:
        """Start the library again, while the one before still holds its memory, and close that."""
        before, self.model = self.model, self._start()
        before.close()
