"""Pair the libraries of one network, which an app opens as one: for CPUs with more or fewer instructions, for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

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
    """Return whether libraries are one network: at most one for each processor, equal from outside. Those for CPUs have
    one precision, and each needs the instructions of the one before and more.
    """
    cpus = _by_demand(libraries)
    faces = {(one.inputs, one.outputs, one.labels, one.preprocessing, tuple(one.sizes.items())) for one in libraries}
    grows = all(set(less.made.flags) < set(more.made.flags) for less, more in pairwise(cpus))
    is_one_precision = len({_precision(one) for one in cpus}) <= 1
    return len(libraries) - len(cpus) <= 1 and len(faces) == 1 and grows and is_one_precision


def _by_demand(libraries: Iterable[Library]) -> list[Library]:
    """Return the libraries for CPUs, that which needs the fewest instructions first."""
    return sorted((one for one in libraries if one.gpu is None), key=lambda one: len(one.made.flags))


def _choice(name: str, abi: str, libraries: Sequence[Library]) -> Choice:
    cpus = [one.cell for one in _by_demand(libraries)]
    gpu = next((one.cell for one in libraries if one.gpu is not None), None)
    return Choice(name=name, abi=abi, cpu=next(iter(cpus), None), gpu=gpu, faster=tuple(reversed(cpus[1:])))


def _model(library: Library) -> str:
    return library.cell.partition("@")[0]


def _precision(library: Library) -> str:
    return library.cell.rpartition(":")[2]
