"""Determine the final state of a flow over many cells: Failed if a cell failed, with all results kept."""

from __future__ import annotations

from typing import Any

from prefect.states import Failed


def final_state(results: list[dict[str, Any]], also: str = "") -> Any:
    """Return the return value of a flow: its results, in a Failed state if one of them has an error. also: another
    error, '' for none.
    """
    failed = [result["cell"] for result in results if result.get("error") is not None]
    if not failed and not also:
        return results
    what = [f"{len(failed)} of {len(results)} cells failed: {', '.join(failed)[:500]}"] if failed else []
    return Failed(message="; ".join([*what, *([also[:500]] if also else [])]), data=results)


def results_of(state: Any) -> list[dict[str, Any]]:
    """Return the results of a finished flow, failed or not. Raises its error if it has none."""
    result = state.result(raise_on_failure=False)
    if not isinstance(result, list):
        result = state.result()
    results: list[dict[str, Any]] = result
    return results
