"""Test that mutated files, replies and IR are read or refused: tens of them, or hundreds in test-all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.mutants import main

pytestmark = pytest.mark.heavy


def _read(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    code = main(words)
    said = capsys.readouterr().out
    assert code == 0, said
    found: dict[str, int] = json.loads(said.splitlines()[-1])
    return found


def test_mutated_files_are_read_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _read(["60", "--keep", str(tmp_path), "--kinds", "ours", "boundary"], capsys)
    assert sum(count for name, count in found.items() if name.endswith("refused")) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3])
def test_hundreds_of_mutants_are_read_or_refused(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _read(["600", "--seed", str(seed), "--keep", str(tmp_path)], capsys)
    for name in ("ir", "torch", "onnx", "a bundle", "record.json", "params.yaml", "reply"):
        assert found.get(f"{name}: refused", 0) > 0, f"nothing of {name} was mutated enough to be refused"
