"""The choice of algorithms: by kernels, then in the whole network, never without a measurement."""

from __future__ import annotations

from tvmflow.kernels.workloads import Workload
from tvmflow.tuning.algorithms import LARGE_WEIGHTS, Alternative, choose, settle, weight_values
from tvmflow.tuning.records import OK, TuningRecord

LARGE, SMALL = "1x32x7x7x16 32x32x3x3x16x16 p1,1,1,1", "1x4x56x56x16 4x4x3x3x16x16 p1,1,1,1"


def _kernel(name: str, calls: int = 1) -> Workload:
    return Workload(name, name, calls, None)


def _times(**seconds: float) -> dict[str, TuningRecord]:
    return {
        name: TuningRecord(name, name, "t", {}, None, (value,), OK, "device", {}, "now")
        for name, value in seconds.items()
    }


def _alternatives(key: str) -> list[Alternative]:
    return [Alternative(key, m, (_kernel("direct", 2),), (_kernel(f"f{m}", 2),)) for m in (2, 4)]


def test_the_faster_kernels_win_and_what_was_not_measured_never_does() -> None:
    alternatives = _alternatives(SMALL)
    assert choose(alternatives, _times(direct=3.0, f2=2.0, f4=1.0)) == {SMALL: 4}
    assert choose(alternatives, _times(direct=3.0, f2=2.0)) == {SMALL: 2}
    assert choose(alternatives, _times(direct=1.0, f2=2.0, f4=3.0)) == {}
    assert choose(alternatives, _times(f2=2.0, f4=1.0)) == {}


def test_large_weights_are_settled_in_the_whole_network() -> None:
    best = _times(direct=3.0, f2=2.0, f4=1.0)
    whole = {0: 10.0, 2: 8.0, 4: 12.0}  # F(4x4) is slower there: its weights come from memory
    asked: list[int] = []

    def speedup(now: dict[str, int], other: dict[str, int]) -> float:
        asked.append(other.get(LARGE, 0))
        return whole[now.get(LARGE, 0)] / whole[other.get(LARGE, 0)]

    assert settle(_alternatives(LARGE), {LARGE: 4}, best, speedup) == {LARGE: 2}
    assert asked == [0, 2]
    assert settle(_alternatives(LARGE), {LARGE: 4}, best, speedup, lambda: False) == {LARGE: 4}, "no time left"
    assert asked == [0, 2]
    assert settle(_alternatives(LARGE), {LARGE: 2}, best, lambda now, other: 1.005) == {LARGE: 2}, "less than noise"


def test_small_weights_and_unmeasured_kernels_are_not_compared() -> None:
    def never(_now: dict[str, int], _other: dict[str, int]) -> float:
        raise AssertionError("compared")

    assert weight_values(SMALL) < LARGE_WEIGHTS <= weight_values(LARGE)
    assert settle(_alternatives(SMALL), {SMALL: 4}, _times(direct=3.0, f2=2.0, f4=1.0), never) == {SMALL: 4}
    assert settle(_alternatives(LARGE), {}, _times(direct=3.0), never) == {}
