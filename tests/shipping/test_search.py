"""Test goals: what is missed, what no other beats, what is tuned further, what is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.table import STAGES
from tvmflow.api.searches import SearchResult, write_chosen
from tvmflow.api.tables import quarantine_cell
from tvmflow.config.overrides import CellOverrides
from tvmflow.config.workspace import Variant, Workspace, make_variant
from tvmflow.shipping.search.goals import Candidate, Goals, Numbers, choose, pareto, split
from tvmflow.shipping.search.space import Request, candidates, cells_of, fill, variant_of, why_not
from tvmflow.support.errors import StoreError, UnknownNameError, UsageError
from tvmflow.support.quantities import BYTES, MILLISECONDS, SHARES, quantity
from tvmflow.tuning.records.shared_log import share_log

INT8 = "digits_torch@local-cpu:int8"
GOALS = Goals(max_drop=0.005, max_latency_ms=8.0)


def _one(precision: str, ms: float, drop: float, target: str = "phone", trials: int = 8) -> Candidate:
    numbers = Numbers(drop, ms, 0.98 * ms, 1.02 * ms, memory_bytes=1e6, library_bytes=1e5)
    return Candidate(f"cats@{target}:{precision}", CellOverrides(), trials, "", state="measured", numbers=numbers)


def test_what_a_goal_lacks_is_said_with_both_numbers() -> None:
    numbers = Numbers(drop=0.02, latency_ms=9.0, library_bytes=2e6)
    assert numbers.missed(Goals()) == ()
    assert numbers.missed(replace(GOALS, max_memory_bytes=1e6, max_library_bytes=3e6)) == (
        "accuracy drop 2.00% above 0.50%",
        "latency 9 ms above 8 ms",
        "memory unknown",
    )


def test_the_best_are_those_that_no_other_of_their_target_beats() -> None:
    fast, exact = _one("int8", 2.0, 0.01), _one("float32", 6.0, 0.0)
    slow, same = _one("float16", 7.0, 0.001), _one("bfloat16", 6.0, 0.0)
    other = _one("float32", 60.0, 0.0, target="board")
    lost = replace(_one("int8", 1.0, 0.0), state="failed")
    untimed = replace(other, numbers=replace(other.numbers, latency_ms=None, drop=0.5))
    assert pareto([slow, exact, lost, fast, other, same]) == [other, fast, same, exact]
    assert pareto([exact, untimed]) == [untimed, exact], "another target"
    assert pareto([other, untimed]) == [other], "what is not known of one is not compared"


def test_only_what_may_win_is_tuned_further() -> None:
    exact, wrong, late = _one("float32", 6.0, 0.0), _one("vta_int8", 1.0, 0.3), _one("float16", 12.5, 0.0)
    beaten, near = _one("bfloat16", 9.5, 0.0), _one("int8", 5.0, 0.004)
    failed = replace(exact, state="failed", why="no device")
    shown, front = split([exact, wrong, late, beaten, near, failed], GOALS)
    assert front == [exact, near]
    assert [one.why.removeprefix("not tuned further: ") for one in shown] == [
        "",
        "accuracy drop 30.00% above 0.50%",
        "latency 12.5 ms: more than 1.5 times 8 ms",
        "cats@phone:float32 is more than 1.5 times faster and no worse",
        "",
        "no device",
    ]


def test_of_equal_latencies_the_one_that_loses_least_is_chosen() -> None:
    exact, near = _one("float32", 5.1, 0.0), _one("int8", 5.0, 0.004)
    faster, slow = _one("int8", 3.0, 0.0051), _one("float32", 7.0, 0.0, target="board")
    chosen = choose([near, exact, faster, slow], GOALS)
    assert chosen == {"board": slow, "phone": exact}, "its interval includes the fastest that meets the goals"
    assert choose([faster], GOALS) == {} and choose([faster], Goals(max_drop=0.01)) == {"phone": faster}
    assert choose([near, replace(exact, numbers=_one("float32", 6.0, 0.0).numbers)], GOALS) == {"phone": near}
    more, few = _one("int8", 5.0, 0.004, trials=64), _one("int8", 5.0, 0.004)
    assert choose([more, few], GOALS) == {"phone": few}, "a budget that gains nothing is not spent again"


def test_a_target_without_a_candidate_that_meets_the_goals_is_named() -> None:
    result = SearchResult(
        "cats", GOALS, ("phone", "board"), (_one("float32", 6.0, 0.0), _one("int8", 60.0, 0.0, "board"))
    )
    assert result.unmet == ("board",)
    rows = result.to_json()["candidates"]
    assert [(row["is_best"], row["is_chosen"]) for row in rows] == [(True, True), (True, False)]


def test_quantities_have_units() -> None:
    assert quantity("x", "0.5%", SHARES) == pytest.approx(0.005) and quantity("x", "0.005", SHARES) == 0.005
    assert quantity("x", "8ms", MILLISECONDS) == 8 and quantity("x", "1.5 s", MILLISECONDS) == 1500
    assert quantity("x", "64MB", BYTES) == 64e6 and quantity("x", "1MiB", BYTES) == 1 << 20
    for text, units in (("8", MILLISECONDS), ("-1ms", MILLISECONDS), ("1e9ms", MILLISECONDS), ("nan", SHARES)):
        with pytest.raises(UsageError, match="--x"):
            quantity("--x", text, units)
    with pytest.raises(UsageError):
        quantity("--max-drop", "101%", SHARES)


def test_the_candidates_of_a_model_and_their_settings(make_workspace: Callable[..., Path]) -> None:
    own = {INT8: {"int8": {"keep_float": ["first"]}, "tune": {"total_trials": 9}}}

    def change(params: dict[str, Any]) -> None:
        params["tune"]["trials_per_workload"] = 24
        params["overrides"] = own

    workspace = Workspace(make_workspace(change))
    request = fill(workspace.params, Request("digits_torch", goals=Goals(max_drop=0.01)))
    assert (request.targets, request.float_layers, request.trials) == (("local-cpu",), (0, 8), (8, 24))
    cells = {cell.precision: cell for cell in cells_of(workspace.params, request)}
    assert list(cells) == ["float32", "float16", "bfloat16", "int8"]
    assert [cell.precision for cell in cells_of(workspace.params, replace(request, targets=("vta-sim",)))] == [
        "vta_int8"
    ]
    [plain] = candidates(workspace, request, cells["float32"], 24, STAGES)
    assert plain.overrides == CellOverrides(), "as params.yaml says"
    none, some = candidates(workspace, request, cells["int8"], 8, STAGES)
    assert none.overrides.model_dump(exclude_none=True) == {
        "int8": {"keep_float": ("first",), "max_drop": 0.01, "max_float_layers": 0},
        "tune": {"trials_per_workload": 8, "total_trials": 9},
    }
    assert some.overrides.int8.max_float_layers is None and some.float_layers == 8
    variant = variant_of(none)
    assert isinstance(variant, Variant) and variant.shares == {"fetch", "import_model"}
    assert variant.params.int8_of(cells["int8"]).max_float_layers == 0
    for wrong, error in (
        (replace(request, model="dog"), UnknownNameError),
        (replace(request, targets=("moon",)), UnknownNameError),
        (replace(request, trials=(8, 8)), UsageError),
        (Request("resnet18"), UsageError),
    ):
        with pytest.raises(error):
            fill(workspace.params, wrong)
    with pytest.raises(UsageError, match="do not compute in float32"):
        cells_of(workspace.params, replace(request, targets=("vta-sim",), precisions=("float32",)))


def test_quarantined_cells_are_not_looked_at(make_workspace: Callable[..., Path]) -> None:
    workspace = Workspace(make_workspace())
    cell = workspace.params.cell(INT8)
    assert why_not(workspace, cell) == ""
    quarantine_cell(cell, "wrong on one phone", "https://host/1", "2999-01-01", workspace)
    assert "is in quarantine until 2999-01-01: wrong on one phone" in why_not(workspace, cell)


def test_a_variant_starts_with_the_tuning_logs_of_its_cell(make_workspace: Callable[..., Path]) -> None:
    workspace = Workspace(make_workspace())
    cell = workspace.params.cell(INT8)
    few, more = (
        make_variant(workspace, cell, CellOverrides.model_validate({"tune": {"trials_per_workload": trials}}), ())
        for trials in (8, 64)
    )
    for log, text in ((workspace.tuning_log(cell), "a\nb\n"), (few.tuning_log(cell), "b\nc\ncut o")):
        log.parent.mkdir(parents=True)
        log.write_text(text)
    share_log(more, cell)
    assert more.tuning_log(cell).read_text() == "a\nb\nc\n"
    more.tuning_log(cell).write_text("mine\n")
    share_log(more, cell)
    assert more.tuning_log(cell).read_text() == "mine\n", "what was tuned since stays"


def test_the_chosen_cells_are_written_beside_the_comments(make_workspace: Callable[..., Path]) -> None:
    workspace = Workspace(make_workspace())
    text = "# mine\n" + workspace.params_path.read_text()
    workspace.params_path.write_text(text)
    overrides = CellOverrides.model_validate({"int8": {"max_float_layers": 0}})
    one = replace(_one("int8", 2.0, 0.0, "local-cpu"), cell=INT8, overrides=overrides)
    result = SearchResult("digits_torch", GOALS, ("local-cpu",), (one,))
    assert write_chosen(result, workspace) == ("digits_torch-local-cpu-int8",)
    written = workspace.params_path.read_text()
    assert written.startswith("# mine\n") and workspace.params.overrides == {INT8: overrides}
    assert str(workspace.params.cell("digits_torch-local-cpu-int8")) == INT8
    usual = replace(result, candidates=(replace(one, overrides=CellOverrides()),))
    assert write_chosen(usual, workspace) == ("digits_torch-local-cpu-int8",)
    assert workspace.params.overrides == {INT8: CellOverrides()}, "the settings of before do not stay"
    with pytest.raises(StoreError, match="chose nothing"):
        write_chosen(replace(result, candidates=()), workspace)
