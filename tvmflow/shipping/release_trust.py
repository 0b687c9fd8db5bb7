"""Sign and check releases/APP.yaml, and say which keys may sign it.

Every change raises `serial`, sets `expires` and is signed. Who reads the file refuses another signer, an old serial and
an expired file, so that nobody passes off former releases as the current ones. Without a root key the one key of the
releases is trusted. With one, which is kept offline, releases/APP.keys.json says which keys are allowed: the root signs
it, it has a serial and an expiry of its own, and a key that is not listed any more is revoked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import Field, ValidationError

from tvmflow.config.stage_params import Frozen
from tvmflow.config.value_types import Name, Sha256
from tvmflow.shipping.bundle.signing import envelope, keyid, open_envelope, to_be_signed
from tvmflow.support.errors import SignatureError, StoreError, UsageError
from tvmflow.support.files import canonical_json
from tvmflow.support.plain_files import read_plain
from tvmflow.tracking.app_releases import Releases, Signature, Version, releases_in

VALID_DAYS = 90
KEYS_TYPE = "application/vnd.tvmflow.release-keys+json"
_RELEASES_TYPE = "application/vnd.tvmflow.releases+json"
_MAX_BYTES = 1 << 20
_DAY = "%Y-%m-%d"


class AllowedKeys(Frozen):
    """What the root signs: the public keys (32 bytes in hexadecimal digits) that may sign an app's releases."""

    app: Name
    serial: Annotated[int, Field(ge=1)]
    expires: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    keys: Annotated[tuple[Sha256, ...], Field(strict=False, max_length=100)]


def keys_path(folder: Path, app: str) -> Path:
    """Return the file of an app's allowed keys."""
    return folder / f"{app}.keys.json"


def sign_keys(
    folder: Path, app: str, root: Ed25519PrivateKey, keys: Iterable[Ed25519PublicKey], valid_days: int
) -> bytes:
    """Return the next file of allowed keys, signed by the root. A key that is left out is revoked."""
    before = read_keys(folder, app, root.public_key(), now=None)
    allowed = AllowedKeys(
        app=app,
        serial=before.serial + 1 if before else 1,
        expires=_day_in(valid_days),
        keys=tuple(dict.fromkeys(_raw(key) for key in keys)),
    )
    return envelope(canonical_json(allowed.model_dump(mode="json")).encode(), root, KEYS_TYPE)


def read_keys(folder: Path, app: str, root: Ed25519PublicKey, now: datetime | None) -> AllowedKeys | None:
    """Return the allowed keys of an app, None without a file. Raises SignatureError if the root did not sign it, or it
    expired. now: None also accepts an expired one.
    """
    path = keys_path(folder, app)
    try:
        data = read_plain(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "the file that 'tvmflow keys allow' wrote"
        ) from None
    try:
        found = AllowedKeys.model_validate(json.loads(open_envelope(data, root, KEYS_TYPE)))
    except (ValidationError, ValueError, RecursionError):
        raise SignatureError(f"{path.name} is damaged", "the file that 'tvmflow keys allow' wrote") from None
    if found.app != app:
        raise SignatureError(f"{path.name} is about the app {found.app}", f"the keys of {app}")
    _check_expiry(path.name, found.expires, now, "the owner of the root key runs 'tvmflow keys allow' again")
    return found


def sign_releases(releases: Releases, key: Ed25519PrivateKey | None, valid_days: int = VALID_DAYS) -> Releases:
    """Return the releases with the next serial, and with a key an expiry and its signature."""
    new = releases.model_copy(update={"serial": releases.serial + 1, "expires": None, "signature": None})
    if key is None:
        return new
    new = new.model_copy(update={"expires": _day_in(valid_days)})
    signature = Signature(key=keyid(key.public_key()), value=key.sign(_signed_part(new)).hex())
    return new.model_copy(update={"signature": signature})


def check_releases(
    releases: Releases, key: Ed25519PublicKey, folder: Path, *, is_root: bool = False, now: datetime | None = None
) -> tuple[Ed25519PublicKey, ...]:
    """Check who signed the releases, and that they are not expired. Returns the keys that may sign bundles of the app.

    key: the trusted key: of the releases, or is_root: of those who say which keys are. now: None also accepts expired
    files. Raises SignatureError.
    """
    name = f"{releases.app}.yaml"
    keys: tuple[Ed25519PublicKey, ...] = (key,)
    if is_root:
        allowed = read_keys(folder, releases.app, key, now)
        if allowed is None:
            raise SignatureError(
                f"no {keys_path(folder, releases.app).name} beside {name}",
                "the keys that the root key allows",
                f"write it with 'tvmflow keys allow {releases.app} --root FILE --key FILE.pub'",
            )
        keys = tuple(Ed25519PublicKey.from_public_bytes(bytes.fromhex(one)) for one in allowed.keys)
    signature = releases.signature
    if signature is None:
        raise SignatureError(f"{name} is not signed", "the signature of a trusted key", _renew(releases.app))
    signer = next((one for one in keys if keyid(one) == signature.key), None)
    if signer is None:
        expected = "the signature of a key that the root allows" if is_root else f"that of the key {keyid(key)[:16]}"
        raise SignatureError(f"{name} is signed by the key {signature.key[:16]}", expected, _renew(releases.app))
    try:
        signer.verify(bytes.fromhex(signature.value), _signed_part(releases))
    except InvalidSignature:
        raise SignatureError(f"{name} was altered: its signature does not match", "the file as it was signed") from None
    _check_expiry(name, releases.expires or "", now, f"sign it again: tvmflow release {releases.app} --renew")
    return keys


@dataclass(frozen=True)
class Shipped:
    """The version of a channel, as a checked file says it. key: that its bundle has to be signed with."""

    version: Version
    serial: int
    key: Ed25519PublicKey


def shipped(path: Path, channel: str, key: Ed25519PublicKey, is_root: bool, at_least: int | None) -> Shipped:
    """Return the current version of a channel from releases/APP.yaml, which may come from an untrusted source.

    at_least: the lowest serial: that of the last file that was accepted. Raises SignatureError, StoreError.
    """
    releases = releases_in(path, path.stem)
    keys = check_releases(releases, key, path.parent, is_root=is_root, now=datetime.now(UTC))
    if at_least is not None and releases.serial < at_least:
        raise SignatureError(
            f"{path.name} has the serial {releases.serial}",
            f"at least {at_least}",
            "a newer file may have been replaced by an older one",
        )
    version = releases.current(channel)
    if version is None:
        raise StoreError(f"{path.name} has nothing on {channel}", f"one of {', '.join(releases.channels) or 'nothing'}")
    signer = next((one for one in keys if keyid(one) == version.bundle.signer), None)
    if signer is None:
        raise SignatureError(f"version {version.version} is not signed by a trusted key", "a bundle of such a key")
    return Shipped(version, releases.serial, signer)


def check_signer(folder: Path, app: str, root: Ed25519PublicKey, key: Ed25519PublicKey) -> None:
    """Raise SignatureError if the root does not allow a key to sign releases."""
    allowed = read_keys(folder, app, root, datetime.now(UTC))
    if allowed is None or _raw(key) not in allowed.keys:
        raise SignatureError(
            f"the key {keyid(key)[:16]} may not sign releases of {app}",
            f"a key of {keys_path(folder, app).name}",
            f"the owner of the root key allows it: tvmflow keys allow {app} --root FILE --key FILE.pub",
        )


def _signed_part(releases: Releases) -> bytes:
    part = releases.model_dump(mode="json", exclude={"signature"})
    return to_be_signed(canonical_json(part).encode(), _RELEASES_TYPE)


def _check_expiry(name: str, expires: str, now: datetime | None, hint: str) -> None:
    if now is not None and now.strftime(_DAY) > expires:
        raise SignatureError(f"{name} expired on {expires}", "a newer file: this one may hide later releases", hint)


def _renew(app: str) -> str:
    return f"if you trust what it says: tvmflow release {app} --renew --key FILE"


def _raw(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def _day_in(days: int) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).strftime(_DAY)
