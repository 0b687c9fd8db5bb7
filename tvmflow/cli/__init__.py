"""The command line: parses, calls the Python API, prints. Results on stdout, progress and errors on stderr.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a gate refused, 130 or 143 interrupted.
"""

from tvmflow.cli import (
    bundle,
    device,
    predict,
    project,
    release,
    run,  # the order of these imports is that of the commands in the help text
)
from tvmflow.cli import inspect as look

from tvmflow.cli import fleet, search, toolchains, tables, apps  # isort: skip
from tvmflow.cli.app import app, main

__all__ = [
    "app",
    "apps",
    "bundle",
    "device",
    "fleet",
    "look",
    "main",
    "predict",
    "project",
    "release",
    "run",
    "search",
    "tables",
    "toolchains",
]
