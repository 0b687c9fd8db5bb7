"""Test the file in which an installed TVM is described, so that commands need not start it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvmflow.toolchain import versions


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let the facts of this TVM be asked anew, into a file of the test."""
    path = tmp_path / "toolchain.json"
    monkeypatch.setattr(versions, "toolchain_file", lambda: path)
    versions.probe.cache_clear()
    yield path
    versions.probe.cache_clear()


def test_two_environments_do_not_forget_each_others_tvm(file: Path) -> None:
    """Else each command of the one starts TVM again after a command of the other: seconds."""
    of_another = {"another environment": {"llvm": "19"}}
    file.write_text(json.dumps(of_another))
    facts = versions.probe()
    known = json.loads(file.read_text())
    assert of_another.items() <= known.items() and facts in known.values() and len(known) == 2
