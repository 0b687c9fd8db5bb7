"""Where the sources of the runtime in C lie, and their digest; knows no TVM, since recipe keys need it."""

from __future__ import annotations

import functools

from tvmflow.artifacts import digest_of, sha256_of
from tvmflow.recipe import CODE_ROOT

ABI_VERSION = 1  # TVMFLOW_ABI_VERSION of runtime/include/tvmflow.h
RUNTIME = next(  # in a clone, and in an installed package
    place for place in (CODE_ROOT / "runtime", CODE_ROOT / "tvmflow" / "_runtime") if (place / "include").is_dir()
)


@functools.cache
def digest_of_runtime() -> str:
    """Return the sha256 of the sources in C: part of the recipe of what is linked with them."""
    files = (file for name in ("include", "src", "rpc") for file in (RUNTIME / name).iterdir())
    return digest_of({file.name: sha256_of(file) for file in files})
