"""Test that executed blocks are read, and that their cycles are those of LLVM's model of a core."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.core_model import Block, estimate, read_blocks

FMLA = bytes.fromhex("20cc224e")  # fmla v0.4s, v1.4s, v2.4s
OTHERS = b"".join(bytes.fromhex(code) for code in ("23cc224e", "24cc224e", "25cc224e"))  # into v3, v4, v5
UNKNOWN = bytes.fromhex("00000000")  # udf: no instruction of a network


def _has_model() -> bool:
    return any(shutil.which(f"llvm-mca-{version}") for version in (18, 19, 20))


def test_blocks_are_read_with_their_counts(tmp_path: Path) -> None:
    file = tmp_path / "blocks-2"
    file.write_text(f"12 1 {FMLA.hex()}\n3 4 {(FMLA + OTHERS).hex()}\n")
    blocks = read_blocks(file)
    assert blocks == [Block(12, 1, FMLA), Block(3, 4, FMLA + OTHERS)] and blocks[1].executed == 12


def test_without_llvm_the_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(RuntimeError, match=r"llvm-mc.*apt-get install llvm-19"):
        estimate([Block(1, 1, FMLA)], "aarch64-linux-gnu", "cortex-a53")


@pytest.mark.skipif(not _has_model(), reason="llvm-mca of LLVM 18 to 20 is not installed")
def test_what_waits_takes_longer_and_what_is_unknown_counts_as_the_rest() -> None:
    alone = estimate([Block(1000, 1, FMLA)], "aarch64-linux-gnu", "neoverse-n1")
    beside = estimate([Block(1000, 4, FMLA + OTHERS)], "aarch64-linux-gnu", "neoverse-n1")
    assert alone.share == beside.share == 1 and alone.cycles >= 2000, "a sum of its own result"
    assert beside.cycles == pytest.approx(alone.cycles, rel=0.05), "three more sums wait for nothing"
    in_order = estimate([Block(1000, 4, FMLA + OTHERS)], "aarch64-linux-gnu", "cortex-a53")
    assert in_order.cycles > 1.5 * beside.cycles
    mixed = estimate([Block(1000, 1, FMLA), Block(500, 1, UNKNOWN)], "aarch64-linux-gnu", "neoverse-n1")
    assert mixed.share == pytest.approx(2 / 3) and mixed.cycles == pytest.approx(1.5 * alone.cycles)
