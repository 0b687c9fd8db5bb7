"""Test that any manipulation of a bundle is rejected with an error that names it."""

from __future__ import annotations

import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bundle_parts import sha256
from tvmflow.shipping.bundle import verify as verifying
from tvmflow.shipping.bundle.archive import MAX_BYTES, Archive, write_archive
from tvmflow.shipping.bundle.manifest import ENVELOPE, MANIFEST
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, envelope, new_keys, public_key, signing_key
from tvmflow.shipping.bundle.statement import subjects
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
from tvmflow.support.errors import BundleError, SignatureError, UsageError

LIBRARY = "lib/x86_64-linux-gnu/libsmall_local_cpu_float32.so"
CELL = "cells/small.local-cpu.float32"


@pytest.fixture
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets as far as the libraries was not refused."""

    def reached(*_arguments: object) -> None:
        raise AssertionError("it was not refused")

    monkeypatch.setattr(verifying, "_check_library", reached)


def _contents(bundle: Path) -> dict[str, bytes]:
    with Archive(bundle) as archive:
        return {name: archive.read(name) for name in archive.entries}


def _refused(path: Path, trust: Trust, said: str, kind: type[BundleError] = BundleError) -> None:
    with pytest.raises(kind, match=said) as error:
        verify(path, trust)
    assert error.value.expected


def _altered(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def _write(path: Path, files: dict[str, bytes]) -> Path:
    write_archive(path, files)
    return path


@pytest.mark.parametrize(
    "name", [LIBRARY, "include/tvmflow.h", MANIFEST, f"{CELL}/golden/output0.npy", f"{CELL}/card.md", "sbom.cdx.json"]
)
def test_a_file_that_was_altered(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None, name: str) -> None:
    """With a right CRC, as whoever alters it would write."""
    files = _contents(bundle)
    files[name] = _altered(files[name], len(files[name]) // 2)
    _refused(_write(tmp_path / "b.zip", files), trust, f"{name} was altered: its digest differs from the statement")


def test_bytes_altered_in_place(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None) -> None:
    with Archive(bundle) as archive:
        at = archive.entries[LIBRARY].offset + 1000
    (tmp_path / "b.zip").write_bytes(_altered(bundle.read_bytes(), at))
    _refused(tmp_path / "b.zip", trust, f"{LIBRARY} was altered: its bytes have another CRC")


def test_a_file_that_was_added(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None) -> None:
    path = _write(tmp_path / "b.zip", {**_contents(bundle), "python/more.py": b"pass"})
    _refused(path, trust, "python/more.py has no digest in the statement")


def test_a_file_that_is_missing(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None) -> None:
    files = _contents(bundle)
    del files["include/tvmflow.h"]
    _refused(_write(tmp_path / "b.zip", files), trust, "include/tvmflow.h' is missing")


def test_a_manifest_that_leaves_a_file_out(
    bundle: Path, keys: KeyPair, trust: Trust, tmp_path: Path, no_trial: None
) -> None:
    """Signed, so by someone whose tvmflow is at fault."""
    files = _contents(bundle)
    manifest = json.loads(files[MANIFEST])
    del manifest["files"]["README.md"]
    _refused(
        _write(tmp_path / "b.zip", _signed({**files, MANIFEST: json.dumps(manifest).encode()}, keys)),
        trust,
        "README.md has no digest in the manifest",
    )


def _signed(files: dict[str, bytes], keys: KeyPair, **more: Any) -> dict[str, bytes]:
    """Return the files with a statement that fits them, signed."""
    from tvmflow.shipping.bundle.signing import open_envelope

    statement = json.loads(open_envelope(files[ENVELOPE], None)) | more
    statement["subject"] = [
        {"name": n, "digest": {"sha256": sha256(d)}} for n, d in sorted(files.items()) if n != ENVELOPE
    ]
    return {**files, ENVELOPE: envelope(json.dumps(statement).encode(), signing_key(keys.private))}


def test_the_signature_of_another_key(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None) -> None:
    path = _write(tmp_path / "b.zip", _signed(_contents(bundle), new_keys(tmp_path / "other")))
    _refused(path, trust, "signed by another key", SignatureError)


def test_another_key_under_the_name_of_the_trusted_one(
    bundle: Path, trust: Trust, keys: KeyPair, tmp_path: Path, no_trial: None
) -> None:
    other = new_keys(tmp_path / "other")
    files = _signed(_contents(bundle), other)
    files[ENVELOPE] = files[ENVELOPE].replace(other.keyid.encode(), keys.keyid.encode())
    _refused(_write(tmp_path / "b.zip", files), trust, "the signature does not match the statement", SignatureError)


def test_no_signature(part: Part, trust: Trust, tmp_path: Path, no_trial: None) -> None:
    write_bundle(tmp_path / "b.zip", [part], BundleRequest("small"), None)
    _refused(tmp_path / "b.zip", trust, "the bundle is not signed", SignatureError)
    with pytest.raises(UsageError, match="no key to trust"):
        verify(tmp_path / "b.zip", Trust(None))
    with pytest.raises(AssertionError, match="not refused"):
        verify(tmp_path / "b.zip", Trust(None, unsigned=True))


@pytest.mark.parametrize("more", [{"_type": "https://in-toto.io/Statement/v2"}, {"predicateType": "x"}])
def test_a_statement_of_another_kind(
    bundle: Path, trust: Trust, keys: KeyPair, tmp_path: Path, no_trial: None, more: dict[str, str]
) -> None:
    _refused(_write(tmp_path / "b.zip", _signed(_contents(bundle), keys, **more)), trust, "statement is damaged")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"payload": "%%", "signatures": []}', b"[" * 100_000]
)
def test_an_envelope_that_is_none(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None, data: bytes) -> None:
    _refused(_write(tmp_path / "b.zip", {**_contents(bundle), ENVELOPE: data}), trust, "envelope is damaged")


def test_an_older_release_in_place_of_a_newer_one(
    bundle: Path, part: Part, trust: Trust, keys: KeyPair, tmp_path: Path, no_trial: None
) -> None:
    _refused(bundle, Trust(trust.key, at_least=4), "small is version 3")
    write_bundle(tmp_path / "b.zip", [part], BundleRequest("small"), signing_key(keys.private))
    _refused(tmp_path / "b.zip", Trust(trust.key, at_least=1), "no release: it has no version")
    with pytest.raises(AssertionError, match="not refused"):
        verify(bundle, Trust(trust.key, at_least=3))


def test_what_was_checked_is_what_is_used(
    bundle: Path, trust: Trust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data, seen = tmp_path / "b.zip", bundle.read_bytes(), []

    def use(archive: Archive, *_arguments: object) -> None:
        path.write_bytes(bytes(len(data)))  # in place: whoever has it open reads this
        seen.append(archive.read(LIBRARY))

    monkeypatch.setattr(verifying, "_check_library", use)
    path.write_bytes(data)
    assert verify(path, trust).sha256 == sha256(data) and seen == [_contents(bundle)[LIBRARY]]


def test_what_is_no_file_is_refused_and_waited_for_by_nobody(trust: Trust, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "link.zip").symlink_to("pipe.zip")
    (tmp_path / "zero.zip").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a pipe"), ("link", "a pipe"), ("zero", "a device")):
        with pytest.raises(UsageError, match=f"{name}.zip cannot be read: it is {kind}, not a plain file"):
            verify(tmp_path / f"{name}.zip", trust)


@pytest.mark.parametrize("left", [0, 3, 21, 100, 0.5, 0.9, -1])
def test_a_file_that_is_cut_off(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None, left: float) -> None:
    data = bundle.read_bytes()
    (tmp_path / "b.zip").write_bytes(data[: int(left * len(data)) if isinstance(left, float) else left])
    _refused(
        tmp_path / "b.zip",
        trust,
        "not a zip archive" if left in (0, 3) else "the archive is truncated or followed by other data",
    )


@pytest.mark.parametrize("more", [b"\0", b"PK\x05\x06" + bytes(18), b"x" * 70_000])
def test_something_behind_the_end(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None, more: bytes) -> None:
    (tmp_path / "b.zip").write_bytes(bundle.read_bytes() + more)
    _refused(tmp_path / "b.zip", trust, "followed by other data|end record")


def test_something_before_the_beginning(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None) -> None:
    (tmp_path / "b.zip").write_bytes(b"#!/bin/sh\nrm -r ~\n" + bundle.read_bytes())
    _refused(tmp_path / "b.zip", trust, "not a zip archive")


def _raw(path: Path, files: list[tuple[str, bytes, dict[str, int]]], overlap: bool = False) -> Path:
    """Write an archive as an attacker would: method, mode, sizes and offsets of any kind."""
    body, table = b"", b""
    for name, data, odd in files:
        raw, crc, at = name.encode(), odd.get("crc", zlib.crc32(data)), odd.get("offset", len(body))
        method, size, packed = odd.get("method", 0), odd.get("size", len(data)), odd.get("packed", len(data))
        body += (
            struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, method, 0, 33, crc, packed, size, len(raw), 0)
            + raw
            + data
        )
        mode = odd.get("mode", 0o100644) << 16
        table += (
            struct.pack(
                "<4sHHHHHHIIIHHHHHII",
                b"PK\x01\x02",
                3 << 8 | 20,
                20,
                0,
                method,
                0,
                33,
                crc,
                packed,
                size,
                len(raw),
                0,
                0,
                0,
                0,
                mode,
                at,
            )
            + raw
        )
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, len(files), len(files), len(table), len(body), 0)
    path.write_bytes(body + table + end)
    return path


BOMB = zlib.compress(bytes(10 << 20), 9)[2:-4]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([("../../.bashrc", b"x", {})], "could escape the folder"),
        ([("a/../../b", b"x", {})], "could escape the folder"),
        ([("/etc/passwd", b"x", {})], "could escape the folder"),
        ([("C:\\x", b"x", {})], "could escape the folder"),
        ([("a/.ssh", b"x", {})], "could escape the folder"),
        ([("a\nb", b"x", {})], "could escape the folder"),
        ([("a", b"/etc/passwd", {"mode": 0o120777})], "a' is a symbolic link"),
        ([("a", b"", {"mode": 0o040755})], "a' is a folder"),
        ([("a", b"", {"mode": 0o020644})], "a' is a device"),
        ([("a", b"x", {"mode": 0o104755})], "the entry of 'a' in the archive's table"),
        ([("a", b"x", {}), ("a", b"y", {})], "a' is in the archive twice"),
        ([("b", b"x", {}), ("a", b"y", {})], "a' is out of order"),
        ([("a", BOMB, {"method": 8, "size": 10 << 20})], "is compressed: .* bytes that unpack to 10485760"),
        ([("a", b"x", {"size": 1 << 31, "packed": 1 << 31})], "belong to no file|header"),
        ([("a", b"x" * 100, {}), ("b", b"x", {"offset": 0})], "the entry of 'b' in the archive's table"),
        ([("a", b"x", {"crc": 1})], "its bytes have another CRC"),
    ],
)
def test_hostile_archives(tmp_path: Path, files: list[Any], said: str) -> None:
    with pytest.raises(BundleError, match=said), Archive(_raw(tmp_path / "b.zip", files)) as archive:
        for name in archive.entries:
            archive.sha256(name)
    assert not list(tmp_path.glob("*")) or [p.name for p in tmp_path.iterdir()] == ["b.zip"]


def test_an_archive_of_too_many_bytes(tmp_path: Path) -> None:
    with (tmp_path / "b.zip").open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(MAX_BYTES + 1)  # of which the disk has none
    with pytest.raises(BundleError, match=f"a bundle of {MAX_BYTES + 1} bytes"):
        Archive(tmp_path / "b.zip")


def test_an_archive_of_another_program(bundle: Path, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "b.zip", "w") as out:
        for name, data in _contents(bundle).items():
            out.writestr(name, data)
    with pytest.raises(BundleError, match="is not in tvmflow's form"):
        Archive(tmp_path / "b.zip")


def test_any_bit_of_any_byte(bundle: Path, trust: Trust, tmp_path: Path, no_trial: None) -> None:
    """Every second byte of the headers and of the table, and some hundred from everywhere."""
    data, path = bundle.read_bytes(), tmp_path / "b.zip"
    draw = random.Random(0)
    with Archive(bundle) as archive:
        starts, before = [], 0
        for entry in archive.entries.values():
            starts += range(before, entry.offset, 2)
            before = entry.offset + entry.size
    places = [*starts, *range(before, len(data), 2), *(draw.randrange(len(data)) for _ in range(300))]
    for at in places:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
        with pytest.raises(BundleError):
            verify(path, trust)


def _keys(folder: Path) -> KeyPair:
    return new_keys(folder / "key")


def test_keys_are_private_and_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _keys(tmp_path)
    assert made.private.stat().st_mode & 0o777 == 0o600 and "PRIVATE" not in made.public.read_text()
    before = made.private.read_bytes()
    for again in (tmp_path / "key", made.public):
        with pytest.raises(UsageError, match="already exists"):
            new_keys(again)
    made.public.rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="already exists"):
        _keys(tmp_path)
    assert made.private.read_bytes() == before
    monkeypatch.setenv("TVMFLOW_SIGNING_KEY", before.decode())
    signer = signing_key(None)
    assert signer is not None and signer.private_bytes_raw() == signing_key(made.private).private_bytes_raw()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda key: key.private.chmod(0o644), "can be read by others"),
        (lambda key: key.private.write_text("no key"), "holds no private key"),
        (lambda key: key.private.write_bytes(key.public.read_bytes()), "holds no private key"),
        (lambda key: key.private.unlink(), "cannot be read"),
    ],
)
def test_keys_that_are_none(tmp_path: Path, change: Callable[[KeyPair], Any], said: str) -> None:
    made = _keys(tmp_path)
    change(made)
    with pytest.raises(UsageError, match=said):
        signing_key(made.private)


def test_a_private_key_in_place_of_the_public_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no public key") as error:
        public_key(_keys(tmp_path).private)
    assert error.value.hint.endswith("key.pub")


def test_what_is_no_statement() -> None:
    for data in (b"", b"[]", b"{}", b'{"_type": 1}'):
        with pytest.raises(BundleError, match="statement is damaged"):
            subjects(data)
