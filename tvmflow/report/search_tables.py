"""Show what a search found: the table, and the data of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tvmflow.report.console import Grid, grid

COLUMNS = ("cell", "layers in float", "trials", "latency", "accuracy drop", "memory", "library", "outcome")


class Costs(Protocol):
    """The numbers of a candidate; None where they are not known."""

    @property
    def drop(self) -> float | None: ...
    @property
    def latency_ms(self) -> float | None: ...
    @property
    def low_ms(self) -> float | None: ...
    @property
    def high_ms(self) -> float | None: ...
    @property
    def memory_bytes(self) -> float | None: ...
    @property
    def library_bytes(self) -> float | None: ...
    @property
    def badges(self) -> str: ...


class Searched(Protocol):
    """A candidate as it is shown."""

    @property
    def cell(self) -> str: ...
    @property
    def trials(self) -> int: ...
    @property
    def float_layers(self) -> int | None: ...
    @property
    def kept(self) -> int | None: ...
    @property
    def state(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def numbers(self) -> Costs: ...


def search_table(
    model: str, found: Sequence[Searched], best: Sequence[Searched], chosen: Mapping[str, Searched]
) -> Grid:
    """Return the candidates, those that no other beats first. chosen: target -> the one that is taken."""
    ordered = [*best, *(one for one in found if one not in best)]
    rows = [
        [
            one.cell,
            _layers(one),
            one.trials,
            _latency(one.numbers),
            "-" if one.numbers.drop is None else f"{one.numbers.drop:.2%}",
            _megabytes(one.numbers.memory_bytes),
            _megabytes(one.numbers.library_bytes),
            _outcome(one, one in best, one in chosen.values()),
        ]
        for one in ordered
    ]
    return grid(f"search of {model}", COLUMNS, rows, ("cell", "outcome"))


def search_rows(found: Sequence[Searched]) -> list[dict[str, Any]]:
    """Return the table for Prefect's page."""
    value = search_table("", found, (), {})
    return [dict(zip(value.columns, row, strict=True)) for row in value.rows]


def search_data(
    model: str, goals: Mapping[str, float | None], found: Sequence[Any], best: Sequence[Any], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the data of the page of a search. goals: name of a number -> its limit."""
    return {
        "model": model,
        "goals": dict(goals),
        "candidates": [
            {
                "cell": one.cell,
                "target": one.target,
                "precision": one.precision,
                "layers": _layers(one),
                "trials": one.trials,
                **vars(one.numbers),
                "outcome": _outcome(one, one in best, one in chosen.values()),
                "is_best": one in best,
                "is_chosen": one in chosen.values(),
            }
            for one in (*best, *(one for one in found if one not in best))
        ],
    }


def _layers(one: Searched) -> str:
    if one.float_layers is None:
        return "-"
    return f"at most {one.float_layers}" if one.kept is None else f"{one.kept} of at most {one.float_layers}"


def _latency(numbers: Costs) -> str:
    if numbers.latency_ms is None:
        return "-"
    known = numbers.low_ms is not None and numbers.high_ms is not None
    interval = f" ({numbers.low_ms:.4g} to {numbers.high_ms:.4g})" if known else ""
    return ", ".join(filter(None, (f"{numbers.latency_ms:.4g} ms{interval}", numbers.badges)))


def _megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f} MB"


def _outcome(one: Searched, is_best: bool, is_chosen: bool) -> str:
    if is_chosen:
        return "chosen"
    what = "no other is better in everything" if is_best else one.state
    return ": ".join(filter(None, (what, one.why)))
