"""Test who may say what is released: signatures, serials, expiry, rotation and revocation of keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bundle_parts import CELL, sha256, small_part
from tvmflow import api
from tvmflow.config.params import AppEntry
from tvmflow.config.workspace import Workspace
from tvmflow.shipping import release_app as apps
from tvmflow.shipping import release_trust
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, new_keys, public_key, signing_key
from tvmflow.shipping.release_app import Order, Signer, promote_app, release_app, renew_releases, rollback_app
from tvmflow.shipping.release_trust import keys_path, shipped, sign_keys
from tvmflow.support.errors import BundleError, SignatureError, StoreError, UsageError
from tvmflow.tracking.app_releases import bundle_path, read_releases

ENTRY = AppEntry(cells=(CELL,))


def _silent(_step: str) -> None:
    pass


@pytest.fixture(scope="module")
def parts(part: Part, tmp_path_factory: pytest.TempPathFactory) -> tuple[Part, Part]:
    folder = tmp_path_factory.mktemp("parts")
    return part, small_part(folder / "4", ("ant", "bee", "cow", "dab", "elk"), "4")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(apps, "_verify", lambda _draft, _key: ([], None))  # runs nothing; test_bundle does
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"models": {}, "apps": {}}))
    return Workspace(tmp_path)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return new_keys(tmp_path_factory.mktemp("other") / "key")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return new_keys(tmp_path_factory.mktemp("root") / "key")


def _signer(keys: KeyPair, root: KeyPair | None = None) -> Signer:
    return Signer(signing_key(keys.private), public_key(root.public) if root else None)


def _release(workspace: Workspace, part: Part, signer: Signer) -> Any:
    order = Order("demo", ENTRY, [part], key=signer.key, root=signer.root)
    return release_app(workspace, order, _silent)


def _ledger(workspace: Workspace) -> Path:
    return workspace.root / "releases" / "demo.yaml"


def _rewrite(workspace: Workspace, change: Callable[[dict[str, Any]], Any]) -> None:
    data = yaml.safe_load(_ledger(workspace).read_text())
    change(data)
    _ledger(workspace).write_text(yaml.safe_dump(data, sort_keys=False))


def _replace_bundle(workspace: Workspace, data: bytes) -> None:
    bundle_path(workspace, "demo", 1).write_bytes(data)
    _rewrite(workspace, lambda known: known["versions"][0]["bundle"].update(sha256=sha256(data), size=len(data)))


def test_an_archive_replaced_by_text_is_not_promoted(
    workspace: Workspace, parts: tuple[Part, ...], keys: KeyPair
) -> None:
    signer = _signer(keys)
    assert _release(workspace, parts[0], signer).passed
    _replace_bundle(workspace, b"a text")
    with pytest.raises(SignatureError, match="was altered"):
        promote_app(workspace, "demo", "beta", "stable", _silent, signer)
    renew_releases(workspace, "demo", signer)  # even a file that somebody signed does not make text a bundle
    with pytest.raises(BundleError, match="not a zip archive"):
        promote_app(workspace, "demo", "beta", "stable", _silent, signer)
    assert read_releases(workspace, "demo").channels == {"beta": 1}


def test_the_bundle_of_another_signer_or_version_is_not_promoted(
    workspace: Workspace, parts: tuple[Part, ...], keys: KeyPair, other: KeyPair, bundle: Path
) -> None:
    signer = _signer(keys)
    _release(workspace, parts[0], signer)
    _replace_bundle(workspace, bundle.read_bytes())  # signed by the same key, of another name
    renew_releases(workspace, "demo", signer)
    with pytest.raises(BundleError, match="is small version 3"):
        promote_app(workspace, "demo", "beta", "stable", _silent, signer)
    with pytest.raises(SignatureError, match=r"demo\.yaml is signed by the key"):
        promote_app(workspace, "demo", "beta", "stable", _silent, _signer(other))
    renew_releases(workspace, "demo", _signer(other))
    with pytest.raises(SignatureError, match="version 1 is signed by the key"):
        promote_app(workspace, "demo", "beta", "stable", _silent, _signer(other))
    with pytest.raises(SignatureError, match="the releases of demo are signed"):
        promote_app(workspace, "demo", "beta", "stable", _silent)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(serial=9),
        lambda data: data.update(expires="2999-01-01"),
        lambda data: data["changes"].append(data["changes"][0] | {"channel": "stable"}),
        lambda data: data.pop("signature"),
        lambda data: data["signature"].update(value="0" * 128),
    ],
)
def test_an_altered_file_is_refused(
    workspace: Workspace, parts: tuple[Part, ...], keys: KeyPair, change: Callable[[Any], Any]
) -> None:
    _release(workspace, parts[0], _signer(keys))
    shipped(_ledger(workspace), "beta", public_key(keys.public), False, None)
    _rewrite(workspace, change)
    with pytest.raises(SignatureError):
        shipped(_ledger(workspace), "beta", public_key(keys.public), False, None)
    with pytest.raises(SignatureError):
        _release(workspace, parts[1], _signer(keys))


def test_serials_rise_and_an_older_file_is_refused(
    workspace: Workspace, parts: tuple[Part, ...], keys: KeyPair
) -> None:
    signer, trusted = _signer(keys), public_key(keys.public)
    _release(workspace, parts[0], signer)
    old = _ledger(workspace).read_bytes()
    _release(workspace, parts[1], signer)
    promote_app(workspace, "demo", "beta", "stable", _silent, signer)
    rollback_app(workspace, "demo", "beta", _silent, signer)
    now = shipped(_ledger(workspace), "beta", trusted, False, None)
    assert (now.serial, now.version.version) == (4, 1), "a rollback is a newer file"
    _ledger(workspace).write_bytes(old)
    with pytest.raises(SignatureError, match="has the serial 1"):
        shipped(_ledger(workspace), "beta", trusted, False, 4)
    with pytest.raises(StoreError, match="has the serial 1"):
        _release(workspace, parts[1], signer)


def test_an_expired_file_is_refused_until_it_is_renewed(
    workspace: Workspace, parts: tuple[Part, ...], keys: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer, trusted = _signer(keys), public_key(keys.public)
    _release(workspace, parts[0], signer)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=91)

    monkeypatch.setattr(release_trust, "datetime", Later)
    with pytest.raises(SignatureError, match=r"demo\.yaml expired on"):
        shipped(_ledger(workspace), "beta", trusted, False, None)
    renew_releases(workspace, "demo", signer)
    assert shipped(_ledger(workspace), "beta", trusted, False, None).serial == 2


def test_a_root_key_rotates_and_revokes(
    workspace: Workspace, parts: tuple[Part, ...], keys: KeyPair, other: KeyPair, root: KeyPair
) -> None:
    folder, owner = workspace.root / "releases", signing_key(root.private)
    assert owner is not None

    def allow(*pairs: KeyPair, days: int = 365) -> None:
        folder.mkdir(exist_ok=True)
        data = sign_keys(folder, "demo", owner, [public_key(one.public) for one in pairs], days)
        keys_path(folder, "demo").write_bytes(data)

    trusted, first, second = public_key(root.public), _signer(keys, root), _signer(other, root)
    with pytest.raises(SignatureError, match="may not sign releases"):
        _release(workspace, parts[0], first)
    allow(keys)
    _release(workspace, parts[0], first)
    with pytest.raises(SignatureError, match="may not sign releases"):
        promote_app(workspace, "demo", "beta", "stable", _silent, second)
    with pytest.raises(SignatureError, match="the releases of demo are signed"):
        promote_app(workspace, "demo", "beta", "stable", _silent, Signer(None, trusted))
    assert shipped(_ledger(workspace), "beta", trusted, True, None).version.version == 1

    allow(keys, other)  # rotation: both, until all is signed by the second
    promote_app(workspace, "demo", "beta", "stable", _silent, second)
    _release(workspace, parts[1], second)
    allow(other)  # the first is revoked: its bundle is not shipped any more
    assert shipped(_ledger(workspace), "beta", trusted, True, None).version.version == 2
    with pytest.raises(SignatureError, match="version 1 is not signed by a trusted key"):
        shipped(_ledger(workspace), "stable", trusted, True, None)
    with pytest.raises(SignatureError, match="version 1 is signed by the key"):
        rollback_app(workspace, "demo", "beta", _silent, second)
    forged = sign_keys(workspace.root, "demo", signing_key(keys.private), [public_key(keys.public)], 9)  # type: ignore[arg-type]
    keys_path(folder, "demo").write_bytes(forged)
    with pytest.raises(SignatureError, match="is signed by another key"):
        shipped(_ledger(workspace), "beta", trusted, True, None)
    keys_path(folder, "demo").unlink()
    allow(other, days=-1)
    with pytest.raises(SignatureError, match=r"demo\.keys\.json expired"):
        shipped(_ledger(workspace), "beta", trusted, True, None)


def test_verify_takes_the_bundle_of_a_channel(
    workspace: Workspace, parts: tuple[Part, ...], keys: KeyPair, root: KeyPair, tmp_path: Path
) -> None:
    params = {
        "models": {"m": {"framework": "onnx", "weights": {"file": "m.onnx"}, "input": {"shape": [1, 3]}}},
        "apps": {"demo": {"cells": ["m"]}},
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    named = Workspace(tmp_path)
    for _ in range(2):
        path = api.allow_keys("demo", root.private, [keys.public], workspace=named)
    assert release_trust.read_keys(path.parent, "demo", public_key(root.public), datetime.now(UTC)).serial == 2  # type: ignore[union-attr]
    for part in parts:
        _release(workspace, part, _signer(keys, root))
    arguments: dict[str, Any] = {"releases": _ledger(workspace), "channel": "beta", "root": root.public}
    assert api.verify_bundle(bundle_path(workspace, "demo", 2), **arguments).version == 2
    with pytest.raises(BundleError, match="is another bundle than was released"):
        api.verify_bundle(bundle_path(workspace, "demo", 1), **arguments)
    with pytest.raises(StoreError, match="nothing on stable"):
        api.verify_bundle(bundle_path(workspace, "demo", 2), **arguments | {"channel": "stable"})
    with pytest.raises(UsageError, match="without one key"):
        api.verify_bundle(bundle_path(workspace, "demo", 2), **arguments | {"key": keys.public})
