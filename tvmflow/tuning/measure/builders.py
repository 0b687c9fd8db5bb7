"""Say where candidates are compiled: in processes of this machine, or wherever the process of a stage was told.

Where a kernel was compiled changes nothing of it, so this is no parameter of a stage.
"""

from __future__ import annotations

from typing import Any, Protocol

from tvmflow.tuning.measure.build_process import BuildProcess


class Builder(Protocol):
    """What compiles one kernel at a time, as BuildProcess does."""

    @property
    def alive(self) -> bool: ...

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]: ...

    def kill(self) -> float: ...


class Builders(Protocol):
    """Makes builders. Raises OSError where one cannot be started."""

    def start(self) -> Builder: ...

    def count(self, here: int) -> int:
        """Return how many work side by side. here: how many do so on this machine."""
        ...


class _Here:
    def start(self) -> Builder:
        return BuildProcess()

    def count(self, here: int) -> int:
        return here


_builders: Builders = _Here()


def builders() -> Builders:
    """Return the builders of this process."""
    return _builders


def use_builders(chosen: Builders) -> None:
    """Let this process, which runs one stage, compile candidates there."""
    global _builders
    _builders = chosen
