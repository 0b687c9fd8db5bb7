"""Test that peers are asked to compute in the precision that they are compared in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import bench.instructions
from bench.instructions import theirs

# A stand-in for a package of a peer: it computes nothing, and says what it was asked for as its failure.
_NCNN = """
class Net:
    def __init__(self):
        self.opt = type("Options", (), {})()
    def load_param(self, name):
        asked = self.opt.use_fp16_arithmetic, self.opt.use_fp16_storage, self.opt.use_fp16_packed
        raise SystemExit(f"asked {asked}")
"""


@pytest.mark.parametrize("half", [False, True])
def test_a_peer_is_told_whether_it_may_compute_in_float16(
    half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ncnn.py").write_text(_NCNN)

    class System:
        python = Path(sys.executable)

        def command(self, *_: Any, **__: Any) -> list[str]:
            return []

        def wheels(self, _pins: Any) -> Path:
            return tmp_path

    system: Any = System()
    monkeypatch.setattr(bench.instructions, "emulated_system", lambda: system)
    with pytest.raises(RuntimeError, match=f"asked \\({half}, {half}, {half}\\)"):
        theirs(system, tmp_path / "network.param", "cortex-a76", "1x3x8x8", half=half)
