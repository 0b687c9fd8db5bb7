"""Damage every file of a workspace and run each command that reads it: at most one clear error, and nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import render
from tests.conftest import free_port
from tests.tracking.ledger_bench import LedgerBench
from tvmflow.cli import main
from tvmflow.tracking.mlflow.registry import CHALLENGER, version_by_alias
from tvmflow.tracking.mlflow.releases import promote

pytestmark = pytest.mark.heavy

CELL = "digits_torch@local-cpu:float32"
SLUG = "digits_torch.local-cpu.float32"
FILES = {  # and the command that its first damage meets; the next damage meets the next command
    "mlruns/mlflow.db-wal": 1,
    "params.yaml": 3,
    f"artifacts/evaluate/{SLUG}/scorecard.json": 12,
    f"artifacts/build/{SLUG}/record.json": 13,
    f"artifacts/build/{SLUG}/library.so": 14,
    f"artifacts/fetch/{SLUG}/record.json": 15,
    f"artifacts/tune/{SLUG}/curve.csv": 16,
}
COMMANDS = (["status"], ["history", "digits"], ["report"], ["promote", "digits"], ["run", "digits", "--dry-run"])


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "text": lambda path: path.write_text("what is this: [no, {idea\n" * 50),
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "a list": lambda path: path.write_text("[]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "gone": Path.unlink,
    "directory": _directory,
}


def _call(arguments: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run the command line in this process. An exception that is none of ours comes out, as a traceback would."""
    before, sys.argv = sys.argv, ["tvmflow", "--root", str(root), *arguments]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return code, said.out, said.err


def _prepare(ledger: LedgerBench) -> None:
    cell = ledger.cell("digits_torch")
    for library in ("one", "two"):
        ledger.measure(cell, library)
        asking = version_by_alias(ledger.workspace, cell, CHALLENGER)
        assert asking is not None
        if library == "one":
            promote(ledger.workspace, asking, "good")
    (ledger.root / "dvc.yaml").write_text(render())
    for name, text in {
        "dvc.lock": "schema: '2.0'\nstages: {}\n",
        ".dvc/config": "[core]\n    no_scm = True\n",
        "mlruns/mlflow.db-wal": "",
    }.items():
        (ledger.root / name).parent.mkdir(parents=True, exist_ok=True)
        (ledger.root / name).write_text(text)


@pytest.mark.few(4)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_one_clear_error_or_none(
    ledger: LedgerBench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")  # promote ends there at the latest
    _prepare(ledger)
    path = ledger.root / file
    history = _call(["history", "digits", "--json"], ledger.root, capsys)[1]
    assert [row["version"] for row in json.loads(history)] == ["1 champion", "2 challenger"]
    good = path.read_bytes()
    for turn, (damage, apply) in enumerate(DAMAGES.items(), FILES[file]):
        apply(path)
        ledger.forget()
        for command in (COMMANDS[turn % 5], COMMANDS[(turn + 2) % 5]):  # over the damages each file meets each command
            code, _out, err = _call(command, ledger.root, capsys)
            where = f"{file} {damage}: {' '.join(command)}: {err}"
            assert (code == 0) == ("error: " not in err), where
            assert code in (0, 1, 2) and err.count("error: ") <= 1 and len(err) < 1500, where
            assert "Traceback" not in err and "sqlalche" not in err and "MlflowException" not in err, where
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(good)
        ledger.forget()
        assert _call(["history", "digits", "--json"], ledger.root, capsys)[1] == history, f"{file} {damage}: lost"
