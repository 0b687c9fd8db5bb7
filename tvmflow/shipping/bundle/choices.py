"""Pair the libraries of one network for the CPU and for a GPU, which an app opens as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tvmflow.shipping.bundle.manifest import Choice, Library


def choices(libraries: Sequence[Library]) -> tuple[Choice, ...]:
    """Return the networks of a bundle, sorted. A network has its model's name; where an ABI has several libraries of a
    model for the same processor, also the precision, or else the name of its cell.

    Libraries whose inputs or outputs differ are networks of their own.
    """
    found: list[Choice] = []
    names: tuple[Callable[[Library], str], ...] = (_model, lambda one: f"{_model(one)}:{_precision(one)}")
    rest = list(libraries)
    for name_of in names:
        left: list[Library] = []
        groups: dict[tuple[str, str], list[Library]] = {}
        for one in rest:
            groups.setdefault((name_of(one), one.abi), []).append(one)
        names_of_many = {name for (name, _), group in groups.items() if not _is_one(group)}
        for (name, abi), group in groups.items():
            if name in names_of_many:  # on all ABIs, so that an app finds one name on each
                left += group
            else:
                found.append(_choice(name, abi, group))
        rest = left
    found += [_choice(one.cell, one.abi, [one]) for one in rest]
    return tuple(sorted(found, key=lambda one: (one.name, one.abi)))


def _is_one(libraries: Sequence[Library]) -> bool:
    """Return whether libraries are one network: at most one for each processor, equal from outside."""
    kinds = [one.gpu is not None for one in libraries]
    faces = {(one.inputs, one.outputs, one.labels, one.preprocessing, tuple(one.sizes.items())) for one in libraries}
    return len(set(kinds)) == len(kinds) and len(faces) == 1


def _choice(name: str, abi: str, libraries: Iterable[Library]) -> Choice:
    cells = {one.gpu is not None: one.cell for one in libraries}
    return Choice(name=name, abi=abi, cpu=cells.get(False), gpu=cells.get(True))


def _model(library: Library) -> str:
    return library.cell.partition("@")[0]


def _precision(library: Library) -> str:
    return library.cell.rpartition(":")[2]
