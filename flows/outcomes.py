"""How a flow over many cells ends: Failed in Prefect where a cell failed, with the results of all of them kept."""

from __future__ import annotations

from typing import Any

from prefect.states import Failed


def ended(results: list[dict[str, Any]], also: str = "") -> Any:
    """Return what a flow is to return: its results, as those of a failed run where one of them has an error.

    also: what else went wrong, '' for nothing.
    """
    failed = [result["cell"] for result in results if result.get("error") is not None]
    if not failed and not also:
        return results
    what = [f"{len(failed)} of {len(results)} cells failed: {', '.join(failed)[:500]}"] if failed else []
    return Failed(message="; ".join([*what, *([also[:500]] if also else [])]), data=results)


def results_of(state: Any) -> list[dict[str, Any]]:
    """Return the results of a flow that ended, well or not. Raises what ended it where it has none."""
    result = state.result(raise_on_failure=False)
    if not isinstance(result, list):
        result = state.result()
    results: list[dict[str, Any]] = result
    return results
