"""Locate the C sources of the runtime and compute their digest, without TVM, for recipe keys."""

from __future__ import annotations

import functools

from tvmflow.support.files import digest_of, sha256_of
from tvmflow.support.paths import RUNTIME

ABI_VERSION = 1  # TVMFLOW_ABI_VERSION of runtime/include/tvmflow.h

__all__ = ["ABI_VERSION", "RUNTIME", "digest_of_runtime"]


@functools.cache
def digest_of_runtime() -> str:
    """Return the sha256 of the C sources, a part of the recipe of what is linked with them."""
    folders = ("include", "src", "gpu", "rpc", "measure", "wasm")
    files = (file for name in folders for file in (RUNTIME / name).iterdir() if file.is_file())
    return digest_of({file.name: sha256_of(file) for file in files})
