"""Look up table entries of tvmflow and of installed packages, which add them by entry points.

A package adds an entry by an entry point of the group `tvmflow.TABLE`: tvmflow.frontends, tvmflow.backends,
tvmflow.tuners, tvmflow.transports, tvmflow.toolchain.compilers. Names are read from package metadata; an entry is
imported on first use. Installing a package means trusting its code, as for every package.
"""

from __future__ import annotations

import functools
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TypeVar

from tvmflow.support.errors import UsageError, first_line

Row = TypeVar("Row")


class Table(UserDict[str, Row]):
    """Name -> entry. Entries of installed packages are found beside our own and cannot replace them."""

    def __init__(self, name: str, shipped: Mapping[str, Row]) -> None:
        self.name = name
        super().__init__(shipped)

    def __contains__(self, name: object) -> bool:
        return name in self.data or name in self._points()

    def __iter__(self) -> Iterator[str]:
        return iter([*self.data, *self._points()])

    def __len__(self) -> int:
        return len(self.data) + len(self._points())

    def __getitem__(self, name: str) -> Row:
        if name in self.data:
            return self.data[name]
        point = self._points()[name]
        try:
            row: Row = point.load()
        except Exception as error:  # the package's own code
            raise UsageError(
                f"plug-in {name!r} of {self.name} cannot be loaded: {type(error).__name__}: {first_line(error)}",
                f"{point.value} of {_package(point)}",
                "fix or uninstall that package",
            ) from error
        return row

    def package(self, name: str) -> tuple[str, str] | None:
        """Return the package and version of an entry; None for an entry of tvmflow."""
        if name in self.data or name not in self._points():
            return None
        package = self._points()[name].dist
        return (package.name, package.version) if package is not None else ("unknown", "0")

    def _points(self) -> dict[str, metadata.EntryPoint]:
        """Return the entries of installed packages. Raises UsageError for a duplicate name."""
        points: dict[str, metadata.EntryPoint] = {}
        for point in entry_points(f"tvmflow.{self.name}", tuple(sys.path)):
            other = points.get(point.name)
            if point.name in self.data or (other is not None and other.value != point.value):
                owner = "tvmflow itself" if point.name in self.data or other is None else _package(other)
                raise UsageError(
                    f"plug-in {point.name!r} of {self.name} from {_package(point)} has the same name as {owner}",
                    "a unique name",
                    f"uninstall {_package(point)}, or rename its plug-in",
                )
            points[point.name] = point
        return points


@functools.cache
def entry_points(group: str, _path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group; package metadata of a path are read once per process."""
    return tuple(metadata.entry_points(group=group))


def _package(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "a package without a name"
