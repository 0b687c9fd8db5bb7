"""Sign and verify statements: Ed25519 keys and DSSE envelopes, whose signature covers the payload and its type.

A private key is a PEM file readable only by its owner, or the text of one in TVMFLOW_SIGNING_KEY; it is never written
into a workspace. The verifier chooses the public key: signatures of other keys are ignored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from tvmflow.support.errors import BundleError, SignatureError, UsageError

VARIABLE = "TVMFLOW_SIGNING_KEY"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAX_KEY_BYTES = 10_000
_HINT = "make a pair with 'tvmflow keys new FILE'"


@dataclass(frozen=True)
class KeyPair:
    """The paths of a new key pair. keyid: sha256 of the public key's 32 bytes."""

    private: Path
    public: Path
    keyid: str

    def to_json(self) -> dict[str, str]:
        return {"private": str(self.private), "public": str(self.public), "keyid": self.keyid}


def new_keys(path: Path) -> KeyPair:
    """Write a new private key (mode 0600) and its public key as FILE.pub, in a folder that is made if it
    is missing. Raises UsageError if one of the keys exists.
    """
    key, public = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    for place in (path, public):
        if place.exists() or place.is_symlink():
            raise UsageError(f"{place} already exists", "an unused name: keys are never overwritten")
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_new(path, secret, 0o600)
    try:
        _write_new(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return KeyPair(path, public, keyid(key.public_key()))


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UsageError(f"{path} already exists", "an unused name: keys are never overwritten") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)  # half a key
        raise


def signing_key(path: Path | None) -> Ed25519PrivateKey | None:
    """Return the private key of a file or of TVMFLOW_SIGNING_KEY, None without either. Raises UsageError."""
    if path is None:
        text = os.environ.get(VARIABLE)
        return None if text is None else _private(text.encode(), VARIABLE)
    data = _read(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise UsageError(
            f"the key {path} can be read by others (mode {mode:03o})",
            "a file that only its owner can read",
            f"chmod 600 {path}",
        )
    return _private(data, str(path))


def _private(data: bytes, where: str) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None  # type: ignore[assignment]
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{where} holds no private key", "an Ed25519 key in PEM, without a password", _HINT)
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key of a file. Raises UsageError."""
    data = _read(path)
    try:
        key = load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None  # type: ignore[assignment]
    if not isinstance(key, Ed25519PublicKey):
        hint = f"the public half is {path}.pub" if b"PRIVATE KEY" in data else _HINT
        raise UsageError(f"{path} holds no public key", "an Ed25519 public key in PEM", hint)
    return key


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise UsageError(f"the key {path} cannot be read: {error.strerror}", "a PEM file", _HINT) from None


def keyid(key: Ed25519PublicKey) -> str:
    """Return the sha256 of a public key's 32 bytes, its id in envelopes."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()


def envelope(payload: bytes, key: Ed25519PrivateKey | None, kind: str = PAYLOAD_TYPE) -> bytes:
    """Return a DSSE envelope around a statement; without a key it has no signature."""
    signatures = []
    if key is not None:
        signatures.append((keyid(key.public_key()), key.sign(to_be_signed(payload, kind))))
    return _encode(payload, signatures, kind)


def open_envelope(data: bytes, key: Ed25519PublicKey | None, kind: str = PAYLOAD_TYPE) -> bytes:
    """Return the statement of an envelope. key: the required signer; None accepts any or no signature.

    Raises SignatureError without that signature, BundleError for an invalid envelope.
    """
    payload, signatures = _decode(data, kind)
    if key is None:
        return payload
    if not signatures:
        raise SignatureError("the bundle is not signed", f"a signature of the key {keyid(key)[:16]}")
    name, signature = signatures[0]
    if name != keyid(key):
        raise SignatureError(
            f"the bundle is signed by another key, {name[:16]}",
            f"a signature of the key {keyid(key)[:16]}",
            "accept bundles only from signers whose key you trust",
        )
    try:
        key.verify(signature, to_be_signed(payload, kind))
    except InvalidSignature:
        raise SignatureError(
            "the signature does not match the statement: one of them was altered", f"a signature of the key {name[:16]}"
        ) from None
    return payload


def to_be_signed(payload: bytes, kind: str) -> bytes:
    """Return what a signature covers: a payload and its type."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


def _encode(payload: bytes, signatures: list[tuple[str, bytes]], kind: str) -> bytes:
    value = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": [{"keyid": name, "sig": base64.b64encode(sig).decode()} for name, sig in signatures],
    }
    return json.dumps(value, indent=1).encode() + b"\n"


def _decode(data: bytes, kind: str) -> tuple[bytes, list[tuple[str, bytes]]]:
    try:
        value: Any = json.loads(data)
        payload = base64.b64decode(value["payload"], validate=True)
        signatures = [(str(one["keyid"]), base64.b64decode(one["sig"], validate=True)) for one in value["signatures"]]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise BundleError("the bundle's envelope is damaged", "a DSSE envelope as tvmflow writes it") from None
    if _encode(payload, signatures, kind) != data or len(signatures) > 1:
        raise BundleError("the bundle's envelope was altered", "a DSSE envelope as tvmflow writes it")
    return payload, signatures
