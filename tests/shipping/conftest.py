"""Provide a bundle of one small network, written once, and its signing keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bundle_parts import small_part
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, new_keys, public_key, signing_key
from tvmflow.shipping.bundle.verify import Trust
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle

REQUEST = BundleRequest("small", version=3)


@pytest.fixture(scope="session")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    return small_part(tmp_path_factory.mktemp("part") / "cell")


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return new_keys(tmp_path_factory.mktemp("keys") / ".keys" / "release")  # in a folder that is not there yet


@pytest.fixture(scope="session")
def trust(keys: KeyPair) -> Trust:
    return Trust(public_key(keys.public))


@pytest.fixture(scope="session")
def bundle(part: Part, keys: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "small.zip"
    write_bundle(path, [part], REQUEST, signing_key(keys.private))
    return path
