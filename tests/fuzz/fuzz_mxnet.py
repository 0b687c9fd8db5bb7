"""Fuzz our MXNet readers, guided by coverage: `python -m tests.fuzz.fuzz_mxnet -max_total_time=60`.

The only error that may leave them is ModelFileError. Memory is limited by -rss_limit_mb.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tvmflow.frontends.mxnet.files"]):
    from tvmflow.frontends.mxnet.files import read_params, read_symbol
    from tvmflow.support.errors import ModelFileError

_FILE = Path(tempfile.mkdtemp()) / "file"


def read(data: bytes) -> None:
    _FILE.write_bytes(data[1:])
    try:
        if data[:1] < b"\x80":
            read_params(_FILE)
        else:
            read_symbol(_FILE)
    except ModelFileError:
        pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
