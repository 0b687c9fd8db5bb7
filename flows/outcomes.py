"""Determine the final state of a flow over many cells: Failed if a cell failed, with all results kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from prefect.states import Failed

from tvmflow.pipeline.results import CellResult, RetuneResult
from tvmflow.support.json_values import from_json, to_json

T = TypeVar("T")


def final_state(results: Sequence[CellResult | RetuneResult], also: str = "") -> Any:
    """Return the return value of a flow: its results, in a Failed state if one of them has an error. also: another
    error, '' for none.
    """
    failed, data = [result.cell for result in results if result.error is not None], to_json(list(results))
    if not failed and not also:
        return data
    what = [f"{len(failed)} of {len(results)} cells failed: {', '.join(failed)[:500]}"] if failed else []
    return Failed(message="; ".join([*what, *([also[:500]] if also else [])]), data=data)


def results_of(state: Any, kind: type[T]) -> list[T]:
    """Return the results of a finished flow, failed or not. Raises its error if it has none."""
    result = state.result(raise_on_failure=False)
    if not isinstance(result, list):
        result = state.result()
    return [from_json(kind, one) for one in result]
