"""Make and check the packages of a release: wheels and AARs, of its bundle alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tvmflow.config.params import AppEntry
from tvmflow.shipping.bundle.repackage import files_to_publish, packages_of
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.support.errors import BundleError
from tvmflow.support.temporary import temporary_folder


def refused_packages(bundle: Path, entry: AppEntry, key: Ed25519PrivateKey | None) -> list[str]:
    """Return the reasons against a release: packages of the app that cannot be made of it, or that `verify` refuses."""
    if not entry.packages:
        return []
    with temporary_folder("packages") as name:
        try:
            _checked(bundle, entry, key, Path(name))
        except BundleError as error:
            return [f"a package is refused: {error.found}"]
    return []


def published_files(
    bundle: Path, lists: Sequence[Path], entry: AppEntry, key: Ed25519PrivateKey | None, folder: Path
) -> list[Path]:
    """Fill a folder with all that is published of a release; return its files in the order of publishing.

    lists: files that say which releases there are, and who may sign them, where they exist.
    """
    _checked(bundle, entry, key, folder)
    for file in (bundle, *(one for one in lists if one.is_file())):
        shutil.copyfile(file, folder / file.name)
    return files_to_publish(folder)


def _checked(bundle: Path, entry: AppEntry, key: Ed25519PrivateKey | None, folder: Path) -> None:
    trust = Trust(key.public_key() if key else None, unsigned=key is None)
    for path in packages_of(bundle, entry.packages, folder, key, entry.group):
        verify(path, trust)
