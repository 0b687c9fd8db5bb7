"""Test the commands of bundles: their output, and one clear error for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tvmflow.cli import app
from tvmflow.shipping.bundle.signing import KeyPair
from tvmflow.support.errors import SignatureError, UsageError

RUNNER = CliRunner()


def test_verify_prints_what_it_found(bundle: Path, keys: KeyPair) -> None:
    done = RUNNER.invoke(app, ["verify", str(bundle), "--key", str(keys.public), "--json"])
    report = json.loads(done.stdout)
    assert (report["name"], report["version"], report["signer"]) == ("small", 3, keys.keyid) and done.exit_code == 0
    done = RUNNER.invoke(app, ["verify", str(bundle), "--unsigned"])
    assert "small version 3" in done.stdout and "signature not checked" in done.stdout


def test_keys_are_made_once(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["keys", "new", str(tmp_path / "key"), "--json"])
    made = json.loads(done.stdout)
    assert Path(made["private"]).stat().st_mode & 0o777 == 0o600 and Path(made["public"]).is_file()
    assert isinstance(RUNNER.invoke(app, ["keys", "new", str(tmp_path / "key")]).exception, UsageError)


@pytest.mark.parametrize(
    ("options", "kind", "hint"),
    [
        ([], UsageError, "--unsigned"),
        (["--key", "nobody.pub"], UsageError, "tvmflow keys new"),
        (["--key", "{private}"], UsageError, "release.pub"),
        (["--key", "{other}"], SignatureError, "whose key you trust"),
    ],
)
def test_mistakes_with_keys(
    bundle: Path, keys: KeyPair, tmp_path: Path, options: list[str], kind: type[Exception], hint: str
) -> None:
    RUNNER.invoke(app, ["keys", "new", str(tmp_path / "other")])
    words = [word.format(private=keys.private, other=tmp_path / "other.pub") for word in options]
    error = RUNNER.invoke(app, ["verify", str(bundle), *words]).exception
    assert isinstance(error, kind) and hint in str(error)
    assert isinstance(RUNNER.invoke(app, ["verify", str(tmp_path / "none.zip"), "--unsigned"]).exception, UsageError)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bundle", "any", "--unsigned", "--key", "x"], "a key together with --unsigned"),
        (["bundle", "any"], "no key to sign with"),
        (["bundle", "any", "--key", "nowhere"], "the key nowhere cannot be read"),
        (["release", "app", "--channel", "a/b"], "no channel 'a/b'"),
        (["release", "app", "--rollback", "--dry-run"], "--dry-run with a rollback"),
    ],
)
def test_mistakes_in_a_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.delenv("TVMFLOW_SIGNING_KEY", raising=False)
    (tmp_path / "params.yaml").write_text(
        "models:\n  any: {framework: onnx, weights: {file: any.onnx}, input: {shape: [1, 4]}}\napps:\n  "
        "app: {cells: [any]}\n"
    )
    error = RUNNER.invoke(app, ["--root", str(tmp_path), *words]).exception
    assert isinstance(error, UsageError) and said in str(error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["params.yaml"]
